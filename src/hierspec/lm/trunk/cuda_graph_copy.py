"""A copy in fewer bits that drafts on an accelerator, on the target's cache, in recorded calls."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from hierspec.lm.backend import Backend
from hierspec.lm.lean.device_copy import DeviceCopy
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.lm.lean.fused import CallPlaces

from .cuda_graphs import CudaGraphTrunk, RecordedModel, StaticCall
from .self_draft import SelfDraft
from .slots import PreparedQuery
from .trunk import Trunk


class CudaGraphSelfDraft(RecordedModel, SelfDraft):
    """A :class:`~hierspec.lm.trunk.self_draft.SelfDraft` whose calls are recorded and which drafts
    on its device. It runs all of its layers at once."""

    trunk: CudaGraphTrunk
    backend: DeviceCopy

    def __init__(self, trunk: CudaGraphTrunk, backend: DeviceCopy) -> None:
        super().__init__(trunk, backend)
        self.graphs, self.forward = trunk.graphs, FixedShapeForward(backend)

    @property
    def key(self) -> Hashable:
        return "copy", self.name

    def starts(self, item: PreparedQuery) -> list[int]:
        return [self.begin(item.state, item.first)]

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
        h = self.forward.embed(ids)
        return self.forward.layers(h, 0, self.backend.num_layers, self.trunk.arena.cache, places)


def self_draft_for(trunk: Trunk, backend: Backend) -> SelfDraft:
    """Return the model that runs a cheaper form of a trunk's transformer on the trunk's slots."""
    if isinstance(trunk, CudaGraphTrunk) and isinstance(backend, DeviceCopy):
        return CudaGraphSelfDraft(trunk, backend)
    return SelfDraft(trunk, backend)
