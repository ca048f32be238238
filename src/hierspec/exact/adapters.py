"""Verifiers of other projects, tested by enumeration: any function that verifies one draft.

An *adapter* is a function ``verify(tokens, q, p) → emitted tokens`` around such code. It gets the n
drafted tokens [n] int64, the distributions they were drawn from [n, V] and the target's [n + 1, V],
both float64, and returns the tokens of its round: the kept ones and those that follow them. It may
draw random numbers with ``torch.rand``, ``rand_like`` and ``multinomial``, which are replaced by
every possible result (:mod:`hierspec.exact.splitting`).

This gives the law of a round over all drafts. Continued by the target it must be the target's own
law; the total variation distance measures how much it differs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from hierspec.core.distributions import draw
from hierspec.errors import HierspecError
from hierspec.lm.tabular import TabularModel

from .splitting import SplittingRng, outcome_law

Adapter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Sequence[int]]

TOLERANCE = 1e-9
VOCABULARY = 3  # with two tokens, a residual cannot be wrong
LENGTHS = (1, 2, 3)
SEEDS = 4  # pairs of models for each draft length


@dataclass(frozen=True, slots=True)
class VerifierFinding:
    """What enumeration showed of a verifier.

    Attributes:
        tv: by draft length: the largest total variation distance of a round.
        tokens: by draft length: expected tokens per round, averaged over the models.
    """

    tv: dict[int, float]
    tokens: dict[int, float]

    @property
    def lossless(self) -> bool:
        return max(self.tv.values()) <= TOLERANCE


def examine(
    adapter: Adapter, lengths: Sequence[int] = LENGTHS, seeds: int = SEEDS
) -> VerifierFinding:
    """Enumerate a verifier over random pairs of models of three tokens.

    Raises:
        HierspecError: it returns something other than 1 to n + 1 token ids.
    """
    tv, tokens = dict.fromkeys(lengths, 0.0), dict.fromkeys(lengths, 0.0)
    for n in lengths:
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            q, p = (TabularModel.random(VOCABULARY, 1, generator) for _ in range(2))
            law = round_law(adapter, p, q, n)
            tv[n] = max(tv[n], distance(law, p, n + 1))
            tokens[n] += sum(prob * len(text) for text, prob in law.items()) / seeds
    return VerifierFinding(tv, tokens)


def round_law(
    adapter: Adapter, p: TabularModel, q: TabularModel, n: int
) -> dict[tuple[int, ...], float]:
    """Return the law of a round's tokens, over all drafts of n tokens from an empty text."""
    law: dict[tuple[int, ...], float] = {}
    for draft in product(range(p.vocab_size), repeat=n):
        q_rows = torch.stack([q.distribution(draft[:i]) for i in range(n)])
        p_rows = torch.stack([p.distribution(draft[:i]) for i in range(n + 1)])
        draft_prob = float(q_rows[torch.arange(n), torch.tensor(draft)].prod())
        if draft_prob == 0.0:
            continue

        def program(
            rng: Any,
            draft: tuple[int, ...] = draft,
            q_rows: torch.Tensor = q_rows,
            p_rows: torch.Tensor = p_rows,
        ) -> tuple[int, ...]:
            with replace_torch_random(rng):
                emitted = adapter(torch.tensor(draft), q_rows.clone(), p_rows.clone())
            text = tuple(int(token) for token in emitted)
            if not 0 < len(text) <= n + 1 or not all(0 <= t < p.vocab_size for t in text):
                raise HierspecError(
                    f"a verifier returns 1 to {n + 1} token ids for a draft of {n}, not {text}"
                )
            return text

        for text, prob in outcome_law(program).items():
            law[text] = law.get(text, 0.0) + draft_prob * prob
    return law


def distance(law: dict[tuple[int, ...], float], target: TabularModel, length: int) -> float:
    """Return the total variation between a round continued by the target, and the target alone."""
    total = 0.0
    for text in product(range(target.vocab_size), repeat=length):
        token_probs = [float(target.distribution(text[:i])[text[i]]) for i in range(length)]
        round_prob, target_prob = 0.0, 1.0  # target_prob: of the tokens after the first i
        for i in range(length, 0, -1):
            round_prob += law.get(text[:i], 0.0) * target_prob
            target_prob *= token_probs[i - 1]
        total += abs(round_prob - target_prob)
    return total / 2.0


@contextlib.contextmanager
def replace_torch_random(rng: SplittingRng) -> Iterator[None]:
    """Let torch's random functions draw from ``rng`` inside the ``with`` block."""

    def rand(*size: Any, **_: Any) -> torch.Tensor:
        shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
        numbers = rng.take(shape.numel()).tolist()
        return torch.tensor([float(u) for u in numbers], dtype=torch.float64).reshape(shape)

    def rand_like(like: torch.Tensor, **_: Any) -> torch.Tensor:
        return rand(like.shape)

    def multinomial(probs: torch.Tensor, num_samples: int = 1, **_: Any) -> torch.Tensor:
        if num_samples != 1:
            raise HierspecError("torch.multinomial: only num_samples=1 is supported in an adapter")
        rows = probs.double().reshape(-1, probs.shape[-1])
        tokens = draw(rows, rng.take(len(rows)))
        return torch.tensor(tokens).reshape(*probs.shape[:-1], 1)

    substitutes = {"rand": rand, "rand_like": rand_like, "multinomial": multinomial}
    originals = {name: getattr(torch, name) for name in substitutes}
    try:
        for name, function in substitutes.items():
            setattr(torch, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(torch, name, function)


def load_adapter(location: str) -> Adapter:
    """Import a function from ``FILE.py:NAME``.

    Raises:
        HierspecError: it is not there.
    """
    file, _, name = location.rpartition(":")
    path = Path(file)
    if not name or path.suffix != ".py" or not path.is_file():
        raise HierspecError(
            f"no adapter {location!r}: give FILE.py:FUNCTION, or one of those that --adapter all "
            "shows"
        )
    spec = importlib.util.spec_from_file_location("_hierspec_adapter", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    adapter: Adapter | None = getattr(module, name, None)
    if not callable(adapter):
        raise HierspecError(f"{path} has no function {name!r}")
    return cast("Adapter", adapter)
