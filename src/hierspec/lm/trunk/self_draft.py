"""A cheaper form of the target, drafting on the target's cache.

In fewer bits: after QuantSpec (Tiwari et al. 2025, arXiv 2502.10424), which drafts with 4-bit
weights and a 4-bit cache; here the cache is the target's. Or without some of its layers, as SWIFT
does it (Xia et al. 2025, arXiv 2410.06916).

For every token the target has checked, the draft reads the target's keys and values, so it needs no
pass over the prompt and its errors do not add up; past them it writes its own, which the target's
next check overwrites. A position that it has written to no longer counts as the target's.

Several forms may draft after one another on one cache, as parts of a draft or as levels. A form
goes on from what others have drafted, where that includes keys and values in every layer that it
attends in; it runs all tokens from the first one on that lacks some.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.lm.backend import Backend, Span
from hierspec.lm.base import NextScores, Query

from .slots import SlotState
from .trunk import SlotSharingModel, Trunk


class SelfDraft(SlotSharingModel):
    """The language model that runs a cheaper form of a trunk's transformer on the trunk's slots.

    Args:
        backend: the cheaper form, which can read and write the trunk's caches.

    Attributes:
        cache_owner: the trunk, whose slots it shares.
        calls: passes over its weights since it was made.
        tokens: how many tokens it ran in these.
    """

    def __init__(self, trunk: Trunk, backend: Backend) -> None:
        self.trunk, self.backend = trunk, backend
        self.name = backend.name
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.device = backend.device
        # The layers that it attends in (all, if it leaves none out), and by segment of the trunk.
        self._attended = getattr(backend, "attended", tuple(range(backend.num_layers)))
        self._attended_by_segment = [
            (segment, layers)
            for segment, (lo, hi) in enumerate(trunk.bounds)
            if (layers := [layer for layer in self._attended if lo <= layer < hi])
        ]
        self.calls = self.tokens = 0

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        if parts := self.trunk.divided(queries):
            return torch.cat([self.score([part]) for part in parts])
        with torch.inference_mode():
            h = self._hidden(queries)
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return self.backend.head(h)

    @property
    def trees(self) -> bool:
        """Whether it scores a token tree in one call."""
        return self.backend.trees

    @torch.inference_mode()
    def score_stepwise(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, NextScores]:
        scores = self.backend.head(self._hidden(queries))
        slots = [query.slot for query in queries]
        for query, count in zip(queries, counts, strict=True):
            self.trunk.make_room_for_draft(query, count)

        @torch.inference_mode()
        def next_scores(indices: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
            # Added before it is computed: the reverse would not survive an interruption.
            for i, token in zip(indices, tokens, strict=True):
                slots[i].tokens.append(token)
            states = [slots[i].state for i in indices]
            starts = [len(slots[i].tokens) - 1 for i in indices]
            spans = [Span(s.cache, start, 1) for s, start in zip(states, starts, strict=True)]
            return self.backend.head(self._run(tokens, states, spans))

        return scores, next_scores

    def _hidden(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return the last layer's output for all rows of queries, [Σ num_rows, d]."""
        prepared = [self.trunk.prepare(query) for query in queries]
        parts: list[list[torch.Tensor]] = [[] for _ in prepared]
        starts: list[int] = []
        for item in prepared:
            # Rows asked for again are computed again: hidden states are not cached.
            first = item.first if item.rows is None else min(item.rows)
            starts.append(self.begin(item.state, first))
        num_run = list(starts)  # tokens of each query that have been run
        while any(n < item.end for n, item in zip(num_run, prepared, strict=True)):
            num_left, spans = self.trunk.chunk, dict[int, Span]()  # by index of the query
            for i, item in enumerate(prepared):
                step = min(item.end - num_run[i], num_left)
                num_left -= step
                if step:
                    spans[i] = item.span(num_run[i], num_run[i] + step)
            ids = [t for i, s in spans.items() for t in prepared[i].tokens[s.start : s.start + s.n]]
            h = self._run(ids, [prepared[i].state for i in spans], list(spans.values()))
            split = h.split([span.n for span in spans.values()])
            for (i, span), part in zip(spans.items(), split, strict=True):
                parts[i].append(part)
                num_run[i] += span.n
        items = zip(prepared, parts, starts, strict=True)
        return torch.cat([item.select_rows(torch.cat(part), start) for item, part, start in items])

    def begin(self, state: SlotState, first: int) -> int:
        """Return the first token to run for rows from ``first`` on: the first one without keys and
        values that it reads, at most ``first``. From there on it will own the cache."""
        lengths, drafted = state.lengths, state.drafted
        start = first
        for segment, layers in self._attended_by_segment:
            num_readable = max(lengths[segment], min([drafted[layer] for layer in layers]))
            start = min(start, num_readable)
        # Before anything is written: an interrupted call leaves no approximate value as exact.
        state.lengths = [min(n, start) for n in lengths]
        for layer in self._attended:
            drafted[layer] = min(drafted[layer], start)
        return start

    def store(self, state: SlotState, end: int) -> None:
        """Note that keys and values up to ``end`` have been written."""
        for layer in self._attended:
            state.drafted[layer] = end

    def _run(
        self, ids: Sequence[int], states: Sequence[SlotState], spans: Sequence[Span]
    ) -> torch.Tensor:
        """Return the last layer's output [N, d] for N tokens, and count them in their states."""
        h = self.trunk.embed(ids, spans)
        h = self.backend.layers(h, 0, self.backend.num_layers, spans)
        for state, (_, start, n, _) in zip(states, spans, strict=True):
            self.store(state, start + n)
        self.calls += 1
        self.tokens += len(ids)
        return h

    def __repr__(self) -> str:
        return f"SelfDraft({self.name!r}, V={self.vocab_size})"
