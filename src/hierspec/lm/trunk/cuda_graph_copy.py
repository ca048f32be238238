"""A copy in fewer bits that drafts on an accelerator, on the target's cache, in recorded calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hierspec.core.distributions import Uniforms
from hierspec.lm.backend import Backend
from hierspec.lm.base import DeviceDrafts, Query
from hierspec.lm.lean.device_copy import DeviceCopy
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.sampling.sampler import Sampler
from hierspec.utils.graphs import Body, Graphs, upload

from .cuda_graphs import MAX_TOKENS, CudaGraphTrunk, column_bucket, power_of_two, token_bucket
from .device_drafts import DeviceLoop, FirstScores
from .self_draft import SelfDraft
from .slots import PreparedQuery, SlotState
from .trunk import Trunk


class _CopyShape(NamedTuple):
    """The shape that a call is recorded for: B rows of n tokens, S of them scored."""

    rows: int
    num_tokens: int
    num_scores: int
    num_columns: int


class _CopyCall(NamedTuple):
    """Static tensors of a recorded call; the integer ones are views of ``inputs`` [B, …] int64."""

    inputs: Tensor
    ids: Tensor  # [B, n]
    positions: Tensor  # [B, n]
    scored: Tensor  # [B, S], indices of tokens
    last: Tensor  # [B, 1], the position of the last token
    scores: Tensor  # [B, S, V]


class CudaGraphSelfDraft(SelfDraft):
    """A :class:`~hierspec.lm.trunk.self_draft.SelfDraft` whose calls are recorded and which drafts
    on its device. Trees and long texts use the normal path."""

    trunk: CudaGraphTrunk
    backend: DeviceCopy

    def __init__(self, trunk: CudaGraphTrunk, backend: DeviceCopy) -> None:
        super().__init__(trunk, backend)
        self.forward = FixedShapeForward(backend)

    @property
    def graphs(self) -> Graphs:
        """Recorded calls of its device, the trunk's."""
        return self.trunk.graphs

    def score(self, queries: Sequence[Query]) -> Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        if any(query.tree is not None for query in queries):
            return super().score(queries)
        with torch.inference_mode():
            prepared, starts = self._prepare(queries)
            shape = self._shape(prepared, starts)
            if max(shape.num_tokens, shape.num_scores) > MAX_TOKENS:
                return super().score(queries)
            key = ("copy", self.name, shape)
            graph = self.graphs.get(key, lambda: self._new_call(shape))
            call: _CopyCall = graph.tensors
            upload(call.inputs, self._inputs(prepared, starts, shape))
            graph.run()
            self._count(prepared, starts)
        # A copy, for the next call writes there; outside inference mode, so that callers may edit.
        with torch.no_grad():
            parts = [call.scores[item.state.row, : item.end - item.first] for item in prepared]
            return torch.cat(parts)

    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        steps: int,
        sampler: Sampler,
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`."""
        longest = max(len(query.context) for query in queries) + max(counts) - 1
        for query in queries:
            self.trunk.rewind(query.slot, len(query.context))
            self.trunk.make_room(query.slot, longest)
        with torch.inference_mode():
            prepared, starts = self._prepare(queries)
            if self._shape(prepared, starts).num_tokens > MAX_TOKENS:
                super().score(queries)  # a long text, in passes of its own
                prepared, starts = self._prepare(queries)
            shape = self._shape(prepared, starts, max(counts))
            trunk, backend = self.trunk, self.backend

            def make_first() -> tuple[_CopyCall, Callable[[], FirstScores]]:
                call, run = self._new_call(shape)

                def scored() -> FirstScores:
                    run()
                    return FirstScores(call.scores[:, 0], call.last)

                return call, scored

            def step(tokens: Tensor, positions: Tensor) -> Tensor:
                return backend.head(self._hidden_on_device(tokens, positions, shape.num_columns))

            loop = DeviceLoop(
                graphs=self.graphs,
                key=("copy", self.name, shape.num_columns),
                batch=shape.rows,
                sampler=sampler,
                scratch=trunk.arena.capacity,
                width=backend.vocab_size,
                dtype=backend.dtype,
                device=backend.device,
            )
            drafted = loop.draft(
                shape,
                make_first,
                lambda call: upload(call.inputs, self._inputs(prepared, starts, shape)),
                step,
                [item.state.row for item in prepared],
                counts,
                uniforms,
            )
        self._count(prepared, starts)
        self.calls += drafted.calls - 1
        for query, item, draft in zip(queries, prepared, drafted.tokens, strict=True):
            query.slot.tokens += draft[:-1]
            self._store(item.state, item.end + len(draft) - 1)
            self.tokens += len(draft) - 1
        return drafted

    def _prepare(self, queries: Sequence[Query]) -> tuple[list[PreparedQuery], list[int]]:
        """Return prepared queries, and the first token to run for each."""
        prepared = [self.trunk.prepare(query) for query in queries]
        return prepared, [self._begin(item.state, item.first) for item in prepared]

    def _store(self, state: SlotState, end: int) -> None:
        """Note that keys and values up to ``end`` have been written."""
        for layer in self._attended:
            state.drafted[layer] = end

    def _count(self, prepared: Sequence[PreparedQuery], starts: Sequence[int]) -> None:
        self.calls += 1
        for item, start in zip(prepared, starts, strict=True):
            self._store(item.state, item.end)
            self.tokens += item.end - start

    def _shape(
        self, prepared: Sequence[PreparedQuery], starts: Sequence[int], drafted: int = 0
    ) -> _CopyShape:
        """Return the bucket of a call, after which ``drafted`` tokens are drafted, if any."""
        missing = max(item.end - start for item, start in zip(prepared, starts, strict=True))
        end = max(item.end for item in prepared) + max(0, drafted - 1)
        return _CopyShape(
            rows=power_of_two(max(item.state.row for item in prepared) + 1),
            num_tokens=token_bucket(missing, 2 if drafted else 1),
            num_scores=token_bucket(max(item.end - item.first for item in prepared)),
            num_columns=column_bucket(end, self.trunk.arena.capacity),
        )

    def _inputs(
        self, prepared: Sequence[PreparedQuery], starts: Sequence[int], shape: _CopyShape
    ) -> list[list[int]]:
        """Return [B, …]: token ids, their positions, which are scored, the last position."""
        n, scratch = shape.num_tokens, self.trunk.arena.capacity
        padding = [0] * n + [scratch] * n + [0] * shape.num_scores + [scratch]
        rows = [list(padding) for _ in range(shape.rows)]
        for item, start in zip(prepared, starts, strict=True):
            row, count = rows[item.state.row], item.end - start
            row[:count] = self.trunk.replace_unknown(item.tokens[start : item.end])
            row[n : n + count] = range(start, item.end)
            row[2 * n : 2 * n + item.end - item.first] = range(item.first - start, count)
            row[-1] = item.end - 1
        return rows

    # --- recorded calls: nothing here may wait for the device

    def _new_call(self, shape: _CopyShape) -> tuple[_CopyCall, Body]:
        backend, n = self.backend, shape.num_tokens
        sizes = [n, n, shape.num_scores, 1]
        inputs = torch.zeros(shape.rows, sum(sizes), dtype=torch.long, device=backend.device)
        inputs[:, n : 2 * n] = inputs[:, -1:] = self.trunk.arena.capacity
        ids, positions, scored, last = inputs.split(sizes, 1)
        size = (shape.rows, shape.num_scores, backend.vocab_size)
        scores = self.graphs.buffer("scores", size, backend.dtype, backend.device)
        rows = torch.arange(shape.rows, device=backend.device).unsqueeze(1)

        def body() -> None:
            h = self._hidden_on_device(ids, positions, shape.num_columns)
            h = h.unflatten(0, positions.shape)[rows, scored].flatten(0, 1)
            scores.copy_(backend.head(h).unflatten(0, scored.shape))

        return _CopyCall(inputs, ids, positions, scored, last, scores), body

    def _hidden_on_device(self, ids: Tensor, positions: Tensor, num_columns: int) -> Tensor:
        """Return the last layer's output [B n, d] for tokens [B, n] at ``positions``."""
        places = self.trunk.forward.places(positions, num_columns)
        h = self.forward.embed(ids)
        return self.forward.layers(h, 0, self.backend.num_layers, self.trunk.arena.cache, places)


def self_draft_for(trunk: Trunk, backend: Backend) -> SelfDraft:
    """Return the model that runs a cheaper form of a trunk's transformer on the trunk's slots."""
    if isinstance(trunk, CudaGraphTrunk) and isinstance(backend, DeviceCopy):
        return CudaGraphSelfDraft(trunk, backend)
    return SelfDraft(trunk, backend)
