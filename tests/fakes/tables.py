"""Tables that stand in for models, and models that are asked as tables are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.lm.base import DeviceDrafts, Query
from hierspec.lm.tabular import TabularModel
from hierspec.sampling.sampler import NoDistributionError
from hierspec.utils.graphs import Graphs


class AsTable:
    """A mixin for models that enumeration asks as it asks tables: for what follows a text."""

    order = 1

    def distribution(self, text: Sequence[int]) -> torch.Tensor:
        slot = self.open()
        scores = self.score([Query(slot, Context(list(text)), len(text))])[0]
        self.close(slot)
        return scores.softmax(-1).double()


class ModelAsTable(AsTable):
    """A loaded model's distributions after texts, each computed once."""

    def __init__(self, model: Any) -> None:
        self.vocab_size = model.vocab_size
        self.open, self.score, self.close = model.open, model.score, model.close
        self.found: dict[tuple[int, ...], torch.Tensor] = {}

    def distribution(self, text: Sequence[int]) -> torch.Tensor:
        key = tuple(text)
        if key not in self.found:
            self.found[key] = super().distribution(key)
        return self.found[key]


class Ahead(TabularModel):
    """A table that continues a draft, as a trunk on the CPU does."""

    def score_stepwise(self, queries, counts):
        contexts = [query.context for query in queries]

        def after(going: Sequence[int], last: Sequence[int]) -> torch.Tensor:
            for i, token in zip(going, last, strict=True):
                contexts[i] = contexts[i].with_tokens((token,))
            return self.score(
                [Query(queries[i].slot, contexts[i], len(contexts[i])) for i in going]
            )

        return self.score(queries), after


class Device(TabularModel):
    """A table that drafts as a trunk on an accelerator does: all sequences, then cut."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.graphs = Graphs(torch.device("cpu"))

    def draft(self, queries, counts, samplers, uniforms):
        steps, (reading,) = max(counts), {*samplers}
        drawn = [own[0] for own in uniforms if len(own)]  # numbers, or the noise of positions
        unused = np.ones_like(drawn[0]) if drawn else 1.0
        filled = [np.stack([*own, *[unused] * (steps - len(own))]) for own in uniforms]
        rng = torch.as_tensor(np.stack(filled), dtype=torch.float64)
        contexts = [Context(query.context.committed, query.context.pending) for query in queries]
        steps_taken = []
        for step in range(steps):
            asked = [
                Query(query.slot, context, len(context))
                for query, context in zip(queries, contexts, strict=True)
            ]
            picked = reading.pick_on_device(self.score(asked), rng[:, step])
            if not bool(picked.ok.all()):
                raise NoDistributionError
            steps_taken.append(picked)
            contexts = [
                context.with_tokens((token,))
                for context, token in zip(contexts, picked.tokens.tolist(), strict=True)
            ]
        tokens = [
            [int(p.tokens[row]) for p in steps_taken[:count]] for row, count in enumerate(counts)
        ]
        rows = []
        for row, own in enumerate(tokens):
            if reading.greedy or steps_taken[0].probs is None:
                rows.append(OneHotDistributions(tuple(own)))
            else:
                rows.append(
                    DenseDistributions(torch.stack([p.probs[row] for p in steps_taken[: len(own)]]))
                )
        values = None
        if reading.signal:
            values = [
                [float(p.signals[row]) for p in steps_taken[:count]]
                for row, count in enumerate(counts)
            ]
        return DeviceDrafts(tokens, rows, steps, values)


class Single(TabularModel):
    """A table that scores in float32, as models do."""

    def score(self, queries):
        return super().score(queries).float()


class Resized:
    """A table whose last ids are not scored, or that scores more; it reads all contexts."""

    has_distributions = True

    def __init__(self, table: TabularModel, width: int) -> None:
        self.table, self.vocab_size, self.name = table, width, f"{width} wide"
        self.max_length, self.device = table.max_length, table.device
        self.open, self.close = table.open, table.close
        self.cache_owner, self.graphs = self, None

    def score(self, queries):
        known = self.table.score(queries)
        missing = max(0, self.vocab_size - known.shape[1])
        return torch.nn.functional.pad(known, (0, missing), value=2.0)[:, : self.vocab_size]


class TabledNetwork:
    """An EAGLE-3 model with a table in place of the network.

    Its row is a function of how much is committed and of what is pending, so that a token's
    distribution changes when it is committed. A third of the vocabulary is unknown to it.
    """

    leaf, graphs, max_length, name = True, None, 64, "stub"

    def __init__(self, target):
        self.vocab_size, self.device = target.vocab_size, target.device
        self.cache_owner = target.cache_owner
        self.rows: dict[tuple[int, ...], torch.Tensor] = {}

    def open(self):
        return self.cache_owner.open()

    def close(self, slot):
        self.cache_owner.close(slot)

    def score(self, queries):
        return torch.stack([self._row(query) for query in queries])

    def _row(self, query):
        assert query.num_rows == 1
        context: Context = query.context
        key = (len(context.committed), *context.pending)
        if key not in self.rows:
            g = torch.Generator().manual_seed(1 + hash(key) % 1000)
            row = torch.randn(self.vocab_size, generator=g, dtype=torch.float64)
            row[2] = -torch.inf
            self.rows[key] = row
        return self.rows[key]


class OneLaw:
    """A model whose scores are the same after every text."""

    cache_owner = None

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores

    def open(self):
        return None

    def close(self, slot):
        pass

    def score(self, queries):
        return self.scores.expand(queries[0].num_rows, -1)
