"""Batches of texts of similar length, their features read from disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hierspec_lab.training.store import FeatureStore, Passes


class FeatureBatch(NamedTuple):
    """B texts, padded to T rows. Row t predicts token t + 2 of its text.

    Attributes:
        features: of the target at token t, [B, T, 3 d].
        embedded: embedding of token t + 1, [B, T, d].
        last: the target's last hidden state at token t + 1, [B, T, d].
        targets: token t + 2, int64 [B, T].
        is_predicted: rows to be predicted, bool [B, T].
    """

    features: Tensor
    embedded: Tensor
    last: Tensor
    targets: Tensor
    is_predicted: Tensor


@dataclass(slots=True)
class Batches:
    """Batches in the order of :class:`~hierspec_lab.training.store.Passes`.

    Attributes:
        embedding: the target's, [V, d] float32.
        scale: factors of the features, [3 d].
    """

    passes: Passes
    embedding: Tensor
    scale: Tensor

    @property
    def store(self) -> FeatureStore:
        return self.passes.store

    def read(self, numbers: Sequence[int]) -> FeatureBatch:
        """Read the features of texts, by number, as a batch."""
        texts = [self.store.texts[i] for i in numbers]
        rows, length = len(texts), max(len(text.ids) for text in texts) - 2
        features = torch.zeros(rows, length, len(self.scale))
        last = torch.zeros(rows, length, self.embedding.shape[1])
        ids = torch.zeros(rows, length + 2, dtype=torch.int64)
        is_predicted = torch.zeros(rows, length, dtype=torch.bool)
        for row, (i, text) in enumerate(zip(numbers, texts, strict=True)):
            n = len(text.ids) - 2
            stored = self.store.features(i, 0, n + 1)
            features[row, :n] = stored[:n, :-1].flatten(1)
            last[row, :n] = stored[1:, -1]
            ids[row, : n + 2] = torch.tensor(text.ids)
            for low, high in text.predicted:
                is_predicted[row, max(low - 2, 0) : high - 2] = True
        features *= self.scale
        return FeatureBatch(features, self.embedding[ids[:, 1:-1]], last, ids[:, 2:], is_predicted)
