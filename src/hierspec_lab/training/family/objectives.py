"""Losses of the shipped family: next-token loss for the trunk, distillation for small models.

The trunk has next-token loss at the last exit and at one random early exit per step.

The acceptance of a draft is 1 − TV(trunk, draft) on the text met while decoding. The trunk writes
that text, at the temperatures users choose, so it also wrote a part of the students' batches. Their
loss starts as a KL divergence, which is easier to optimise, and becomes the total variation itself.
All students share each forward pass of the trunk, the most expensive part of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from torch import nn
from torch.nn import functional as F

from hierspec.utils.files import write_atomically
from hierspec_lab.training.fit import Losses, Objective, Phase, Schedule, TrainingStep, compile_if
from hierspec_lab.training.losses import distances, kl_then_tv, soft_cross_entropy
from hierspec_lab.training.windows import Stream

from .model import EXITS, SHAPES, Llama, Shape, continue_rows

EXIT_WEIGHT = 0.3
# Early exits first learn from the text, then from the last exit: a draft is accepted if its
# distribution is near the last exit's.
EXIT_DISTILL_FROM = 0.4

STUDENTS = ("mid", "small")
OWN_SHARE = 0.3  # of the batches: text the trunk wrote

TRUNK_SCHEDULE = Schedule(
    steps=800,
    phases=(Phase(0.75, 24, 256), Phase(0.95, 12, 512), Phase(1.0, 3, 2048)),
    matrix_rate=3e-3,
    decay_share=0.8,
)
STUDENTS_SCHEDULE = Schedule(
    steps=800,
    phases=(Phase(0.92, 12, 512), Phase(1.0, 3, 2048)),
    matrix_rate=4e-3,
    adamw_rate=4e-3,
    decay_share=0.7,
)


def build_trunk(seed: int, shape: Shape = SHAPES["trunk"]) -> Llama:
    """Build an untrained trunk, decided by the seed."""
    model = Llama(shape)
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def trunk_objective(model: Llama, stream: Stream, compile: bool = True) -> Objective:
    """Return the loss of a step, for :func:`hierspec_lab.training.fit.fit`."""
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
            return loss, soft_cross_entropy(scores.detach(), early_scores)
        return loss, F.cross_entropy(early_scores.float(), targets.flatten())

    losses = compile_if(compile, both_losses)

    def objective(step: TrainingStep) -> Losses:
        inputs, targets = stream.batch(step.number, step.phase.rows, step.phase.width)
        choice = torch.randint(len(exits), (1,), generator=step.generator)
        distill = step.progress >= EXIT_DISTILL_FROM
        loss, exit_loss = losses(inputs, targets, choice, distill)
        parts = {"loss": loss.detach(), f"exit{exits[int(choice)]}": exit_loss.detach()}
        return loss + EXIT_WEIGHT * exit_loss, parts

    return objective


@dataclass(frozen=True, slots=True)
class OwnTextSettings:
    """How much text the trunk writes for its students, and how."""

    rows: int = 96
    prompt: int = 32
    length: int = 512
    rounds: int = 3
    temperatures: tuple[float, ...] = (0.0, 0.4, 0.6, 0.8, 1.0, 1.0)


def build_students(seed: int, shapes: dict[str, Shape] = SHAPES) -> nn.ModuleDict:
    """Build untrained students, decided by the seed."""
    students = nn.ModuleDict()
    for number, name in enumerate(STUDENTS, 1):
        student = students[name] = Llama(shapes[name])
        student.initialise(torch.Generator().manual_seed(seed + number))
    return students


def write_own_text(
    trunk: Llama, stream: Stream, settings: OwnTextSettings, path: Path, seed: int
) -> torch.Tensor:
    """Let the trunk continue training text, or read that from ``path``; return [N, length]."""
    if path.exists():
        return torch.load(path, weights_only=True).long()
    generator = torch.Generator().manual_seed(seed)
    width = settings.rows * settings.prompt
    temperatures = torch.tensor(settings.temperatures).repeat(settings.rows)[: settings.rows]
    rows = []
    for _ in track(range(settings.rounds), description="trunk writes"):
        start = int(torch.randint(stream.tokens_per_pass, (), generator=generator))
        prompts = stream.slice(start, width).view(settings.rows, settings.prompt)
        rows.append(continue_rows(trunk, prompts, settings.length, temperatures, generator))
    text = torch.cat(rows)
    write_atomically(path, lambda target: torch.save(text.short(), target), "the trunk's text")
    return text


def distill_objective(
    trunk: Llama,
    students: nn.ModuleDict,
    stream: Stream,
    own_text: torch.Tensor,
    compile: bool = True,
) -> Objective:
    """Return the summed loss of all students, on the same tokens and trunk scores."""

    def teacher_scores(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return trunk.logits(trunk(inputs)[-1]).flatten(0, 1)

    def student_distances(
        student: Llama, inputs: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return distances(scores, student.logits(student(inputs)[-1]).flatten(0, 1))

    teach, learn = compile_if(compile, teacher_scores), compile_if(compile, student_distances)

    def objective(step: TrainingStep) -> Losses:
        (rows, width), (num_own, own_width) = (step.phase.rows, step.phase.width), own_text.shape
        use_own = torch.rand((), generator=step.generator) < OWN_SHARE and width <= own_width
        if use_own:
            chosen = torch.randint(num_own, (rows,), generator=step.generator)
            start = int(torch.randint(own_width - width + 1, (), generator=step.generator))
            inputs = own_text[chosen, start : start + width]
        else:
            inputs, _ = stream.batch(step.number, rows, width)
        scores = teach(inputs)
        total, parts = torch.zeros(()), {}
        for name, student in students.items():
            kl, tv = learn(student, inputs, scores)
            total = total + kl_then_tv(kl, tv, step.progress)
            parts |= {f"{name}_kl": kl.detach(), f"{name}_tv": tv.detach()}
        return total, parts | {"own": torch.tensor(float(use_own))}

    return objective
