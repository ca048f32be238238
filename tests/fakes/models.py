"""Stand-ins for what models are made of: backends, weights, families."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import nn

from fakes.tokenizers import Letters
from hierspec.lm.base import Query, Slot
from hierspec.lm.in_steps import RunsInSteps


class ToyBackend(RunsInSteps):
    """A causal float64 backend without attention: a layer mixes in the mean of what it has seen.

    ``fail_at`` counts down over layers; at 0 the layer raises ``error`` half-way.
    """

    name = "toy"
    num_layers, vocab_size, hidden_size, max_length = 6, 7, 5, 4096
    device, dtype, weight_dtype = torch.device("cpu"), torch.float64, torch.float64
    trees = False

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(0)
        size = (self.vocab_size, self.hidden_size)
        self.table = torch.randn(size, generator=g, dtype=torch.float64)
        size = (self.num_layers, self.hidden_size, self.hidden_size)
        self.mix = torch.randn(size, generator=g, dtype=torch.float64)
        self.widest = 0
        self.fail_at = -1
        self.error: type[BaseException] = MemoryError

    def new_cache(self, capacity):
        size = (self.num_layers, capacity, self.hidden_size)
        return torch.full(size, float("nan"), dtype=torch.float64)

    def embed(self, ids, spans):
        assert len(ids) == sum(span.n for span in spans)
        return self.table[ids]

    def layers(self, h, lo, hi, spans):
        self.widest = max(self.widest, len(h))
        before = h.clone()
        for i in range(lo, hi):
            out, row = [], 0
            for cache, start, n, _ in spans:
                x = h[row : row + n]
                cache[i, start : start + n] = x
                self.fail_at -= 1
                if self.fail_at == 0:
                    raise self.error("on purpose")
                seen = cache[i, : start + n].cumsum(0)[start:]
                count = torch.arange(start + 1, start + n + 1)[:, None]
                out.append(x + torch.tanh(seen / count @ self.mix[i]))
                row += n
            new = torch.cat(out)
            if i == lo:
                assert torch.equal(h, before), "layers may not write into their input"
            h = new
        return h

    def move(self, cache, places, start):
        raise AssertionError("no tree is asked here")

    def copy(self, source, to, length):
        to[:, :length] = source[:, :length]

    def unembedding(self):
        raise AssertionError("no part of the vocabulary is asked here")

    def head(self, h):
        return h @ self.table.T


class Ledger:
    """How many tokens every segment of a trunk must compute at the least: what it has not seen."""

    def __init__(self, segments: int) -> None:
        self.seen: list[list[int]] = [[] for _ in range(segments)]
        self.work = [0] * segments

    def ask(self, ids: list[int], index: int) -> None:
        for s, seen in enumerate(self.seen):
            same = 0
            while same < min(len(seen), len(ids)) and seen[same] == ids[same]:
                same += 1
            if same < len(ids) and same < len(seen):
                del seen[same:]
            if s <= index:
                self.work[s] += max(0, len(ids) - len(seen))
                if len(ids) > len(seen):
                    self.seen[s] = list(ids)


class InMemory:
    """A transformers model as a weight source."""

    name, tokenizer_path = "tiny", None

    def __init__(self, model: nn.Module) -> None:
        self.weights, self.config = dict(model.named_parameters()), model.config

    def names(self) -> list[str]:
        return list(self.weights)

    def tensor(self, name: str) -> torch.Tensor:
        return self.weights[name].detach()


class FakeFamily:
    """A family of models of which only the tokenizer is asked."""

    name, target = "fake", "fake"

    def models(self, dtype="float32"):
        return SimpleNamespace(tokenizer=Letters())


class ScriptedModel:
    """A language model that writes one text after a prompt of a given length, if it is let.

    After anything else it scores noise, which depends on the position alone.

    Args:
        wrong_every: every so many tokens it wants another one, as a draft does.
    """

    graphs, trees, max_length = None, False, 1 << 30
    device = torch.device("cpu")

    def __init__(self, vocab_size: int, wrong_every: int = 0) -> None:
        self.name, self.vocab_size = "scripted", vocab_size
        self.script: list[int] = []
        self.prompt_length = 1
        self._wrong_every = wrong_every
        generator = torch.Generator().manual_seed(wrong_every)
        self._noise = torch.randn(64, vocab_size, generator=generator, dtype=torch.float64)

    @property
    def cache_owner(self) -> ScriptedModel:
        return self

    def open(self) -> Slot:
        return Slot()

    def close(self, slot: Slot) -> None:
        slot.tokens, slot.num_committed = [], 0

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        rows: list[torch.Tensor] = []
        for query in queries:
            tokens = query.context.tokens(0)
            rows += [self._row(tokens[:end]) for end in range(query.start, len(tokens) + 1)]
        return torch.stack(rows)

    def _row(self, tokens: Sequence[int]) -> torch.Tensor:
        written = list(tokens[self.prompt_length :])
        place = len(written)
        scores = self._noise[place % 64].clone()
        follows = self.script[:place] == written and place < len(self.script)
        if follows and not (self._wrong_every and (place + 1) % self._wrong_every == 0):
            scores[self.script[place]] = 20.0
        return scores
