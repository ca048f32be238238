"""A trunk for accelerators: calls of a few fixed shapes, recorded as graphs; drafts without waits.

Every sequence's cache is a row of one arena (:mod:`hierspec.lm.trunk.arena`). A call is rounded up
to a *bucket*: sequences, tokens and attended columns to powers of two; the padding writes to the
scratch column. A call is one replay, however many segments it runs, and so is a draft of n tokens:
each token is picked on the device and fed to the next step there, so that the host waits once, for
all of them. Long prompts use the normal path, through views of the same memory.

Recording takes some milliseconds for each shape; a generation has few shapes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hierspec.core.distributions import Uniforms
from hierspec.lm.backend import Backend
from hierspec.lm.base import DeviceDrafts, DeviceTrees, Query, Slot
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.lm.lean.fused import CallPlaces, NodePlaces
from hierspec.lm.trees import Branches
from hierspec.sampling.sampler import Sampler
from hierspec.utils.graphs import Body, Graphs, upload

from .arena import Arena
from .device_drafts import DeviceLoop
from .device_trees import draft_trees
from .slots import PreparedQuery, SlotState
from .trunk import ExitModel, ScoreHead, Trunk, TrunkModel

MAX_TOKENS = 32  # of a sequence in one call of fixed shape; longer ones are prompts
_FEW_TOKENS = 8
_MIN_COLUMNS = 512


class _Shape(NamedTuple):
    """The shape that a call is recorded for.

    Attributes:
        rows: B sequences, those of rows 0 … B − 1 of the arena.
        num_tokens: per sequence, through each stretch of layers, lowest first; 0: it has seen them
            all.
        num_scores: rows of scores per sequence.
        num_columns: attended to.
    """

    rows: int
    num_tokens: tuple[int, ...]
    num_scores: int
    num_columns: int


class StaticCall(NamedTuple):
    """Static tensors of a recorded call; the integer ones are views of ``inputs`` [B, …] int64."""

    inputs: Tensor
    ids: Tensor  # [B, num_tokens[0]]
    positions: list[Tensor]  # per stretch of layers, [B, num_tokens[s]]
    score_positions: Tensor  # [B, num_scores]
    num_columns: int
    scores: Tensor  # [B, num_scores, V]


class RecordedModel(TrunkModel):
    """A model on the slots of a trunk of fixed shapes, whose calls are recorded: it drafts on its
    device. A base before the class that says what is run, whose normal path it falls back to.

    Attributes:
        key: tells its recordings from those of the trunk's other models.
    """

    trunk: CudaGraphTrunk
    backend: LeanBackend
    key: Hashable

    @abstractmethod
    def starts(self, item: PreparedQuery) -> list[int]:
        """Return the first token that each stretch of layers must run for a query."""

    # Nothing in these two may wait for the device.

    @abstractmethod
    def run_call(self, call: StaticCall) -> Tensor:
        """Return scores [B, num_scores, V]."""

    @abstractmethod
    def run_step(self, ids: Tensor, places: CallPlaces) -> Tensor:
        """Return scores [B, n, V] after tokens [B, n]."""

    def score(self, queries: Sequence[Query]) -> Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`. Trees differ from call to call, and
        long texts are seldom equally long: both use the normal path."""
        if any(query.tree is not None for query in queries):
            return super().score(queries)
        with torch.inference_mode():
            prepared, starts, shape = self._prepare(queries)
        if max(*shape.num_tokens, shape.num_scores) > MAX_TOKENS:
            return super().score(queries)
        with torch.inference_mode():
            graph = self.trunk.graphs.get(("score", self.key, shape), lambda: self._new_call(shape))
            call: StaticCall = graph.tensors
            upload(call.inputs, self._inputs(prepared, starts, shape))
            graph.run()
            for item in prepared:
                self.store(item.state, item.end)
        # A copy, for the next call writes there; outside inference mode, so that callers may edit.
        with torch.no_grad():
            parts = [call.scores[item.state.row, : item.end - item.first] for item in prepared]
            return torch.cat(parts)

    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        samplers: Sequence[Sampler],
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`: ``max(counts)`` tokens each, then cut."""
        with torch.inference_mode():
            loop, prepared = self._begin_draft(queries, max(counts) - 1, samplers[0])
            out = loop.draft(counts, uniforms)
        for query, item, draft in zip(queries, prepared, out.tokens, strict=True):
            query.slot.tokens += draft[:-1]
            self.store(item.state, item.end + len(draft) - 1)
        return out

    def draft_trees(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        width: int,
        sampler: Sampler,
        uniforms: Sequence[np.ndarray] | None,
        distinct: bool,
    ) -> DeviceTrees:
        """See :meth:`hierspec.lm.base.DeviceTreeModel.draft_trees`. All nodes but the last depth's
        are stored behind the text, equal ones too."""
        with torch.inference_mode():
            num_stored = width * (max(counts) - 1)
            loop, prepared = self._begin_draft(queries, num_stored, sampler)
            out, nodes = draft_trees(loop, counts, width, uniforms, distinct)
        for item, depths in zip(prepared, nodes, strict=True):
            branches, above = Branches(item.end), list[int]()
            for depth in depths[:-1]:
                above = [branches.store_child(above[p] if above else -1, t) for p, t in depth]
            item.state.branches = branches
            self.store(item.state, item.end + width * (len(depths) - 1))
        return out

    def _begin_draft(
        self, queries: Sequence[Query], num_stored: int, sampler: Sampler
    ) -> tuple[DeviceLoop, list[PreparedQuery]]:
        """Return how to draft, and the queries.

        ``num_stored``: how many tokens will be stored behind each text.
        """
        trunk, backend = self.trunk, self.backend
        longest = max(len(query.context) for query in queries) + num_stored
        for query in queries:
            trunk.make_room(query.slot, longest)
        prepared, starts, shape = self._prepare(queries, num_stored)
        if max(shape.num_tokens) > MAX_TOKENS:
            super().score(queries)  # a prompt, in passes of its own
            prepared, starts, shape = self._prepare(queries, num_stored)
        for query in queries:
            trunk.rewind(query.slot, len(query.context))

        def make() -> tuple[StaticCall, Callable[[], tuple[Tensor, Tensor]]]:
            call, run = self._new_call(shape)

            def scored() -> tuple[Tensor, Tensor]:
                run()
                return call.scores[:, 0], call.score_positions

            return call, scored

        def step(ids: Tensor, positions: Tensor, nodes: NodePlaces | None) -> Tensor:
            places = trunk.forward.places(positions, shape.num_columns, nodes)
            return self.run_step(ids, places)

        def fill(call: StaticCall) -> None:
            upload(call.inputs, self._inputs(prepared, starts, shape))

        loop = DeviceLoop(
            graphs=trunk.graphs,
            key=(self.key, shape.num_columns),
            batch=shape.rows,
            sampler=sampler,
            scratch=trunk.arena.capacity,
            width=backend.vocab_size,
            dtype=backend.dtype,
            device=backend.device,
            first_key=shape,
            make=make,
            fill=fill,
            step=step,
            rows=[item.state.row for item in prepared],
        )
        return loop, prepared

    def _prepare(
        self, queries: Sequence[Query], num_stored: int | None = None
    ) -> tuple[list[PreparedQuery], list[list[int]], _Shape]:
        """Return prepared queries, the first token that each stretch of layers runs for them, and
        the bucket of the call; after it ``num_stored`` further tokens are stored, in a draft."""
        prepared = [self.trunk.prepare(query) for query in queries]
        starts = [self.starts(item) for item in prepared]
        # After a check one token is missing, or two.
        least = 1 if num_stored is None else 2
        ends = [item.end for item in prepared]
        missing = [
            max(end - start for end, start in zip(ends, stretch, strict=True))
            for stretch in zip(*starts, strict=True)
        ]
        shape = _Shape(
            rows=power_of_two(max(item.state.row for item in prepared) + 1),
            num_tokens=tuple(token_bucket(n, least) if n > 0 else 0 for n in missing),
            num_scores=token_bucket(max(item.end - item.first for item in prepared)),
            num_columns=column_bucket(max(ends) + (num_stored or 0), self.trunk.arena.capacity),
        )
        return prepared, starts, shape

    def _inputs(
        self, prepared: Sequence[PreparedQuery], starts: list[list[int]], shape: _Shape
    ) -> list[list[int]]:
        """Return [B, …]: token ids, the positions in each stretch of layers and those of the
        scores, padded."""
        width, sizes = shape.num_tokens[0], (*shape.num_tokens, shape.num_scores)
        padding = [0] * width + [self.trunk.arena.capacity] * sum(sizes)
        rows = [list(padding) for _ in range(shape.rows)]
        for item, own in zip(prepared, starts, strict=True):
            row, column = rows[item.state.row], width
            new = self.trunk.replace_unknown(item.tokens[own[0] : item.end])
            row[: len(new)] = new
            for start, n in zip((*own, item.first), sizes, strict=True):
                positions = range(start, item.end)  # empty where these layers are ahead
                row[column : column + len(positions)] = positions
                column += n
        return rows

    def _new_call(self, shape: _Shape) -> tuple[StaticCall, Body]:
        device, sizes = self.backend.device, (*shape.num_tokens, shape.num_scores)
        width = shape.num_tokens[0]
        inputs = torch.zeros(shape.rows, width + sum(sizes), dtype=torch.long, device=device)
        inputs[:, width:] = self.trunk.arena.capacity
        ids, *positions, score_positions = inputs.split([width, *sizes], 1)
        size = (shape.rows, shape.num_scores, self.backend.vocab_size)
        scores = self.trunk.graphs.buffer("scores", size, self.backend.dtype, device)
        call = StaticCall(inputs, ids, positions, score_positions, shape.num_columns, scores)

        def body() -> None:
            scores.copy_(self.run_call(call))

        return call, body


class CudaGraphTrunk(Trunk):
    """A :class:`~hierspec.lm.trunk.trunk.Trunk` of a lean backend that runs recorded calls.

    It runs on CPUs as well, without recording anything; ordinary trunks are faster there.
    """

    backend: LeanBackend
    graphs: Graphs

    def __init__(self, backend: LeanBackend, exits: Sequence[int] = ()) -> None:
        super().__init__(backend, exits)
        self.forward = FixedShapeForward(backend)
        self.graphs = Graphs(backend.device)
        self.arena = Arena(self.forward, len(self.exits), self.graphs.clear)

    def exit_model(self, index: int, head: ScoreHead | None = None) -> ExitModel:
        return CudaGraphExitModel(self, index, head)

    def make_room(self, slot: Slot, end: int) -> SlotState:
        if slot.state is not None and slot.state.row < 0:  # compacted: back into the arena
            slot.state = self.fork(slot, len(slot.tokens)).state
        if slot.state is None:
            self.rewind(slot, 0)
            slot.state = self.arena.new_state(end)
        elif end > self.arena.capacity:
            self.arena.grow(end)
        return slot.state

    def reserve(self, num_tokens: int) -> None:
        self.arena.reserve(min(num_tokens, self.backend.max_length) + MAX_TOKENS)


class CudaGraphExitModel(RecordedModel, ExitModel):
    """An exit of a :class:`CudaGraphTrunk`: each token goes once through each segment."""

    trunk: CudaGraphTrunk
    backend: LeanBackend

    @property
    def key(self) -> Hashable:
        return self.index, self.head

    def starts(self, item: PreparedQuery) -> list[int]:
        return item.state.lengths[: self.index + 1]

    def run_call(self, call: StaticCall) -> Tensor:
        for segment, positions in enumerate(call.positions):
            if positions.shape[1]:
                places = self.trunk.forward.places(positions, call.num_columns)
                self._run_segment(segment, call.ids, places)
        return self._scores(call.score_positions)

    def run_step(self, ids: Tensor, places: CallPlaces) -> Tensor:
        for segment in range(self.index + 1):
            self._run_segment(segment, ids, places)
        return self._scores(places.columns)

    def _run_segment(self, segment: int, ids: Tensor, places: CallPlaces) -> None:
        trunk, at = self.trunk, (places.rows, places.columns)
        if segment == 0:
            h = trunk.forward.embed(ids)
        else:
            h = trunk.arena.outputs[segment - 1][at].flatten(0, 1)
        h = trunk.forward.layers(h, *trunk.bounds[segment], trunk.arena.cache, places)
        trunk.arena.outputs[segment].index_put_(at, h.unflatten(0, places.columns.shape))

    def _scores(self, columns: Tensor) -> Tensor:
        rows = torch.arange(len(columns), device=columns.device).unsqueeze(1)
        h = self.trunk.arena.outputs[self.index][rows, columns].flatten(0, 1)
        return (self.head or self.backend.head)(h).unflatten(0, columns.shape)


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


def trunk_for(backend: Backend, exits: Sequence[int] = (), *, graphs: bool = True) -> Trunk:
    """Return the trunk for a backend: its own kind, or on CUDA, for lean ones, of fixed shapes."""
    if (new_trunk := getattr(backend, "new_trunk", None)) is not None:
        return new_trunk(exits)
    if graphs and isinstance(backend, LeanBackend) and backend.device.type == "cuda":
        return CudaGraphTrunk(backend, exits)
    return Trunk(backend, exits)
