"""Training the trunk: next-token loss at the last exit, and at one random early exit per step."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import torch
from torch.nn import functional as F

from hierspec.training.fit import Objective, Phase, Progressing, Schedule

from .corpus import Stream
from .model import EXITS, SHAPES, Llama, Shape

EXIT_WEIGHT = 0.3
# Early exits first learn from the text, then from the last exit: what counts for a draft is that
# its law is near the last exit's law.
EXIT_DISTILL_FROM = 0.4

SCHEDULE = Schedule(
    steps=800,
    phases=(Phase(0.75, 24, 256), Phase(0.95, 12, 512), Phase(1.0, 3, 2048)),
    matrix_rate=3e-3,
    decay_share=0.8,
)


def maybe_compile(function: Callable, wanted: bool) -> Callable:
    """The function compiled, if wanted and there is a C++ compiler: 1.4x the tokens per second."""
    return torch.compile(function, dynamic=False) if wanted and shutil.which("g++") else function


def soft_cross_entropy(scores: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Cross entropy of a student's scores with a teacher's law, both given as scores [N, V]."""
    law = teacher.float().softmax(-1)
    return -(law * scores.float().log_softmax(-1)).sum(-1).mean()


def build_trunk(seed: int, shape: Shape = SHAPES["trunk"]) -> Llama:
    """An untrained trunk, decided by the seed."""
    model = Llama(shape)
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def trunk_objective(model: Llama, stream: Stream, compile: bool = True) -> Objective:
    """The loss of a step, as :func:`hierspec.training.fit.fit` wants it."""
    exits = tuple(number for number in EXITS if number < model.shape.layers)

    def both_losses(
        inputs: torch.Tensor, targets: torch.Tensor, choice: torch.Tensor, distill: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The choice is a tensor, so that one compiled graph serves all exits.
        *early, last = model(inputs, exits)
        early_scores = model.logits(torch.stack(early).index_select(0, choice)[0]).flatten(0, 1)
        scores = model.logits(last).flatten(0, 1)
        loss = F.cross_entropy(scores.float(), targets.flatten())
        if distill:
            return loss, soft_cross_entropy(early_scores, scores.detach())
        return loss, F.cross_entropy(early_scores.float(), targets.flatten())

    losses = maybe_compile(both_losses, compile)

    def objective(now: Progressing) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        inputs, targets = stream.batch(now.step, now.phase.rows, now.phase.width)
        choice = torch.randint(len(exits), (1,), generator=now.generator)
        distill = now.done >= EXIT_DISTILL_FROM
        loss, exit_loss = losses(inputs, targets, choice, distill)
        parts = {"loss": loss.detach(), f"exit{exits[int(choice)]}": exit_loss.detach()}
        return loss + EXIT_WEIGHT * exit_loss, parts

    return objective
