"""Distilling the small models from the trunk: they learn its law, not the text.

What a draft is worth is its acceptance, 1 − TV(trunk, draft) on the text met while decoding. That
text is the trunk's own, at the temperatures users choose; so a part of the batches is text the
trunk wrote. The loss starts as a KL divergence, which is easy to follow, and becomes the total
variation itself. All students share each forward pass of the trunk, the dearest part of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from torch import nn

from hierspec.training.fit import Objective, Phase, Progressing, Schedule
from hierspec.utils.files import write_whole

from .corpus import Stream
from .model import SHAPES, Llama, Shape, continue_rows
from .trunk import maybe_compile

STUDENTS = ("mid", "small")
TV_FROM, TV_FULL = 0.5, 0.7  # shares of the steps between which TV replaces KL
TV_WEIGHT = 4.0  # gradients of TV are smaller than those of KL
OWN_SHARE = 0.3  # of the batches: text the trunk wrote

SCHEDULE = Schedule(
    steps=800,
    phases=(Phase(0.92, 12, 512), Phase(1.0, 3, 2048)),
    matrix_rate=4e-3,
    other_rate=4e-3,
    decay_share=0.7,
)


@dataclass(frozen=True, slots=True)
class OwnText:
    """How much text the trunk writes for its students, and how."""

    rows: int = 96
    prompt: int = 32
    length: int = 512
    rounds: int = 3
    temperatures: tuple[float, ...] = (0.0, 0.4, 0.6, 0.8, 1.0, 1.0)


OWN_TEXT = OwnText()


def build_students(seed: int, shapes: dict[str, Shape] = SHAPES) -> nn.ModuleDict:
    """Untrained students, decided by the seed."""
    students = nn.ModuleDict()
    for number, name in enumerate(STUDENTS, 1):
        student = students[name] = Llama(shapes[name])
        student.initialise(torch.Generator().manual_seed(seed + number))
    return students


def own_text(trunk: Llama, stream: Stream, plan: OwnText, path: Path, seed: int) -> torch.Tensor:
    """Rows [N, length] that the trunk continued from training text; kept in ``path``."""
    if path.exists():
        return torch.load(path, weights_only=True).long()
    generator = torch.Generator().manual_seed(seed)
    width = plan.rows * plan.prompt
    temperatures = torch.tensor(plan.temperatures).repeat(plan.rows)[: plan.rows]
    rows = []
    for _ in track(range(plan.rounds), description="trunk writes"):
        start = int(torch.randint(stream.tokens_per_pass, (), generator=generator))
        prompts = stream.slice(start, width).view(plan.rows, plan.prompt)
        rows.append(continue_rows(trunk, prompts, plan.length, temperatures, generator))
    text = torch.cat(rows)
    write_whole(path, lambda target: torch.save(text.short(), target), "the trunk's text")
    return text


def distances(teacher: torch.Tensor, student: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(teacher ‖ student) and TV(teacher, student), means over rows of scores [N, V]."""
    log_p = teacher.float().log_softmax(-1)
    log_q = student.float().log_softmax(-1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(-1).mean()
    tv = 0.5 * (p - log_q.exp()).abs().sum(-1).mean()
    return kl, tv


def distill_objective(
    trunk: Llama, students: nn.ModuleDict, stream: Stream, own: torch.Tensor, compile: bool = True
) -> Objective:
    """The summed loss of all students on the same tokens and the same laws of the trunk."""

    def teach(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return trunk.logits(trunk(inputs)[-1]).flatten(0, 1)

    def learn(
        student: Llama, inputs: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return distances(scores, student.logits(student(inputs)[-1]).flatten(0, 1))

    teaching, learning = maybe_compile(teach, compile), maybe_compile(learn, compile)

    def objective(now: Progressing) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        rows, width = now.phase.rows, now.phase.width
        written = torch.rand((), generator=now.generator) < OWN_SHARE and width <= own.shape[1]
        if written:
            chosen = torch.randint(len(own), (rows,), generator=now.generator)
            start = int(torch.randint(own.shape[1] - width + 1, (), generator=now.generator))
            inputs = own[chosen, start : start + width]
        else:
            inputs, _ = stream.batch(now.step, rows, width)
        scores = teaching(inputs)
        share = min(1.0, max(0.0, (now.done - TV_FROM) / (TV_FULL - TV_FROM)))
        total, parts = torch.zeros(()), {}
        for name, student in students.items():
            kl, tv = learning(student, inputs, scores)
            total = total + (1 - share) * kl + share * TV_WEIGHT * tv
            parts |= {f"{name}_kl": kl.detach(), f"{name}_tv": tv.detach()}
        return total, parts | {"own": torch.tensor(float(written))}

    return objective
