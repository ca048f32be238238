"""Windows of text to train on, cut by step number alone, and windows to measure on.

A pass is one shuffled concatenation of documents, cut into windows that are shuffled too. Batch
``s`` is the ``s``-th group of them, so training resumes at any step without stored state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Stream:
    """Endless shuffled passes over documents.

    Attributes:
        pieces: the documents' tokens, repeated by their weight.
        seed: decides the order of every pass.
    """

    pieces: list[torch.Tensor]
    seed: int
    _passes: dict[int, torch.Tensor] = field(default_factory=dict)
    _orders: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    @property
    def tokens_per_pass(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    def _pass(self, number: int) -> torch.Tensor:
        if number not in self._passes:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            order = torch.randperm(len(self.pieces), generator=generator).tolist()
            self._passes = {k: v for k, v in self._passes.items() if k == number - 1}
            self._passes[number] = torch.cat([self.pieces[i] for i in order])
        return self._passes[number]

    def slice(self, start: int, length: int) -> torch.Tensor:
        """Return tokens [start, start + length) of the endless sequence, int64."""
        parts = []
        while length > 0:
            number, offset = divmod(start, self.tokens_per_pass)
            part = self._pass(number)[offset : offset + length]
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return torch.cat(parts).long()

    def batch(self, step: int, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and next tokens of a step, both [rows, width].

        A pass is cut into windows and these are taken in a shuffled order: neighbouring windows
        are from the same document, so a batch of them would lack variety.
        """
        per_pass = (self.tokens_per_pass - 1) // width
        windows = []
        for index in range(step * rows, (step + 1) * rows):
            number, place = divmod(index, per_pass)
            start = number * self.tokens_per_pass + self._order(number, width)[place] * width
            windows.append(self.slice(start, width + 1))
        tokens = torch.stack(windows)
        return tokens[:, :-1], tokens[:, 1:]

    def _order(self, number: int, width: int) -> list[int]:
        """Return the shuffled windows of a pass."""
        if (number, width) not in self._orders:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number * 8191 + width)
            per_pass = (self.tokens_per_pass - 1) // width
            self._orders = {(number, width): torch.randperm(per_pass, generator=generator).tolist()}
        return self._orders[number, width]


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
