"""Drafts on a device: each token is picked there and fed to the next step, and one wait reads all.

A draft is a first call, which brings the caches up to date and picks a token, and a step for every
further one. All steps of a shape are one recording, whatever the length of a draft: what differs
from step to step, its number, is in a tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    Uniforms,
)
from hierspec.lm.base import DeviceDrafts
from hierspec.lm.lean.fused import NodePlaces
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.utils.graphs import Body, Graphs, upload

_ROOM = 16  # tokens of a draft that memory is kept for, at least


DeviceStep = Callable[[Tensor, Tensor, NodePlaces | None], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Memory(ABC):
    """Static tensors that the first call of a draft and its steps share.

    Attributes:
        number: [1] of the step.
        last: [B, 1] positions of the texts' last tokens.
        random: [n, B, …] what tokens are drawn with, step by step; ``None`` where nothing is drawn.
    """

    number: Tensor
    last: Tensor
    random: Tensor | None

    @abstractmethod
    def begin(self, sampler: Sampler, scores: Tensor) -> None:
        """Pick what follows the texts, from scores [B, V]."""

    @abstractmethod
    def go_on(self, sampler: Sampler, scratch: int, step: DeviceStep) -> None:
        """Feed what step ``number`` − 1 picked to the model, and pick again."""


M = TypeVar("M", bound=Memory)


class DeviceLoop(NamedTuple):
    """How drafts of B sequences are made.

    Attributes:
        key: of a step's recording: what makes it differ from others, but for the tensors' shapes.
        scratch: the position of tokens that only fill a shape up.
        width: V, of the scores.
        first_key: of the first call's recording.
        make: → its static tensors, and its body, which leaves scores [B, V] of the tokens that
            follow, and the last positions [B, 1] of the texts.
        fill: writes this draft's inputs into the static tensors.
        step: tokens [B, n] and their positions; where they are nodes of trees → scores [B, n, V].
        rows: of the B rows, that of each draft.
    """

    graphs: Graphs
    key: Hashable
    batch: int
    sampler: Sampler
    scratch: int
    width: int
    dtype: torch.dtype
    device: torch.device
    first_key: Hashable
    make: Callable[[], tuple[Any, Callable[[], tuple[Tensor, Tensor]]]]
    fill: Callable[[Any], None]
    step: DeviceStep
    rows: list[int]

    def draft(self, counts: Sequence[int], uniforms: Sequence[Uniforms]) -> DeviceDrafts:
        """Draft ``counts[b]`` tokens in row ``rows[b]`` of B.

        Raises:
            NoDistributionError: some row of scores has NaN or forbids every token.
        """
        longest, sampler, rows = max(counts), self.sampler, self.rows
        room = max(_ROOM, 1 << (longest - 1).bit_length())
        memory = self.run(partial(_Memory.of, self, room), ("draft", room), longest, uniforms)
        tokens, ok, signals = memory.results[:, :, :longest].tolist()  # the one wait
        if not all(all(ok[row][:n]) for row, n in zip(rows, counts, strict=True)):
            raise NoDistributionError
        drafts = [[*map(int, tokens[row][:n])] for row, n in zip(rows, counts, strict=True)]
        distributions: list[Distributions] = []
        with torch.no_grad(), torch.inference_mode(False):
            for row, draft in zip(rows, drafts, strict=True):
                if memory.probs is None:
                    distributions.append(OneHotDistributions(tuple(draft)))
                else:  # a copy, because the next draft writes there
                    own = memory.probs[: len(draft), row]
                    distributions.append(DenseDistributions(own.clone()))
        values = [signals[row][:n] for row, n in zip(rows, counts, strict=True)]
        return DeviceDrafts(drafts, distributions, longest, values if sampler.signal else None)

    def run(
        self,
        make_memory: Callable[[], M],
        kind: Hashable,
        longest: int,
        numbers: Sequence[Any],
    ) -> M:
        """Run a draft of ``longest`` steps; return the memory that its results are in.

        Args:
            kind: of the memory, for the keys of recordings.
            numbers: for each of ``rows``, what its tokens are drawn with, step by step.
        """
        sampler = self.sampler

        def begin() -> tuple[Any, Body]:
            (tensors, run), memory = self.make(), make_memory()

            def body() -> None:
                scores, last = run()
                memory.last.copy_(last)
                memory.begin(sampler, scores)

            return (tensors, memory), body

        step, scratch = self.step, self.scratch  # not with ``fill``, which holds sequences' rows

        def go_on() -> tuple[None, Body]:
            memory = make_memory()
            return None, lambda: memory.go_on(sampler, scratch, step)

        calls: dict[Hashable, Callable[[], tuple[Any, Body]]] = {
            ("first", self.first_key, self.key, sampler, kind): begin
        }
        if longest > 1:
            calls["step", self.key, self.batch, sampler, kind] = go_on
        first, *steps = self.graphs.get_together(calls)
        tensors, memory = first.tensors
        self.fill(tensors)
        if memory.random is not None:
            padded = np.zeros((longest, *memory.random.shape[1:]))
            for row, values in zip(self.rows, numbers, strict=True):
                padded[: len(values), row] = values
            upload(memory.random[:longest], padded)
        for number in range(longest):
            memory.number.fill_(number)
            (steps[0] if number else first).run()
        return memory


@dataclass(frozen=True, slots=True, eq=False)
class _Memory(Memory):
    """That of drafts of up to n tokens, drawn with uniforms [n, B], or noise [n, B, V] where they
    race.

    Attributes:
        results: [3, B, n] float64: tokens, whether each could be picked, a window's signals.
        probs: [n, B, V]; ``None`` where one-hot.
    """

    results: Tensor
    probs: Tensor | None

    @classmethod
    def of(cls, loop: DeviceLoop, room: int) -> _Memory:
        batch, sampler = loop.batch, loop.sampler
        buffer = partial(loop.graphs.buffer, device=loop.device)
        width = min(sampler.vocab_size, loop.width)
        drawn, dense = not sampler.greedy, not (sampler.greedy or sampler.races)
        size = (room, batch, width) if sampler.races else (room, batch)
        return cls(
            buffer("number", (1,), torch.long),
            buffer("last", (batch, 1), torch.long),
            buffer("random", size, torch.float64) if drawn else None,
            buffer("results", (3, batch, room), torch.float64),
            buffer("probs", (room, batch, width), loop.dtype) if dense else None,
        )

    def go_on(self, sampler: Sampler, scratch: int, step: DeviceStep) -> None:
        before = self.results[0].index_select(1, self.number - 1).long()
        positions = torch.where(self.last < scratch, self.last + self.number, scratch)
        self.begin(sampler, step(before, positions, None)[:, 0])

    def begin(self, sampler: Sampler, scores: Tensor) -> None:
        random = scores  # not looked at
        if self.random is not None:
            random = self.random.index_select(0, self.number).squeeze(0)
        picked = sampler.pick_on_device(scores, random)
        signals = picked.ok if picked.signals is None else picked.signals
        parts = [part.double() for part in (picked.tokens, picked.ok, signals)]
        self.results.index_copy_(2, self.number, torch.stack(parts).unsqueeze(2))
        if self.probs is not None:
            assert picked.probs is not None
            self.probs.index_copy_(0, self.number, picked.probs.unsqueeze(0))
