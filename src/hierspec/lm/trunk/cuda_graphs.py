"""A trunk for accelerators: calls of a few fixed shapes, recorded as graphs; drafts without waits.

Every sequence's cache is a row of one arena (:mod:`hierspec.lm.trunk.arena`). A call is rounded up
to a *bucket*: sequences, tokens and attended columns to powers of two; the padding writes to the
scratch column. A call is one replay, however many segments it runs, and so is a draft of n tokens:
each token is picked on the device and fed to the next step there, so that the host waits once, for
all of them. Long prompts use the normal path, through views of the same memory.

Recording takes some milliseconds, once a shape: a generation has few.
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
from hierspec.lm.base import Drafted, Query, Slot
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.utils.graphs import Body, Graphs, upload

from .arena import Arena
from .encoder_decoder import EncoderDecoderBackend, EncoderDecoderTrunk
from .slots import SlotState, Work
from .trunk import ExitModel, ScoreHead, Trunk

_MOST_TOKENS = 32  # of a sequence in one call of fixed shape; more are a prompt
_FEWEST_COLUMNS = 256


class _Shape(NamedTuple):
    """The shape that a call is recorded for.

    Attributes:
        rows: B sequences, those of rows 0 … B − 1 of the arena.
        fed: tokens per sequence that each segment takes, lowest first; 0: it has seen them all.
        asked: rows of scores per sequence.
        seen: columns attended to.
    """

    rows: int
    fed: tuple[int, ...]
    asked: int
    seen: int


class _Call(NamedTuple):
    """Static tensors of a recorded call; the integer ones are views of ``sent`` [B, …] int64."""

    sent: Tensor
    ids: Tensor  # [B, fed[0]]
    at: list[Tensor]  # per segment, [B, fed[s]]: positions
    asked: Tensor  # [B, asked]: positions
    scores: Tensor  # [B, asked, V]


class _Loop(NamedTuple):
    """Static tensors of a recorded draft of n tokens."""

    call: _Call
    uniforms: Tensor  # [B, n] float64
    found: Tensor  # [3, B, n] float64: tokens, whether each could be picked, a window's signals
    probs: Tensor | None  # [n, B, V]


class CudaGraphTrunk(Trunk):
    """A :class:`~hierspec.lm.trunk.trunk.Trunk` of a lean backend that runs recorded calls.

    It runs on CPUs as well, without recording anything; ordinary trunks are faster there.
    """

    backend: LeanBackend
    graphs: Graphs

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
            slot.held, slot.agreed = [], 0
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
            work = [self.prepare(query) for query in queries]
            shape = self._shape(work, index)
        if max(*shape.fed, shape.asked) > _MOST_TOKENS:
            return super().score(queries, index, head)
        with torch.inference_mode():
            key = ("score", index, head, shape)
            found = self.graphs.get(key, lambda: self._new_call(shape, index, head))
            call = found.tensors
            upload(call.sent, self._inputs(work, shape))
            found.run()
            self._record_work(work, index, shape)
            self.counters.head_rows += shape.rows * shape.asked
        # A copy, for the next call writes there; outside inference mode, so that callers may edit.
        with torch.no_grad():
            return torch.cat([call.scores[w.state.row, : w.end - w.first] for w in work])

    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        steps: int,
        sampler: Sampler,
        uniforms: Sequence[Uniforms],
        index: int,
        head: ScoreHead | None = None,
    ) -> Drafted:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`: ``steps`` tokens each, then cut."""
        longest = max(len(query.context) for query in queries) + steps - 1
        for query in queries:
            self.rewind(query.slot, len(query.context))
            self.make_room(query.slot, longest)
        with torch.inference_mode():
            work = [self.prepare(query) for query in queries]
            if max(self._shape(work, index).fed) > _MOST_TOKENS:
                super().score(queries, index, head)  # a prompt, in passes of its own
            shape = self._shape(work, index, steps - 1)
            key = ("draft", index, head, shape, steps, sampler)
            call = self.graphs.get(key, lambda: self._new_loop(shape, index, head, steps, sampler))
            loop: _Loop = call.tensors
            upload(loop.call.sent, self._inputs(work, shape))
            if not sampler.greedy:
                upload(loop.uniforms, self._by_row(work, uniforms, shape.rows, steps))
            call.run()
            tokens, ok, signals = loop.found.tolist()  # the one wait
        rows = [w.state.row for w in work]
        if not all(all(ok[row][:n]) for row, n in zip(rows, counts, strict=True)):
            raise NoDistributionError
        self._record_work(work, index, shape)
        self.counters.head_rows += shape.rows * steps
        drafts = [[*map(int, tokens[row][:n])] for row, n in zip(rows, counts, strict=True)]
        for query, draft in zip(queries, drafts, strict=True):
            query.slot.held += draft[:-1]
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
        return Drafted(drafts, distributions, steps, values if sampler.signal else None)

    # --- what goes to the device

    def _shape(self, work: Sequence[Work], index: int, further: int = 0) -> _Shape:
        """Return the bucket of a call that is followed by ``further`` steps of one token each."""
        fed = [max(w.end - w.state.lengths[s] for w in work) for s in range(index + 1)]
        end = max(w.end for w in work) + further
        return _Shape(
            rows=_bucket(max(w.state.row for w in work) + 1),
            fed=tuple(_bucket(n) if n > 0 else 0 for n in fed),
            asked=_bucket(max(w.end - w.first for w in work)),
            seen=min(self.arena.capacity, max(_FEWEST_COLUMNS, _bucket(end))),
        )

    def _inputs(self, work: Sequence[Work], shape: _Shape) -> list[list[int]]:
        """Return [B, …]: token ids, each segment's positions and the positions asked, padded."""
        nowhere = self.arena.capacity
        ids, sizes = shape.fed[0], (*shape.fed, shape.asked)
        width = ids + sum(sizes)
        rows = [[0] * ids + [nowhere] * (width - ids) for _ in range(shape.rows)]
        for w in work:
            row, column = rows[w.state.row], ids
            new = self.embeddable(w.held[w.state.lengths[0] : w.end])
            row[: len(new)] = new
            for start, n in zip((*w.state.lengths[: len(shape.fed)], w.first), sizes, strict=True):
                places = range(start, w.end)  # empty where a segment is ahead
                row[column : column + len(places)] = places
                column += n
        return rows

    @staticmethod
    def _by_row(
        work: Sequence[Work], values: Sequence[Uniforms], rows: int, width: int
    ) -> list[list[float]]:
        out = [[0.0] * width for _ in range(rows)]
        for w, own in zip(work, values, strict=True):
            out[w.state.row][: len(own)] = own
        return out

    def _record_work(self, work: Sequence[Work], index: int, shape: _Shape) -> None:
        """Update lengths and counters by what a call has computed; only once it has run."""
        for segment in range(index + 1):
            if shape.fed[segment]:
                self.counters.calls[segment] += 1
            for w in work:
                self.counters.tokens[segment] += max(0, w.end - w.state.lengths[segment])
                w.state.lengths[segment] = max(w.end, w.state.lengths[segment])

    # --- what is recorded: nothing here may wait for the device

    def _new_call(self, shape: _Shape, index: int, head: ScoreHead | None) -> tuple[_Call, Body]:
        device, ids = self.backend.device, shape.fed[0]
        width = ids + sum(shape.fed) + shape.asked
        sent = torch.zeros(shape.rows, width, dtype=torch.long, device=device)
        sent[:, ids:] = self.arena.capacity
        parts = sent.split([ids, *shape.fed, shape.asked], 1)
        size = (shape.rows, shape.asked, self.backend.vocab_size)
        scores = torch.zeros(size, dtype=self.backend.dtype, device=device)
        call = _Call(sent, parts[0], list(parts[1:-1]), parts[-1], scores)

        def body() -> None:
            for segment in range(index + 1):
                if shape.fed[segment]:
                    self._run_on_device(segment, call.ids, call.at[segment], shape)
            scores.copy_(self._scores(call.asked, index, head))

        return call, body

    def _new_loop(
        self, shape: _Shape, index: int, head: ScoreHead | None, steps: int, sampler: Sampler
    ) -> tuple[_Loop, Body]:
        call, first = self._new_call(shape, index, head)
        device, size = self.backend.device, (shape.rows, steps)
        uniforms = torch.zeros(size, dtype=torch.float64, device=device)
        found = torch.zeros(3, *size, dtype=torch.float64, device=device)
        width = min(sampler.vocab_size, self.backend.vocab_size)
        probs = None
        if not sampler.greedy:
            probs = torch.zeros(steps, shape.rows, width, dtype=self.backend.dtype, device=device)
        nowhere = self.arena.capacity

        def body() -> None:
            first()
            scores, last = call.scores[:, 0], call.asked
            for step in range(steps):
                picked = sampler.pick_on_device(scores, uniforms[:, step])
                found[0, :, step], found[1, :, step] = picked.tokens, picked.ok
                if picked.signals is not None:
                    found[2, :, step] = picked.signals
                if probs is not None:
                    assert picked.probs is not None
                    probs[step] = picked.probs
                if step + 1 < steps:
                    at = torch.where(last < nowhere, last + 1 + step, nowhere)
                    for segment in range(index + 1):
                        self._run_on_device(segment, picked.tokens.unsqueeze(1), at, shape)
                    scores = self._scores(at, index, head)[:, 0]

        return _Loop(call, uniforms, found, probs), body

    def _run_on_device(self, segment: int, ids: Tensor, at: Tensor, shape: _Shape) -> None:
        """Run tokens at positions ``at`` [B, n] through one segment, and write to its edge."""
        rows = torch.arange(shape.rows, device=at.device).unsqueeze(1)
        if segment == 0:
            h = self.forward.embed(ids)
        else:
            h = self.arena.edges[segment - 1][rows, at].flatten(0, 1)
        bounds = self.bounds[segment]
        h = self.forward.layers(h, *bounds, self.arena.cache, at, shape.seen)
        self.arena.edges[segment].index_put_((rows, at), h.unflatten(0, at.shape))

    def _scores(self, at: Tensor, index: int, head: ScoreHead | None) -> Tensor:
        """Return an exit's scores [B, n, V] at positions ``at`` [B, n]."""
        rows = torch.arange(at.shape[0], device=at.device).unsqueeze(1)
        h = self.arena.edges[index][rows, at].flatten(0, 1)
        return (head or self.backend.head)(h).unflatten(0, at.shape)


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
    ) -> Drafted:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`."""
        return self.trunk.draft(queries, counts, steps, sampler, uniforms, self.index, self.head)


def trunk_for(backend: Backend, exits: Sequence[int] = (), *, graphs: bool = True) -> Trunk:
    """Return the trunk for a backend: of fixed shapes on CUDA, for the models lean can run."""
    if isinstance(backend, EncoderDecoderBackend):
        return EncoderDecoderTrunk(backend, exits)
    if graphs and isinstance(backend, LeanBackend) and backend.device.type == "cuda":
        return CudaGraphTrunk(backend, exits)
    return Trunk(backend, exits)
