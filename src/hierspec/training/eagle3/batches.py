"""Batches of texts of similar length, their features read from disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .store import Store

_POOL = 64  # texts sorted by length at once: enough to fill batches, few enough to mix them


class Batch(NamedTuple):
    """B texts, padded to T rows. Row t predicts token t + 2 of its text.

    Attributes:
        features: of the target at token t, [B, T, 3 d].
        embedded: embedding of token t + 1, [B, T, d].
        last: the target's last hidden state at token t + 1, [B, T, d].
        following: token t + 2, int64 [B, T].
        counts: rows to be predicted, bool [B, T].
    """

    features: Tensor
    embedded: Tensor
    last: Tensor
    following: Tensor
    counts: Tensor


@dataclass(slots=True)
class Batches:
    """Endless passes over the texts that are learnt from; a step's batch depends on them alone.

    Attributes:
        embedding: the target's, [V, d] float32.
        scale: what features are multiplied with, [3 d].
        size: most places in a batch; a longer text is a batch of its own.
    """

    store: Store
    embedding: Tensor
    scale: Tensor
    size: int
    seed: int
    _known: int = 0  # texts that passes were made of
    _origin: int = 0  # the step at which the first of these passes began
    _passes: dict[int, list[list[int]]] = field(default_factory=dict)

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        if self._known != len(self.store.texts):
            self._origin = step if self._known else 0
            self._known, self._passes = len(self.store.texts), {}
        step -= self._origin
        number = 0
        while step >= len(self._pass(number)):
            step -= len(self._pass(number))
            number += 1
        return self.of(self._pass(number)[step])

    @property
    def per_pass(self) -> int:
        return len(self._pass(0))

    def groups(self, texts: Sequence[int]) -> list[list[int]]:
        """Texts in batches, in the order given."""
        out: list[list[int]] = []
        longest = 0
        for i in texts:
            length = len(self.store.texts[i].ids) - 2
            longest = max(longest, length)
            if out and longest * (len(out[-1]) + 1) <= self.size:
                out[-1].append(i)
            else:
                out.append([i])
                longest = length
        return out

    def _pass(self, number: int) -> list[list[int]]:
        if number not in self._passes:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            learnt = self.store.numbers()
            order = [learnt[i] for i in torch.randperm(len(learnt), generator=generator).tolist()]
            batches: list[list[int]] = []
            for start in range(0, len(order), _POOL):
                pool = order[start : start + _POOL]
                pool.sort(key=lambda i: len(self.store.texts[i].ids))
                batches += self.groups(pool)
            mixed = torch.randperm(len(batches), generator=generator).tolist()
            self._passes[number] = [batches[i] for i in mixed]
        return self._passes[number]

    def of(self, numbers: Sequence[int]) -> Batch:
        """These texts as a batch."""
        texts = [self.store.texts[i] for i in numbers]
        rows, length = len(texts), max(len(text.ids) for text in texts) - 2
        features = torch.zeros(rows, length, len(self.scale))
        last = torch.zeros(rows, length, self.embedding.shape[1])
        ids = torch.zeros(rows, length + 2, dtype=torch.int64)
        counts = torch.zeros(rows, length, dtype=torch.bool)
        for row, (i, text) in enumerate(zip(numbers, texts, strict=True)):
            n = len(text.ids) - 2
            found = self.store.features(i, 0, n + 1)
            features[row, :n] = found[:n, :-1].flatten(1)
            last[row, :n] = found[1:, -1]
            ids[row, : n + 2] = torch.tensor(text.ids)
            for low, high in text.counts:
                counts[row, max(low - 2, 0) : high - 2] = True
        features *= self.scale
        return Batch(features, self.embedding[ids[:, 1:-1]], last, ids[:, 2:], counts)
