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

from hierspec.core.distributions import Uniforms
from hierspec.lm.backend import Backend, DraftingBackend, HiddenStates, ScoredStates, Span
from hierspec.lm.base import DeviceDrafts, NextScores, Query
from hierspec.sampling.sampler import Sampler

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
        self._drafting = backend if isinstance(backend, DraftingBackend) else None
        self.drafts_in_one_call = self._drafting is not None
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
        prepared = [self.trunk.prepare(query) for query in queries]
        # Rows asked for again are computed again: hidden states are not cached.
        num_run = [self.begin(item.state, min(item.asked)) for item in prepared]
        outputs = [
            self._new_states(start, item.end) for start, item in zip(num_run, prepared, strict=True)
        ]
        asked = [(own, item.asked) for own, item in zip(outputs, prepared, strict=True)]
        while True:
            num_left = self.trunk.chunk
            spans: dict[int, Span] = {}  # by index of the query
            for i, item in enumerate(prepared):
                step = min(item.end - num_run[i], num_left)
                num_left -= step
                if step:
                    spans[i] = item.span(num_run[i], num_run[i] + step)
                    num_run[i] += step
            is_last = all(n >= item.end for n, item in zip(num_run, prepared, strict=True))
            scores = self._run(
                [t for i, s in spans.items() for t in prepared[i].tokens[s.start : s.start + s.n]],
                [prepared[i].state for i in spans],
                list(spans.values()),
                [outputs[i] for i in spans],
                asked if is_last else (),
            )
            if is_last:
                return scores

    @property
    def trees(self) -> bool:
        """Whether it scores a token tree in one call."""
        return self.backend.trees

    def score_stepwise(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, NextScores]:
        scores = self.score(queries)
        slots = [query.slot for query in queries]
        for query, count in zip(queries, counts, strict=True):
            self.trunk.make_room_for_draft(query, count)

        def next_scores(indices: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
            states: list[SlotState] = []
            spans: list[Span] = []
            outputs: list[HiddenStates] = []
            for i, token in zip(indices, tokens, strict=True):
                slot, start = slots[i], len(slots[i].tokens)
                # Added before it is computed: the reverse would not survive an interruption.
                slot.tokens.append(token)
                states.append(slot.state)
                spans.append(Span(slot.state.cache, start, 1))
                outputs.append(self._new_states(start, start + 1))
            asked = [(own, (own.first,)) for own in outputs]
            return self._run(tokens, states, spans, outputs, asked)

        return scores, next_scores

    @torch.inference_mode()
    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        sampler: Sampler,
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`: greedy, in one call of the backend."""
        backend = self._drafting
        assert backend is not None
        assert sampler.greedy
        prepared = self.trunk.prepare_drafts(queries, counts)
        starts = [self.begin(item.state, item.first) for item in prepared]
        if sum([item.end - n for item, n in zip(prepared, starts, strict=True)]) > self.trunk.chunk:
            self.score(queries)  # a prompt, in passes of its own
            starts = [self.begin(item.state, item.first) for item in prepared]
        outputs = [
            self._new_states(start, item.end + count - 1)
            for start, item, count in zip(starts, prepared, counts, strict=True)
        ]
        layers, num_ids = backend.num_layers, sampler.vocab_size
        drafts = self.trunk.draft(backend, layers, prepared, starts, outputs, counts, num_ids)
        for item, start in zip(prepared, starts, strict=True):
            self.store(item.state, len(item.tokens))
            self.tokens += len(item.tokens) - start
        self.calls += max(counts)
        return DeviceDrafts.greedy(drafts)

    def _new_states(self, start: int, end: int) -> HiddenStates:
        shape = (end - start, self.backend.hidden_size)
        return HiddenStates(torch.empty(shape, dtype=self.backend.dtype, device=self.device), start)

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
            if drafted[layer] > start:
                drafted[layer] = start
        return start

    def store(self, state: SlotState, end: int) -> None:
        """Note that keys and values up to ``end`` have been written."""
        for layer in self._attended:
            state.drafted[layer] = end

    def _run(
        self,
        ids: Sequence[int],
        states: Sequence[SlotState],
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        scored: Sequence[ScoredStates],
    ) -> torch.Tensor:
        """Run all layers on tokens, count these in their states, and score."""
        ids, backend = self.trunk.replace_unknown(ids), self.backend
        scores = backend.run(0, backend.num_layers, spans, outputs, ids=ids, scored=scored)
        for state, (_, start, n, _) in zip(states, spans, strict=True):
            self.store(state, start + n)
        self.calls += 1
        self.tokens += len(ids)
        return scores

    def __repr__(self) -> str:
        return f"SelfDraft({self.name!r}, V={self.vocab_size})"
