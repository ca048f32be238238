"""A trunk for accelerators: calls of a few fixed shapes, recorded as graphs; drafts without waits.

Every sequence's cache is a row of one arena (:mod:`hierspec.lm.trunk.arena`). A call is rounded up
to a *bucket*: sequences, tokens and attended columns to powers of two; the padding writes to the
scratch column. A call is one replay, however many segments it runs, and so is a draft of n tokens:
each token is picked on the device and fed to the next step there, so that the host waits once, for
all of them. Long prompts use the normal path, through views of the same memory.

Recording takes some milliseconds for each shape; a generation has few shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    Uniforms,
)
from hierspec.lm.backend import Backend
from hierspec.lm.base import DeviceDrafts, Query, Slot
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.utils.graphs import Body, Graphs, upload

from .arena import Arena
from .encoder_decoder import EncoderDecoderBackend, EncoderDecoderTrunk
from .slots import PreparedQuery, SlotState
from .trunk import ExitModel, ScoreHead, Trunk

_MAX_TOKENS = 32  # of a sequence in one call of fixed shape; longer ones are prompts
_MIN_COLUMNS = 256


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


class _Loop(NamedTuple):
    """Static tensors of a recorded draft of n tokens."""

    call: _Call
    uniforms: Tensor  # [B, n] float64
    results: Tensor  # [3, B, n] float64: tokens, whether each could be picked, a window's signals
    probs: Tensor | None  # [n, B, V]


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

    def compact(self, slot: Slot) -> None:
        """Leave the slot as it is: all rows of the arena are equally long."""

    def score(self, queries: Sequence[Query], index: int, head: ScoreHead | None = None) -> Tensor:
        if any(query.tree is not None for query in queries):
            return super().score(queries, index, head)  # trees differ from call to call
        with torch.inference_mode():
            prepared = [self.prepare(query) for query in queries]
            shape = self._shape(prepared, index)
        if max(*shape.num_tokens, shape.num_scores) > _MAX_TOKENS:
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
        """See :meth:`hierspec.lm.base.DeviceModel.draft`: ``steps`` tokens each, then cut."""
        longest = max(len(query.context) for query in queries) + steps - 1
        for query in queries:
            self.rewind(query.slot, len(query.context))
            self.make_room(query.slot, longest)
        with torch.inference_mode():
            prepared = [self.prepare(query) for query in queries]
            if max(self._shape(prepared, index).num_tokens) > _MAX_TOKENS:
                super().score(queries, index, head)  # a prompt, in passes of its own
            shape = self._shape(prepared, index, steps - 1)
            key = ("draft", index, head, shape, steps, sampler)
            graph = self.graphs.get(key, lambda: self._new_loop(shape, index, head, steps, sampler))
            loop: _Loop = graph.tensors
            upload(loop.call.inputs, self._inputs(prepared, shape))
            rows = [item.state.row for item in prepared]
            if not sampler.greedy:
                padded = [[0.0] * steps for _ in range(shape.rows)]
                for row, values in zip(rows, uniforms, strict=True):
                    padded[row][: len(values)] = values
                upload(loop.uniforms, padded)
            graph.run()
            tokens, ok, signals = loop.results.tolist()  # the one wait
        if not all(all(ok[row][:n]) for row, n in zip(rows, counts, strict=True)):
            raise NoDistributionError
        self._update_lengths(prepared, index, shape)
        self.counters.head_rows += shape.rows * steps
        drafts = [[*map(int, tokens[row][:n])] for row, n in zip(rows, counts, strict=True)]
        for query, draft in zip(queries, drafts, strict=True):
            query.slot.tokens += draft[:-1]
            state = query.slot.state
            for segment in range(index + 1):
                state.lengths[segment] += len(draft) - 1
        for segment in range(index + 1):
            self.counters.calls[segment] += steps - 1
            self.counters.tokens[segment] += sum(len(draft) - 1 for draft in drafts)
        distributions: list[Distributions] = []
        with torch.no_grad():
            for row, draft in zip(rows, drafts, strict=True):
                if loop.probs is None:
                    distributions.append(OneHotDistributions(tuple(draft)))
                else:  # a copy, because the next draft writes there
                    distributions.append(DenseDistributions(loop.probs[: len(draft), row].clone()))
        values = [signals[row][:n] for row, n in zip(rows, counts, strict=True)]
        return DeviceDrafts(drafts, distributions, steps, values if sampler.signal else None)

    # --- inputs of a call

    def _shape(self, prepared: Sequence[PreparedQuery], index: int, steps: int = 0) -> _Shape:
        """Return the bucket of a call that is followed by ``steps`` steps of one token each."""
        segments = range(index + 1)
        missing = [max(item.end - item.state.lengths[s] for item in prepared) for s in segments]
        end = max(item.end for item in prepared) + steps
        return _Shape(
            rows=_bucket(max(item.state.row for item in prepared) + 1),
            num_tokens=tuple(_bucket(n) if n > 0 else 0 for n in missing),
            num_scores=_bucket(max(item.end - item.first for item in prepared)),
            num_columns=min(self.arena.capacity, max(_MIN_COLUMNS, _bucket(end))),
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
        scores = torch.zeros(size, dtype=self.backend.dtype, device=device)
        call = _Call(inputs, ids, positions, score_positions, scores)

        def body() -> None:
            for segment in range(index + 1):
                if shape.num_tokens[segment]:
                    self._run_on_device(segment, ids, positions[segment], shape)
            scores.copy_(self._scores(score_positions, index, head))

        return call, body

    def _new_loop(
        self, shape: _Shape, index: int, head: ScoreHead | None, steps: int, sampler: Sampler
    ) -> tuple[_Loop, Body]:
        call, run_call = self._new_call(shape, index, head)
        device, size = self.backend.device, (shape.rows, steps)
        uniforms = torch.zeros(size, dtype=torch.float64, device=device)
        results = torch.zeros(3, *size, dtype=torch.float64, device=device)
        width = min(sampler.vocab_size, self.backend.vocab_size)
        probs = None
        if not sampler.greedy:
            probs = torch.zeros(steps, shape.rows, width, dtype=self.backend.dtype, device=device)
        scratch = self.arena.capacity

        def body() -> None:
            run_call()
            scores, last = call.scores[:, 0], call.score_positions
            for step in range(steps):
                picked = sampler.pick_on_device(scores, uniforms[:, step])
                results[0, :, step], results[1, :, step] = picked.tokens, picked.ok
                if picked.signals is not None:
                    results[2, :, step] = picked.signals
                if probs is not None:
                    assert picked.probs is not None
                    probs[step] = picked.probs
                if step + 1 < steps:
                    positions = torch.where(last < scratch, last + 1 + step, scratch)
                    for segment in range(index + 1):
                        self._run_on_device(segment, picked.tokens.unsqueeze(1), positions, shape)
                    scores = self._scores(positions, index, head)[:, 0]

        return _Loop(call, uniforms, results, probs), body

    def _run_on_device(self, segment: int, ids: Tensor, positions: Tensor, shape: _Shape) -> None:
        """Run the tokens at ``positions`` [B, n] through one segment, and store its outputs."""
        rows = torch.arange(shape.rows, device=positions.device).unsqueeze(1)
        if segment == 0:
            h = self.forward.embed(ids)
        else:
            h = self.arena.outputs[segment - 1][rows, positions].flatten(0, 1)
        bounds, columns = self.bounds[segment], shape.num_columns
        h = self.forward.layers(h, *bounds, self.arena.cache, positions, columns)
        outputs = h.unflatten(0, positions.shape)
        self.arena.outputs[segment].index_put_((rows, positions), outputs)

    def _scores(self, positions: Tensor, index: int, head: ScoreHead | None) -> Tensor:
        """Return an exit's scores [B, n, V] at ``positions`` [B, n]."""
        rows = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        h = self.arena.outputs[index][rows, positions].flatten(0, 1)
        return (head or self.backend.head)(h).unflatten(0, positions.shape)


def _bucket(n: int) -> int:
    """Return the next power of two, at least ``n``."""
    return 1 << (n - 1).bit_length()


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
