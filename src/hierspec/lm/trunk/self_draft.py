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

import torch

from hierspec.lm.backend import Backend, HiddenStates

from .slots import PreparedQuery, SlotState
from .trunk import Trunk, TrunkModel


class SelfDraft(TrunkModel):
    """The language model that runs a cheaper form of a trunk's transformer on the trunk's slots.

    Args:
        backend: the cheaper form, which can read and write the trunk's caches.
    """

    def __init__(self, trunk: Trunk, backend: Backend) -> None:
        super().__init__(trunk, backend, backend.name, backend.num_layers, drafts=True)
        # The layers that it attends in (all, if it leaves none out), and by segment of the trunk.
        self._attended = getattr(backend, "attended", tuple(range(backend.num_layers)))
        self._attended_by_segment = [
            (segment, layers)
            for segment, (lo, hi) in enumerate(trunk.bounds)
            if (layers := [layer for layer in self._attended if lo <= layer < hi])
        ]

    def _score(self, prepared: list[PreparedQuery]) -> torch.Tensor:
        trunk, backend = self.trunk, self.backend
        # Rows asked for again are computed again: hidden states are not cached.
        lengths = [self.begin(item.state, min(item.asked)) for item in prepared]
        outputs = [self._outputs(item, n, 1) for item, n in zip(prepared, lengths, strict=True)]
        asked = [(own, item.asked) for own, item in zip(outputs, prepared, strict=True)]
        while True:
            goals = trunk.next_lengths(prepared, lengths)
            is_last = all(goal == item.end for goal, item in zip(goals, prepared, strict=True))
            parts = [i for i, goal in enumerate(goals) if goal > lengths[i]]
            ids = [t for i in parts for t in prepared[i].tokens[lengths[i] : goals[i]]]
            scores = backend.run(
                *(0, backend.num_layers),
                [prepared[i].span(lengths[i], goals[i]) for i in parts],
                [outputs[i] for i in parts],
                ids=trunk.replace_unknown(ids),
                scored=asked if is_last else (),
            )
            for i in parts:
                self.store(prepared[i].state, goals[i])
            if is_last:
                return scores
            lengths = goals

    def _start(self, item: PreparedQuery) -> int:
        return self.begin(item.state, item.first)

    def _outputs(self, item: PreparedQuery, start: int, count: int) -> HiddenStates:
        shape = (item.end + count - 1 - start, self.backend.hidden_size)
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
        for layer in self._attended:
            state.drafted[layer] = end
