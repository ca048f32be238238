"""Drafts on a device: each token is picked there and fed to the next step, and one wait reads all.

A draft is a first call, which brings the caches up to date and picks a token, and a step for every
further one. All steps of a shape are one recording, whatever the length of a draft: what differs
from step to step, its number, is in a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

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
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.utils.graphs import Body, Graphs, upload

_ROOM = 16  # tokens of a draft that memory is kept for, at least


class FirstScores(NamedTuple):
    """What a first call leaves: scores [B, V] of the tokens that follow, and the last positions
    [B, 1] of the texts."""

    scores: Tensor
    last: Tensor


# → the call's static tensors, and its body
MakeFirst = Callable[[], tuple[Any, Callable[[], FirstScores]]]
DeviceStep = Callable[[Tensor, Tensor], Tensor]  # tokens and their positions [B, 1] → scores [B, V]


class DeviceLoop(NamedTuple):
    """How drafts of B sequences are made.

    Attributes:
        key: of a step's recording: what makes it differ from others, but for the tensors' shapes.
        scratch: the position of tokens that only fill a shape up.
        width: V, of the scores.
    """

    graphs: Graphs
    key: Hashable
    batch: int
    sampler: Sampler
    scratch: int
    width: int
    dtype: torch.dtype
    device: torch.device

    def draft(
        self,
        first_key: Hashable,
        make_first: MakeFirst,
        fill: Callable[[Any], None],
        step: DeviceStep,
        rows: Sequence[int],
        counts: Sequence[int],
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """Draft ``counts[b]`` tokens in row ``rows[b]`` of B.

        Args:
            fill: writes the inputs of this call into the static tensors of the first one.

        Raises:
            NoDistributionError: some row of scores has NaN or forbids every token.
        """
        longest, sampler = max(counts), self.sampler
        room = max(_ROOM, 1 << (longest - 1).bit_length())

        def begin() -> tuple[Any, Body]:
            (tensors, run), memory = make_first(), _Memory.of(self, room)

            def body() -> None:
                scored = run()
                memory.last.copy_(scored.last)
                memory.pick(sampler, scored.scores)

            return (tensors, memory), body

        def go_on() -> tuple[None, Body]:
            memory = _Memory.of(self, room)

            def body() -> None:
                before = memory.results[0].index_select(1, memory.number - 1).long()
                last = memory.last
                positions = torch.where(last < self.scratch, last + memory.number, self.scratch)
                memory.pick(sampler, step(before, positions))

            return None, body

        calls: dict[Hashable, Callable[[], tuple[Any, Body]]] = {
            ("first", first_key, self.key, sampler, room): begin
        }
        if longest > 1:
            calls["step", self.key, self.batch, sampler, room] = go_on
        first, *steps = self.graphs.get_together(calls)
        tensors, memory = first.tensors
        fill(tensors)
        if memory.random is not None:
            padded = np.zeros((longest, *memory.random.shape[1:]))
            for row, values in zip(rows, uniforms, strict=True):
                padded[: len(values), row] = values
            upload(memory.random[:longest], padded)
        for number in range(longest):
            memory.number.fill_(number)
            (steps[0] if number else first).run()
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


class _Memory(NamedTuple):
    """Static tensors of drafts of up to n tokens, which their first calls and steps share.

    Attributes:
        number: [1] of the token to pick.
        last: [B, 1] positions.
        random: [n, B] uniforms or, where tokens race, [n, B, V] noise, float64; ``None`` where
            greedy.
        results: [3, B, n] float64: tokens, whether each could be picked, a window's signals.
        probs: [n, B, V]; ``None`` where one-hot.
    """

    number: Tensor
    last: Tensor
    random: Tensor | None
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

    def pick(self, sampler: Sampler, scores: Tensor) -> None:
        """Draw token ``number`` from scores [B, V], and write it to the results."""
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
