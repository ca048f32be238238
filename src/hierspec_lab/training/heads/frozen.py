"""A frozen model's hidden states, and the distance of its exits from its last layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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

    def learners(self, teacher: int | None) -> tuple[int, ...]:
        """Return the exits that learn from the one after layer ``teacher``, or the last layer."""
        return tuple(layer for layer in self.exits if teacher is None or layer < teacher)

    def distances(
        self, heads: Heads, states: Sequence[torch.Tensor], teacher: int | None = None
    ) -> torch.Tensor:
        """Return KL(teacher ‖ exit) in nats and TV(teacher, exit), means over rows: [2, exits].

        Scores are computed a chunk of rows at a time, and once more for the gradients, so that
        memory does not grow with rows × vocabulary.

        Args:
            teacher: the exit after this layer, whose head is not trained, for those before it;
                default: the last layer, for all.
        """
        num_rows = len(states[-1])
        size = max(1, _CHUNK // heads.num_scored)
        total = torch.zeros(2, len(self.learners(teacher)), device=self.backend.device)
        means_of = partial(self._means, heads, teacher)
        for start in range(0, num_rows, size):
            part = [h[start : start + size] for h in states]
            if num_rows <= size or not torch.is_grad_enabled():
                means = means_of(*part)
            else:
                means = checkpoint(means_of, *part, use_reentrant=False, preserve_rng_state=False)
            total = total + means * (len(part[-1]) / num_rows)
        return total

    def _means(self, heads: Heads, teacher: int | None, *states: torch.Tensor) -> torch.Tensor:
        by_exit = dict(zip(self.exits, states, strict=False))
        with torch.no_grad():
            scores = (
                heads.teacher(self.backend, states[-1])
                if teacher is None
                else heads.scores(teacher, self.backend, by_exit[teacher])
            )
        means = [
            torch.stack(distances(scores, heads.scores(layer, self.backend, by_exit[layer])))
            for layer in self.learners(teacher)
        ]
        return torch.stack(means, dim=1)

    @torch.no_grad()
    def measure(
        self, heads: Heads, states: Sequence[torch.Tensor], teacher: int | None = None
    ) -> torch.Tensor:
        """Return sums of :data:`FIGURES` over the rows of states [N, d]: [exits, 4] float64.

        Acceptance is 1 − TV at temperature 1, agreement 1 where the argmaxes are equal; then KL in
        nats, over the tokens that a head scores, and the mass that the teacher gives to those. The
        teacher and its exits are those of :meth:`distances`.
        """
        size = max(1, _CHUNK // self.backend.vocab_size)
        learners = self.learners(teacher)
        total = torch.zeros(len(learners), len(FIGURES), dtype=torch.float64)
        for *early, last in zip(*(h.split(size) for h in states), strict=True):
            by_exit = dict(zip(self.exits, early, strict=True))
            if teacher is None:
                scores = self.backend.head(last)
                best, p = scores.argmax(-1), scores.softmax(-1)
                if heads.ids is not None:
                    p = p[:, heads.ids]
            else:
                p = heads.scores(teacher, self.backend, by_exit[teacher]).softmax(-1)
                best = heads.tokens(p.argmax(-1))
            mass = p.sum(-1)
            for number, layer in enumerate(learners):
                h = by_exit[layer]
                log_q = heads.scores(layer, self.backend, h).log_softmax(-1)
                head_best = heads.tokens(log_q.argmax(-1))
                scored_p = p / mass.unsqueeze(-1)
                kl = (scored_p * (scored_p.clamp_min(1e-30).log() - log_q)).sum(-1)
                figures = (overlap(p, log_q.exp()), head_best == best, kl, mass)
                total[number] += torch.stack([x.double().sum().cpu() for x in figures])
        return total
