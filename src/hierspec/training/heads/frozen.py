"""A frozen model over windows of text, and how far its exits are from its last layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from hierspec.lm.backend import Span
from hierspec.lm.exit_heads import Heads
from hierspec.training.losses import distances

_CHUNK = 1 << 23  # scores held at once, of one exit


class Frozen:
    """A model's hidden states at exits; nothing of it is trained.

    Args:
        backend: run by transformers' own modules (:class:`~hierspec.lm.hf.decoder.HFBackend`).
    """

    def __init__(self, backend: Any, exits: Sequence[int]) -> None:
        self.backend = backend
        backend.model.requires_grad_(False)
        self.exits = tuple(exits)
        self._caches: list[Any] = []
        self._capacity = 0

    @torch.no_grad()
    def states(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """Ids [rows, width] → hidden states [rows · width, d], one per exit, then the last's."""
        rows, width = ids.shape
        if width > self._capacity or rows > len(self._caches):
            # What a cache holds from an earlier batch is written over from position 0 on.
            self._capacity = max(width, self._capacity)
            self._caches = [self.backend.new_cache(self._capacity) for _ in range(rows)]
        spans = [Span(cache, 0, width) for cache in self._caches[:rows]]
        h, low, found = self.backend.embed(ids.flatten().to(self.backend.device), spans), 0, []
        for layer in (*self.exits, self.backend.num_layers):
            h, low = self.backend.layers(h, low, layer, spans), layer
            found.append(h)
        return found

    def distances(self, heads: Heads, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """KL(last ‖ exit) in nats and TV(last, exit), means over the rows: [2, exits].

        Scores are made a chunk of rows at a time, and once more for the gradients, so that memory
        does not grow with rows × vocabulary.
        """
        num = len(states[-1])
        size = max(1, _CHUNK // self.backend.vocab_size)
        total = torch.zeros(2, len(self.exits), device=self.backend.device)
        for start in range(0, num, size):
            part = [h[start : start + size] for h in states]
            if num <= size or not torch.is_grad_enabled():
                means = self._means(heads, *part)
            else:
                means = checkpoint(
                    self._means, heads, *part, use_reentrant=False, preserve_rng_state=False
                )
            total = total + means * (len(part[-1]) / num)
        return total

    def _means(self, heads: Heads, *states: torch.Tensor) -> torch.Tensor:
        *early, last = states
        with torch.no_grad():
            teacher = self.backend.head(last)
        found = [
            torch.stack(distances(teacher, heads.scores(layer, self.backend, h)))
            for layer, h in zip(self.exits, early, strict=True)
        ]
        return torch.stack(found, dim=1)

    @torch.no_grad()
    def measure(
        self, heads: Heads, windows: torch.Tensor, report: Callable[[float], None]
    ) -> dict[str, dict[str, float]]:
        """Per exit, over all positions of the windows [count, width]: what a draft is worth.

        ``acceptance`` is 1 − TV at temperature 1, ``agreement`` the share of equal argmaxes, ``kl``
        in nats.
        """
        sums = torch.zeros(3, len(self.exits), dtype=torch.float64)
        for number, window in enumerate(windows):
            report(number / len(windows))
            states = self.states(window[None])
            kl, tv = self.distances(heads, states).cpu().double()
            sums += torch.stack((1 - tv, self._agreement(heads, states), kl))
        means = (sums / len(windows)).T.tolist()
        names = ("acceptance", "agreement", "kl")
        return {
            str(layer): dict(zip(names, (round(x, 4) for x in row), strict=True))
            for layer, row in zip(self.exits, means, strict=True)
        }

    def _agreement(self, heads: Heads, states: Sequence[torch.Tensor]) -> torch.Tensor:
        size = max(1, _CHUNK // self.backend.vocab_size)
        parts = [h.split(size) for h in states]
        last = torch.cat([self.backend.head(h).argmax(-1) for h in parts[-1]])
        shares = []
        for layer, chunks in zip(self.exits, parts[:-1], strict=True):
            own = [heads.scores(layer, self.backend, h).argmax(-1) for h in chunks]
            shares.append((torch.cat(own) == last).double().mean())
        return torch.stack(shares).cpu()
