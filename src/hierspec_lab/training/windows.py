"""Windows, excerpts of text of one length: to train on, chosen by step number, or to measure on.

A pass is one shuffled concatenation of documents, cut into windows that are shuffled too. Batch
``s`` is the ``s``-th group of them, so training resumes at any step without stored state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


def slice_passes(
    read_pass: Callable[[int], torch.Tensor], size: int, start: int, length: int
) -> torch.Tensor:
    """Return items [start, start + length) of an endless sequence of passes.

    Args:
        read_pass: returns pass number 0, 1, …; each has ``size`` items.
    """
    parts = []
    while length > 0:
        number, offset = divmod(start, size)
        parts.append(read_pass(number)[offset : offset + length])
        start, length = start + len(parts[-1]), length - len(parts[-1])
    return torch.cat(parts)


@dataclass(slots=True)
class Stream:
    """Endless shuffled passes over documents.

    Attributes:
        documents: the token ids of each; one with weight n is listed n times.
        seed: decides the order of every pass.
    """

    documents: list[torch.Tensor]
    seed: int
    _passes: dict[int, torch.Tensor] = field(default_factory=dict)
    _window_orders: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    @property
    def tokens_per_pass(self) -> int:
        return sum(map(len, self.documents))

    def _pass(self, number: int) -> torch.Tensor:
        if number not in self._passes:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            order = torch.randperm(len(self.documents), generator=generator).tolist()
            self._passes = {k: v for k, v in self._passes.items() if k == number - 1}
            self._passes[number] = torch.cat([self.documents[i] for i in order])
        return self._passes[number]

    def slice(self, start: int, length: int) -> torch.Tensor:
        """Return tokens [start, start + length) of the endless sequence, int64."""
        return slice_passes(self._pass, self.tokens_per_pass, start, length).long()

    def batch(self, step: int, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and next tokens of a step, both [rows, width].

        A pass is cut into windows and these are taken in a shuffled order: neighbouring windows
        are from the same document, so a batch of them would lack variety.
        """
        per_pass = (self.tokens_per_pass - 1) // width
        windows = []
        for index in range(step * rows, (step + 1) * rows):
            number, position = divmod(index, per_pass)
            window = self._window_order(number, width)[position]
            start = number * self.tokens_per_pass + window * width
            windows.append(self.slice(start, width + 1))
        tokens = torch.stack(windows)
        return tokens[:, :-1], tokens[:, 1:]

    def _window_order(self, number: int, width: int) -> list[int]:
        if (number, width) not in self._window_orders:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number * 8191 + width)
            per_pass = (self.tokens_per_pass - 1) // width
            order = torch.randperm(per_pass, generator=generator).tolist()
            self._window_orders = {(number, width): order}
        return self._window_orders[number, width]


@dataclass(frozen=True, slots=True)
class HeldOutWindows:
    """Held-out text to measure on: ``count`` windows of ``width`` tokens, evenly spread."""

    count: int = 32
    width: int = 512

    def cut(self, tokens: torch.Tensor) -> torch.Tensor:
        """Cut [count, width + 1] of the tokens (fewer windows where there is less text)."""
        count = max(1, min(self.count, (len(tokens) - 1) // self.width))
        starts = torch.linspace(0, len(tokens) - self.width - 1, count).long()
        return torch.stack([tokens[s : s + self.width + 1] for s in starts.tolist()])
