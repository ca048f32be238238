"""A trunk for accelerators: calls of a few fixed shapes, recorded as graphs; drafts without waits.

Every sequence's cache is a row of one arena (:mod:`hierspec.lm.trunk.arena`). A call is rounded up
to a *bucket*: sequences, tokens and attended columns to powers of two; the padding writes to the
scratch column. A call is one replay, however many segments it runs, and so is a draft of n tokens:
each token is picked on the device and fed to the next step there, so that the host waits once, for
all of them. Long prompts use the normal path, through views of the same memory.

Recording takes some milliseconds for each shape; a generation has few shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hierspec.core.distributions import Uniforms
from hierspec.lm.backend import Backend
from hierspec.lm.base import DeviceDrafts, Query, Slot
from hierspec.lm.lean.call_places import CallPlaces
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.sampling.sampler import Sampler
from hierspec.utils.graphs import Body, Graphs, upload

from .arena import Arena
from .device_drafts import DeviceLoop, FirstScores
from .encoder_decoder import EncoderDecoderBackend, EncoderDecoderTrunk
from .slots import PreparedQuery, SlotState
from .trunk import ExitModel, ScoreHead, Trunk

MAX_TOKENS = 32  # of a sequence in one call of fixed shape; longer ones are prompts
_FEW_TOKENS = 8
_MIN_COLUMNS = 512


class _Shape(NamedTuple):
    """The shape that a call is recorded for.

    Attributes:
        rows: B sequences, those of rows 0 … B − 1 of the arena.
        num_tokens: per sequence, through each segment, lowest first; 0: it has seen them all.
        num_scores: rows of scores per sequence.
        num_columns: attended to.
    """

    rows: int
    num_tokens: tuple[int, ...]
    num_scores: int
    num_columns: int


class _Call(NamedTuple):
    """Static tensors of a recorded call; the integer ones are views of ``inputs`` [B, …] int64."""

    inputs: Tensor
    ids: Tensor  # [B, num_tokens[0]]
    positions: list[Tensor]  # per segment, [B, num_tokens[s]]
    score_positions: Tensor  # [B, num_scores]
    scores: Tensor  # [B, num_scores, V]


class CudaGraphTrunk(Trunk):
    """A :class:`~hierspec.lm.trunk.trunk.Trunk` of a lean backend that runs recorded calls.

    It runs on CPUs as well, without recording anything; ordinary trunks are faster there.
    """

    backend: LeanBackend
    graphs: Graphs
    poison = 1e4  # finite: columns that a mask leaves out are read with weight 0

    def __init__(
        self, backend: LeanBackend, exits: Sequence[int] = (), *, chunk: int = 512
    ) -> None:
        super().__init__(backend, exits, chunk=chunk)
        self.forward = FixedShapeForward(backend)
        self.graphs = Graphs(backend.device)
        self.arena = Arena(self.forward, len(self.exits), self.graphs.clear)

    def exit_model(self, index: int, head: ScoreHead | None) -> ExitModel:
        return CudaGraphExitModel(self, index, head)

    def make_room(self, slot: Slot, end: int) -> SlotState:
        if slot.state is None:
            slot.tokens, slot.num_committed = [], 0
            slot.state = self.arena.new_state(end)
        elif end > self.arena.capacity:
            self.arena.grow(end)
        return slot.state

    def reserve(self, num_tokens: int) -> None:
        """See :class:`hierspec.lm.base.ReservingCacheOwner`."""
        self.arena.reserve(min(num_tokens, self.backend.max_length) + MAX_TOKENS)

    def compact(self, slot: Slot) -> None:
        """Leave the slot as it is: all rows of the arena are equally long."""

    def score(self, queries: Sequence[Query], index: int, head: ScoreHead | None = None) -> Tensor:
        if any(query.tree is not None for query in queries):
            return super().score(queries, index, head)  # trees differ from call to call
        with torch.inference_mode():
            prepared = [self.prepare(query) for query in queries]
            shape = self._shape(prepared, index)
        if max(*shape.num_tokens, shape.num_scores) > MAX_TOKENS:
            return super().score(queries, index, head)
        with torch.inference_mode():
            key = ("score", index, head, shape)
            graph = self.graphs.get(key, lambda: self._new_call(shape, index, head))
            call: _Call = graph.tensors
            upload(call.inputs, self._inputs(prepared, shape))
            graph.run()
            self._update_lengths(prepared, index, shape)
            self.counters.head_rows += shape.rows * shape.num_scores
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
        index: int,
        head: ScoreHead | None = None,
    ) -> DeviceDrafts:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`: ``max(counts)`` tokens each, then cut."""
        longest = max(len(query.context) for query in queries) + max(counts) - 1
        for query in queries:
            self.rewind(query.slot, len(query.context))
            self.make_room(query.slot, longest)
        with torch.inference_mode():
            prepared = [self.prepare(query) for query in queries]
            if max(self._shape(prepared, index).num_tokens) > MAX_TOKENS:
                super().score(queries, index, head)  # a prompt, in passes of its own
            shape = self._shape(prepared, index, max(counts))
            backend, columns = self.backend, shape.num_columns

            def make_first() -> tuple[_Call, Callable[[], FirstScores]]:
                call, run = self._new_call(shape, index, head)

                def scored() -> FirstScores:
                    run()
                    return FirstScores(call.scores[:, 0], call.score_positions)

                return call, scored

            def step(tokens: Tensor, positions: Tensor) -> Tensor:
                places = self.forward.places(positions, columns)
                for segment in range(index + 1):
                    self._run_on_device(segment, tokens, places)
                return self._scores(positions, index, head)[:, 0]

            loop = DeviceLoop(
                graphs=self.graphs,
                key=(index, head, columns),
                batch=shape.rows,
                sampler=sampler,
                scratch=self.arena.capacity,
                width=backend.vocab_size,
                dtype=backend.dtype,
                device=backend.device,
            )
            drafted = loop.draft(
                shape,
                make_first,
                lambda call: upload(call.inputs, self._inputs(prepared, shape)),
                step,
                [item.state.row for item in prepared],
                counts,
                uniforms,
            )
        self._update_lengths(prepared, index, shape)
        self.counters.head_rows += shape.rows * drafted.calls
        for query, draft in zip(queries, drafted.tokens, strict=True):
            query.slot.tokens += draft[:-1]
            state = query.slot.state
            for segment in range(index + 1):
                state.lengths[segment] += len(draft) - 1
        for segment in range(index + 1):
            self.counters.calls[segment] += drafted.calls - 1
            self.counters.tokens[segment] += sum(len(draft) - 1 for draft in drafted.tokens)
        return drafted

    # --- inputs of a call

    def _shape(self, prepared: Sequence[PreparedQuery], index: int, drafted: int = 0) -> _Shape:
        """Return the bucket of a call, after which ``drafted`` tokens are drafted, if any."""
        segments = range(index + 1)
        missing = [max(item.end - item.state.lengths[s] for item in prepared) for s in segments]
        end = max(item.end for item in prepared) + max(0, drafted - 1)
        # After a check one token is missing, or two.
        least = 2 if drafted else 1
        return _Shape(
            rows=power_of_two(max(item.state.row for item in prepared) + 1),
            num_tokens=tuple(token_bucket(n, least) if n > 0 else 0 for n in missing),
            num_scores=token_bucket(max(item.end - item.first for item in prepared)),
            num_columns=column_bucket(end, self.arena.capacity),
        )

    def _inputs(self, prepared: Sequence[PreparedQuery], shape: _Shape) -> list[list[int]]:
        """Return [B, …]: token ids, each segment's positions and those of the scores, padded."""
        width, sizes = shape.num_tokens[0], (*shape.num_tokens, shape.num_scores)
        padding = [0] * width + [self.arena.capacity] * sum(sizes)
        rows = [list(padding) for _ in range(shape.rows)]
        for item in prepared:
            row, column, lengths = rows[item.state.row], width, item.state.lengths
            new = self.replace_unknown(item.tokens[lengths[0] : item.end])
            row[: len(new)] = new
            starts = (*lengths[: len(shape.num_tokens)], item.first)
            for start, n in zip(starts, sizes, strict=True):
                positions = range(start, item.end)  # empty where a segment is ahead
                row[column : column + len(positions)] = positions
                column += n
        return rows

    def _update_lengths(self, prepared: Sequence[PreparedQuery], index: int, shape: _Shape) -> None:
        """Update lengths and counters by what a call has computed; only once it has run."""
        for segment in range(index + 1):
            if shape.num_tokens[segment]:
                self.counters.calls[segment] += 1
            for item in prepared:
                length = item.state.lengths[segment]
                self.counters.tokens[segment] += max(0, item.end - length)
                item.state.lengths[segment] = max(item.end, length)

    # --- recorded calls: nothing here may wait for the device

    def _new_call(self, shape: _Shape, index: int, head: ScoreHead | None) -> tuple[_Call, Body]:
        device, sizes = self.backend.device, (*shape.num_tokens, shape.num_scores)
        width = shape.num_tokens[0]
        inputs = torch.zeros(shape.rows, width + sum(sizes), dtype=torch.long, device=device)
        inputs[:, width:] = self.arena.capacity
        ids, *positions, score_positions = inputs.split([width, *sizes], 1)
        size = (shape.rows, shape.num_scores, self.backend.vocab_size)
        scores = self.graphs.buffer("scores", size, self.backend.dtype, device)
        call = _Call(inputs, ids, positions, score_positions, scores)

        def body() -> None:
            for segment in range(index + 1):
                if shape.num_tokens[segment]:
                    places = self.forward.places(positions[segment], shape.num_columns)
                    self._run_on_device(segment, ids, places)
            scores.copy_(self._scores(score_positions, index, head))

        return call, body

    def _run_on_device(self, segment: int, ids: Tensor, places: CallPlaces) -> None:
        """Run the tokens at ``places`` through one segment, and store its outputs."""
        at = (places.rows, places.positions)
        if segment == 0:
            h = self.forward.embed(ids)
        else:
            h = self.arena.outputs[segment - 1][at].flatten(0, 1)
        h = self.forward.layers(h, *self.bounds[segment], self.arena.cache, places)
        self.arena.outputs[segment].index_put_(at, h.unflatten(0, places.positions.shape))

    def _scores(self, positions: Tensor, index: int, head: ScoreHead | None) -> Tensor:
        """Return an exit's scores [B, n, V] at ``positions`` [B, n]."""
        rows = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        h = self.arena.outputs[index][rows, positions].flatten(0, 1)
        return (head or self.backend.head)(h).unflatten(0, positions.shape)


def power_of_two(n: int) -> int:
    """Return the next power of two, at least ``n``."""
    return 1 << (n - 1).bit_length()


def token_bucket(n: int, least: int = 1) -> int:
    """Return to how many tokens ``n`` are rounded up: few sizes, as rows cost little.

    ``least`` or else at least eight.
    """
    return least if n <= least else max(_FEW_TOKENS, power_of_two(n))


def column_bucket(end: int, capacity: int) -> int:
    """Return how many columns are attended to, at least ``end``."""
    return min(capacity, max(_MIN_COLUMNS, power_of_two(end)))


class CudaGraphExitModel(ExitModel):
    """An exit of a :class:`CudaGraphTrunk`: a model that drafts on its device."""

    trunk: CudaGraphTrunk

    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        steps: int,
        sampler: Sampler,
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`."""
        return self.trunk.draft(queries, counts, steps, sampler, uniforms, self.index, self.head)


def trunk_for(backend: Backend, exits: Sequence[int] = (), *, graphs: bool = True) -> Trunk:
    """Return the trunk for a backend: on CUDA, one of fixed shapes for the lean backend."""
    if isinstance(backend, EncoderDecoderBackend):
        return EncoderDecoderTrunk(backend, exits)
    if graphs and isinstance(backend, LeanBackend) and backend.device.type == "cuda":
        return CudaGraphTrunk(backend, exits)
    return Trunk(backend, exits)
