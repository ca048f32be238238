"""A frozen model's hidden states, and the distance of its exits from its last layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from hierspec.lm.backend import Span
from hierspec.lm.hf.decoder import HFBackend
from hierspec.verifiers.formulas import overlap
from hierspec_lab.training.losses import distances
from hierspec_lab.training.models import hidden_states

from .heads import Heads

FIGURES = ("acceptance", "agreement", "kl", "coverage")  # of :meth:`Frozen.measure`
_CHUNK = 1 << 23  # scores held at once, of one exit


class Frozen:
    """A model of which nothing is trained: hidden states at exits, and their distances."""

    def __init__(self, backend: HFBackend, exits: Sequence[int]) -> None:
        self.backend = backend
        backend.model.requires_grad_(False)
        self.exits = tuple(exits)
        self._caches: list[Any] = []
        self._capacity = 0

    @torch.no_grad()
    def states(self, ids: torch.Tensor) -> list[torch.Tensor]:
        """Return hidden states [rows · width, d] of ids [rows, width]: per exit, then the last."""
        rows, width = ids.shape
        if width > self._capacity or rows > len(self._caches):
            # Later batches overwrite the caches from position 0 on.
            self._capacity = max(width, self._capacity)
            self._caches = [self.backend.new_cache(self._capacity) for _ in range(rows)]
        spans = [Span(cache, 0, width) for cache in self._caches[:rows]]
        flat = ids.flatten().to(self.backend.device)
        return hidden_states(self.backend, flat, spans, self.exits)

    def distances(self, heads: Heads, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return KL(last ‖ exit) in nats and TV(last, exit), means over the rows: [2, exits].

        Scores are computed a chunk of rows at a time, and once more for the gradients, so that
        memory does not grow with rows × vocabulary.
        """
        num_rows = len(states[-1])
        size = max(1, _CHUNK // self.backend.vocab_size)
        total = torch.zeros(2, len(self.exits), device=self.backend.device)
        for start in range(0, num_rows, size):
            part = [h[start : start + size] for h in states]
            if num_rows <= size or not torch.is_grad_enabled():
                means = self._means(heads, *part)
            else:
                means = checkpoint(
                    self._means, heads, *part, use_reentrant=False, preserve_rng_state=False
                )
            total = total + means * (len(part[-1]) / num_rows)
        return total

    def _means(self, heads: Heads, *states: torch.Tensor) -> torch.Tensor:
        *early, last = states
        with torch.no_grad():
            teacher = heads.teacher(self.backend, last)
        means = [
            torch.stack(distances(teacher, heads.scores(layer, self.backend, h)))
            for layer, h in zip(self.exits, early, strict=True)
        ]
        return torch.stack(means, dim=1)

    @torch.no_grad()
    def measure(self, heads: Heads, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return sums of :data:`FIGURES` over the rows of states [N, d]: [exits, 4] float64.

        Acceptance is 1 − TV at temperature 1, agreement 1 where the argmaxes are equal; then KL in
        nats, over the tokens that a head scores, and the mass that the last layer gives to those.
        """
        size = max(1, _CHUNK // self.backend.vocab_size)
        total = torch.zeros(len(self.exits), len(FIGURES), dtype=torch.float64)
        for *early, last in zip(*(h.split(size) for h in states), strict=True):
            scores = self.backend.head(last)
            best, p = scores.argmax(-1), scores.softmax(-1)
            if heads.ids is not None:
                p = p[:, heads.ids]
            mass = p.sum(-1)
            for number, (layer, h) in enumerate(zip(self.exits, early, strict=True)):
                log_q = heads.scores(layer, self.backend, h).log_softmax(-1)
                head_best = log_q.argmax(-1)
                head_best = head_best if heads.ids is None else heads.ids[head_best]
                scored_p = p / mass.unsqueeze(-1)
                kl = (scored_p * (scored_p.clamp_min(1e-30).log() - log_q)).sum(-1)
                figures = (overlap(p, log_q.exp()), head_best == best, kl, mass)
                total[number] += torch.stack([x.double().sum().cpu() for x in figures])
        return total
