"""A copy in fewer bits that drafts on an accelerator, on the target's cache, in recorded calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hierspec.lm.backend import Backend
from hierspec.lm.base import Query
from hierspec.lm.lean.call_places import CallPlaces
from hierspec.lm.lean.device_copy import DeviceCopy
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.utils.graphs import Graphs

from .cuda_graphs import CudaGraphTrunk, DeviceDrafter, RecordedCalls, StaticCall
from .self_draft import SelfDraft
from .slots import PreparedQuery
from .trunk import Trunk


class CudaGraphSelfDraft(DeviceDrafter, SelfDraft):
    """A :class:`~hierspec.lm.trunk.self_draft.SelfDraft` whose calls are recorded and which drafts
    on its device."""

    trunk: CudaGraphTrunk
    backend: DeviceCopy

    def __init__(self, trunk: CudaGraphTrunk, backend: DeviceCopy) -> None:
        super().__init__(trunk, backend)
        self._calls = _CopyCalls(self)

    @property
    def graphs(self) -> Graphs:
        """Recorded calls of its device, the trunk's."""
        return self.trunk.graphs

    def recorded_calls(self) -> RecordedCalls:
        return self._calls

    def score(self, queries: Sequence[Query]) -> Tensor:
        return self._calls.score(queries)


class _CopyCalls(RecordedCalls):
    """The calls of a copy, which runs all of its layers at once."""

    def __init__(self, model: CudaGraphSelfDraft) -> None:
        super().__init__(model.trunk, model.backend, ("copy", model.name))
        self.model = model
        self.forward = FixedShapeForward(model.backend)

    def score_unrecorded(self, queries: Sequence[Query]) -> Tensor:
        return SelfDraft.score(self.model, queries)

    def starts(self, item: PreparedQuery) -> list[int]:
        return [self.model.begin(item.state, item.first)]

    def count(self, prepared: Sequence[PreparedQuery], starts: list[list[int]], rows: int) -> None:
        self.model.calls += 1
        for item, (start,) in zip(prepared, starts, strict=True):
            self.model.store(item.state, item.end)
            self.model.tokens += item.end - start

    def count_drafts(
        self, prepared: Sequence[PreparedQuery], drafted: Sequence[int], calls: int, rows: int
    ) -> None:
        self.model.calls += calls
        self.model.tokens += sum(drafted)
        for item, n in zip(prepared, drafted, strict=True):
            self.model.store(item.state, item.end + n)

    def run_call(self, call: StaticCall) -> Tensor:
        (positions,), scored = call.positions, call.score_positions
        places = self.trunk.forward.places(positions, call.num_columns)
        h = self._hidden(call.ids, places).unflatten(0, positions.shape)
        rows = torch.arange(len(scored), device=scored.device).unsqueeze(1)
        # What only fills the shape up is scored too, somewhere.
        index = (scored - positions[:, :1]).clamp(max=positions.shape[1] - 1)
        return self.backend.head(h[rows, index].flatten(0, 1)).unflatten(0, scored.shape)

    def run_step(self, ids: Tensor, places: CallPlaces) -> Tensor:
        return self.backend.head(self._hidden(ids, places)).unflatten(0, ids.shape)

    def _hidden(self, ids: Tensor, places: CallPlaces) -> Tensor:
        """Return the last layer's output [B n, d] for tokens [B, n]."""
        h = self.forward.embed(ids)
        return self.forward.layers(h, 0, self.backend.num_layers, self.trunk.arena.cache, places)


def self_draft_for(trunk: Trunk, backend: Backend) -> SelfDraft:
    """Return the model that runs a cheaper form of a trunk's transformer on the trunk's slots."""
    if isinstance(trunk, CudaGraphTrunk) and isinstance(backend, DeviceCopy):
        return CudaGraphSelfDraft(trunk, backend)
    return SelfDraft(trunk, backend)
