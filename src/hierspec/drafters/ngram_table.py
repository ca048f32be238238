"""An n-gram table as a language model: counts from a corpus, with back-off.

After a context h of k − 1 tokens, p(w | h) = d(w | h) + γ(h) p(w | h′), where h′ drops the oldest
token, d are stored shares (discounted counts) of a few words, and γ(h) = 1 − Σ d is what they
leave. Order 1 covers the whole vocabulary with positive shares, so every distribution is proper
and positive whatever was pruned. A context that was not stored has γ = 1: it is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hierspec.errors import HierspecError
from hierspec.lm.base import NextScores, Query, UncachedModel

_KEPT_BYTES = 64 << 20  # of distributions after a token


@dataclass(frozen=True)
class NgramOrder:
    """The stored pairs of one order k ≥ 2, grouped by context.

    Attributes:
        keys: [C] contexts as numbers in base V, oldest token first, increasing.
        starts: [C + 1] where each context's words begin.
        words: [E] tokens.  shares: [E] d(w | h), float32.
        backoff: [C] γ(h), float64 arithmetic, so that distributions sum to 1.
        index: context → its index in ``keys``.
    """

    keys: np.ndarray
    starts: np.ndarray
    words: np.ndarray
    shares: np.ndarray
    backoff: np.ndarray = field(init=False)
    index: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        sums = np.add.reduceat(self.shares.astype(np.float64), self.starts[:-1])
        object.__setattr__(self, "backoff", 1.0 - sums)
        index = {key: i for i, key in enumerate(self.keys.tolist())}
        object.__setattr__(self, "index", index)

    def apply(self, key: int, probs: np.ndarray) -> None:
        """Turn p(· | h′), in place, into p(· | h)."""
        i = self.index.get(key)
        if i is None:
            return
        probs *= self.backoff[i]
        pairs = slice(self.starts[i], self.starts[i + 1])
        probs[self.words[pairs]] += self.shares[pairs]


class NgramModel(UncachedModel):
    """A :class:`~hierspec.lm.base.LanguageModel` that reads a table; it caches nothing.

    Args:
        unigram: [V] positive; normalised here.
        orders: tables of order 2, 3, … without gaps.
    """

    name = "ngram"

    def __init__(self, unigram: np.ndarray, orders: Sequence[NgramOrder] = ()) -> None:
        self.vocab_size = len(unigram)
        self.vocabulary = ""  # hash of which token every id is; empty: not known
        self.max_order = 1 + len(orders)
        self.orders = tuple(orders)
        self.unigram = (unigram / unigram.sum(dtype=np.float64)).astype(np.float32)
        # Token → the distribution after it, made when needed; the oldest are dropped.
        self._bigrams: dict[int, np.ndarray] = {}

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return log-probabilities [Σ num_rows, V], float32."""
        contexts: list[list[int]] = []
        for query in queries:
            first = max(0, query.start - (self.max_order - 1))
            tokens = query.context.tokens(first)
            for end in range(query.start - first, len(tokens) + 1):
                contexts.append(tokens[max(0, end - self.max_order + 1) : end])
        return self._scores(contexts)

    def score_stepwise(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, NextScores]:
        contexts = [q.context.tokens(max(0, q.start - (self.max_order - 1))) for q in queries]

        def next_scores(active: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
            for i, token in zip(active, tokens, strict=True):
                contexts[i].append(token)
            return self._scores([contexts[i] for i in active])

        return self._scores(contexts), next_scores

    def _scores(self, contexts: Sequence[list[int]]) -> torch.Tensor:
        distributions = np.empty((len(contexts), self.vocab_size), np.float32)
        for context, out in zip(contexts, distributions, strict=True):
            self._write_probs(context[max(0, len(context) - self.max_order + 1) :], out)
        return torch.from_numpy(np.log(distributions, out=distributions))

    def distribution(self, tokens: Sequence[int]) -> np.ndarray:
        """Return p(· | ``tokens``) [V], float32; only the last few tokens matter."""
        out = np.empty(self.vocab_size, np.float32)
        self._write_probs(list(tokens[max(0, len(tokens) - self.max_order + 1) :]), out)
        return out

    def _write_probs(self, recent: list[int], out: np.ndarray) -> None:
        """Write p(· | ``recent``), at most max_order - 1 tokens, from the shortest context up."""
        if not recent or not self.orders:
            out[:] = self.unigram
            return
        out[:] = self._bigram_probs(recent[-1])
        key, scale = recent[-1], 1
        for order, token in zip(self.orders[1:], reversed(recent[:-1]), strict=False):
            scale *= self.vocab_size
            key += token * scale
            order.apply(key, out)

    def _bigram_probs(self, token: int) -> np.ndarray:
        probs = self._bigrams.get(token)
        if probs is None:
            probs = self.unigram.copy()
            self.orders[0].apply(token, probs)
            while (len(self._bigrams) + 1) * probs.nbytes > _KEPT_BYTES and self._bigrams:
                self._bigrams.pop(next(iter(self._bigrams)))
            self._bigrams[token] = probs
        return probs

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; shares as float16, ids as small as they fit."""
        tensors = {"unigram": self.unigram}
        small = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        for number, order in enumerate(self.orders, 2):
            wide = np.uint32 if self.vocab_size ** (number - 1) <= 1 << 32 else np.uint64
            tensors |= {
                f"{number}.keys": order.keys.astype(wide),
                f"{number}.lengths": np.diff(order.starts).astype(small),
                f"{number}.words": order.words.astype(small),
                f"{number}.shares": order.shares.astype(np.float16),
            }
        metadata = {"format": "hierspec-ngram-1", "vocabulary": self.vocabulary}
        save_file(tensors, str(path), metadata={k: v for k, v in metadata.items() if v})

    @classmethod
    def load(cls, path: str | Path, max_order: int | None = None) -> NgramModel:
        """Read a table; ``max_order`` uses only its lower orders.

        Raises:
            HierspecError: no table there, a damaged one, or an order that it does not reach.
        """
        try:
            with safe_open(str(path), framework="np") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                vocabulary = (file.metadata() or {}).get("vocabulary", "")
        except (OSError, SafetensorError) as error:
            raise HierspecError(
                f"cannot read the n-gram table {path}: {error}; build it again"
            ) from None
        stored = 1
        while f"{stored + 1}.keys" in tensors:
            stored += 1
        if "unigram" not in tensors:
            raise HierspecError(
                f"{path} is not an n-gram table of hierspec; build one, or use zoo:ngram"
            )
        if max_order is not None and not 1 <= max_order <= stored:
            raise HierspecError(f"max_order is {max_order}, but {path} has orders 1 to {stored}")
        try:
            orders = [_read_order(tensors, k) for k in range(2, (max_order or stored) + 1)]
            model = cls(tensors["unigram"], orders)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise HierspecError(
                f"{path} is a damaged n-gram table ({error}): build it again"
            ) from None
        model.vocabulary = vocabulary
        return model


def _read_order(tensors: dict[str, np.ndarray], number: int) -> NgramOrder:
    lengths = tensors[f"{number}.lengths"].astype(np.int64)
    return NgramOrder(
        keys=tensors[f"{number}.keys"].astype(np.int64),
        starts=np.concatenate(([0], np.cumsum(lengths))),
        words=tensors[f"{number}.words"].astype(np.int64),
        shares=tensors[f"{number}.shares"].astype(np.float32),
    )
