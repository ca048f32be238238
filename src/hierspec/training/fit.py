"""The training loop: optimisers, schedule, checkpoints, a progress bar. It knows no model.

The learning rate is constant after the warm-up and falls linearly to zero in the last part, so a
run can be shortened while it lasts: start it again with fewer ``steps`` before the fall begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from hierspec.utils.files import write_whole

SAVE_SECONDS = 60.0
LOG_EVERY = 10


@dataclass(frozen=True, slots=True)
class Phase:
    """The form of the batches until ``until`` (a share of all steps)."""

    until: float
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long to train, on batches of what form, at which rates."""

    steps: int
    phases: tuple[Phase, ...]
    matrix_rate: float = 4e-3  # Muon, update scaled to AdamW's size
    other_rate: float = 3e-3  # AdamW: embeddings and norms
    weight_decay: float = 0.05
    warmup_steps: int = 30
    decay_share: float = 0.45

    def phase(self, step: int) -> Phase:
        """The batch form at a step; every phase should hold as many tokens."""
        return next(p for p in self.phases if step < p.until * self.steps or p is self.phases[-1])

    def factor(self, step: int) -> float:
        """What the rates are multiplied with at a step."""
        rising = (step + 1) / self.warmup_steps
        falling = (self.steps - step) / max(1.0, self.decay_share * self.steps)
        return min(1.0, rising, falling)

    @property
    def tokens(self) -> int:
        return sum(p.rows * p.width for p in map(self.phase, range(self.steps)))


@dataclass(frozen=True, slots=True)
class Progressing:
    """What an objective may depend on: nothing else changes from step to step."""

    step: int
    done: float  # share of the steps, 0 to 1
    phase: Phase
    generator: torch.Generator  # seeded by the step, so a resumed run repeats it


Objective = Callable[[Progressing], tuple[torch.Tensor, dict[str, torch.Tensor]]]


def build_optimisers(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers, AdamW for embeddings and norms."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        inside = parameter.dim() == 2 and "embed_tokens" not in name
        (matrices if inside else others).append(parameter)
    muon = torch.optim.Muon(
        matrices,
        lr=schedule.matrix_rate,
        weight_decay=schedule.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW(
        others, lr=schedule.other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    for optimiser in (muon, adamw):
        for group in optimiser.param_groups:
            group["full_lr"] = group["lr"]
    return [muon, adamw]


def _progress(label: str, console: Console | None) -> Progress:
    return Progress(
        TextColumn(f"[bold]{label:<8}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  {task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        refresh_per_second=1,
        console=console,
    )


def fit(
    model: nn.Module,
    objective: Objective,
    schedule: Schedule,
    folder: Path,
    seed: int,
    label: str,
    resume: bool = True,
    stop_after: int | None = None,
    optimisers: Callable[[nn.Module, Schedule], list[torch.optim.Optimizer]] = build_optimisers,
    console: Console | None = None,
) -> dict:
    """Train ``model`` in place; returns what a model card needs.

    Checkpoints go to ``folder/{label}.pt`` about every minute, a line per ten steps to
    ``folder/{label}.jsonl``. ``stop_after`` ends early as if interrupted (for tests).
    ``optimisers`` builds them, with the full rate of a group under ``full_lr``; ``console`` shows
    the bar (default: standard output).

    Raises:
        KeyboardInterrupt: stopped; where it hits a loss being computed, no step is lost.
    """
    built = optimisers(model, schedule)
    path, step, seconds = folder / f"{label}.pt", 0, 0.0
    if resume and path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimiser, state in zip(built, saved["optimisers"], strict=True):
            rates = [group["full_lr"] for group in optimiser.param_groups]
            optimiser.load_state_dict(state)
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["full_lr"] = rate  # the schedule's, should it have changed
        step, seconds = saved["step"], saved["seconds"]

    def save() -> None:
        states = [optimiser.state_dict() for optimiser in built]
        saved = {"model": model.state_dict(), "optimisers": states}
        saved |= {"step": step, "seconds": seconds}
        write_whole(path, lambda target: torch.save(saved, target), "a checkpoint")

    folder.mkdir(parents=True, exist_ok=True)
    last_save = clock = time.monotonic()
    with _progress(label, console) as bar, (folder / f"{label}.jsonl").open("a") as log:
        task = bar.add_task(label, total=schedule.steps, completed=step, note="")
        while step < schedule.steps and (stop_after is None or step < stop_after):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
            phase = schedule.phase(step)
            state = Progressing(step, step / schedule.steps, phase, generator)
            for optimiser in built:
                for group in optimiser.param_groups:
                    group["lr"] = group["full_lr"] * schedule.factor(step)
            try:
                loss, parts = objective(state)
                loss.backward()
            except KeyboardInterrupt:
                save()  # nothing has changed since the last step
                raise
            for optimiser in built:
                optimiser.step()
                optimiser.zero_grad()
            step += 1
            now = time.monotonic()
            seconds, rate, clock = (
                seconds + now - clock,
                phase.rows * phase.width / (now - clock),
                now,
            )
            if step % LOG_EVERY == 0 or step == schedule.steps:
                numbers = {name: round(float(value), 4) for name, value in parts.items()}
                line = {"step": step, "seconds": round(seconds, 1), "tokens_per_s": round(rate)}
                log.write(json.dumps(line | numbers) + "\n")
                log.flush()
                note = " ".join(f"{name} {value:.3f}" for name, value in numbers.items())
                bar.update(task, completed=step, note=f"{rate:.0f} tok/s  {note}")
            if now - last_save > SAVE_SECONDS:
                save()
                last_save = now
    save()
    return {"steps": step, "tokens": schedule.tokens, "seconds": round(seconds)}
