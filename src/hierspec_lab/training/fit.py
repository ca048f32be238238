"""The training loop: optimisers, schedule, checkpoints, a progress bar, for any module.

:func:`fit` trains everything here: a module, by an objective that returns the loss of a step, and a
schedule. A step depends on its number and the seed alone, so an interrupted run goes on
from its last checkpoint and ends with the same bits.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn
from torch.optim import Optimizer

from hierspec.utils.files import read_bytes, write_atomically
from hierspec.utils.json_lines import parse_lines
from hierspec.utils.records import Record
from hierspec.utils.schema import validate

SAVE_SECONDS = 60.0
_MOST_SECONDS = 60.0  # that a step counts as
LOG_EVERY = 10
WARMUP_SHARE = 0.05  # of a cosine schedule's steps


@dataclass(frozen=True, slots=True)
class Phase:
    """The form of batches, [rows, width], up to a share of all steps."""

    until: float
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The length of a training, the form of its batches, and the learning rates.

    The rates are constant after the warm-up and fall linearly to zero in the last part, so a run
    can be shortened while it lasts: start it again with fewer ``steps`` before the fall begins.
    """

    steps: int
    phases: tuple[Phase, ...]
    matrix_rate: float = 4e-3  # Muon, update scaled to AdamW's size
    adamw_rate: float = 3e-3  # AdamW: embeddings and norms
    weight_decay: float = 0.05
    warmup_steps: int = 30
    decay_share: float = 0.45

    def phase(self, step: int) -> Phase:
        """Return the batch form at a step; every phase should hold as many tokens."""
        return next(p for p in self.phases if step < p.until * self.steps or p is self.phases[-1])

    def factor(self, step: int, seconds: float = 0.0) -> float:
        """Return the factor of the rates at a step, after so many seconds of training."""
        rising = (step + 1) / self.warmup_steps
        falling = (self.steps - step) / max(1.0, self.decay_share * self.steps)
        return min(1.0, rising, falling)

    def progress(self, step: int, seconds: float) -> float:
        """Return the share of the training that is behind; it ends at 1."""
        return step / self.steps

    @property
    def tokens(self) -> int:
        return sum(p.rows * p.width for p in map(self.phase, range(self.steps)))


@dataclass(frozen=True, slots=True)
class CosineSchedule(Schedule):
    """Linear warm-up over the first 5 % of the steps, then half a cosine down to zero."""

    def factor(self, step: int, seconds: float = 0.0) -> float:
        warm = max(1, round(WARMUP_SHARE * self.steps))
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


@dataclass(frozen=True, slots=True)
class TimedSchedule(Schedule):
    """Ends after so many seconds of training, whatever the number of steps; ``steps`` is unused.

    A run that is interrupted goes on with the time it had left.
    """

    seconds: float = 3600.0

    def progress(self, step: int, seconds: float) -> float:
        return seconds / self.seconds

    def factor(self, step: int, seconds: float = 0.0) -> float:
        rising = (step + 1) / self.warmup_steps
        falling = (1 - self.progress(step, seconds)) / self.decay_share
        return max(0.0, min(1.0, rising, falling))


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """What an objective may depend on, besides constants."""

    number: int
    progress: float  # share of the training before this step, 0 to 1
    phase: Phase
    generator: torch.Generator  # seeded by the step, so a resumed run repeats it


Losses = tuple[torch.Tensor, dict[str, torch.Tensor]]  # the loss, and its parts for the log
Objective = Callable[[TrainingStep], Losses]
BuildOptimisers = Callable[[nn.Module, Schedule], Sequence[Optimizer]]  # with their full rates


def muon_and_adamw(model: nn.Module, schedule: Schedule) -> list[Optimizer]:
    """Build Muon for matrices inside layers, AdamW for embeddings, an untied head and norms."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices, other_parameters = [], []
    for name, parameter in model.named_parameters():
        in_layer = (
            parameter.dim() == 2 and id(parameter) not in embeddings and "lm_head" not in name
        )
        (matrices if in_layer else other_parameters).append(parameter)
    muon = torch.optim.Muon(
        matrices,
        lr=schedule.matrix_rate,
        weight_decay=schedule.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW(
        other_parameters, lr=schedule.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    return [muon, adamw]


def compile_if(enabled: bool, function: Callable) -> Callable:
    """Compile a function if enabled and there is a C++ compiler: 1.4x the tokens per second."""
    return torch.compile(function, dynamic=False) if enabled and shutil.which("g++") else function


def fit(
    model: nn.Module,
    objective: Objective,
    schedule: Schedule,
    folder: Path,
    seed: int,
    label: str,
    *,
    stop_after: int | None = None,
    build_optimisers: BuildOptimisers = muon_and_adamw,
    show_progress: bool = True,
) -> dict[str, int]:
    """Train ``model`` in place; return its steps, tokens and seconds.

    A checkpoint is written to ``folder/{label}.pt`` about every minute, and training resumes from
    it; a line per ten steps goes to ``folder/{label}.jsonl``.

    Args:
        stop_after: stop after so many steps as if interrupted, if it takes more (for tests).
        show_progress: as a bar on standard output.

    Raises:
        KeyboardInterrupt: stopped; no step is lost if a loss was being computed.
    """
    optimisers = build_optimisers(model, schedule)
    groups = [(group, group["lr"]) for optimiser in optimisers for group in optimiser.param_groups]
    path, step, seconds = folder / f"{label}.pt", 0, 0.0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        for optimiser, state in zip(optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        # Loading replaces the groups; the full rates stay the schedule's, should it have changed.
        loaded = (group for optimiser in optimisers for group in optimiser.param_groups)
        groups = [(group, rate) for group, (_, rate) in zip(loaded, groups, strict=True)]
        step, seconds = saved["step"], saved["seconds"]

    def save() -> None:
        states = [optimiser.state_dict() for optimiser in optimisers]
        saved = {"model": model.state_dict(), "optimisers": states}
        saved |= {"step": step, "seconds": seconds}
        write_atomically(path, lambda target: torch.save(saved, target), "a checkpoint")

    folder.mkdir(parents=True, exist_ok=True)
    drop_cut_line(folder / f"{label}.jsonl")
    last_save = clock = time.monotonic()
    max_steps = math.inf if stop_after is None else stop_after
    with _progress(label, show_progress) as bar, (folder / f"{label}.jsonl").open("a") as log:
        task = bar.add_task(label, total=1.0, note="")
        while (progress := schedule.progress(step, seconds)) < 1 and step < max_steps:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
            phase = schedule.phase(step)
            for group, rate in groups:
                group["lr"] = rate * schedule.factor(step, seconds)
            try:
                loss, parts = objective(TrainingStep(step, progress, phase, generator))
                loss.backward()
            except KeyboardInterrupt:
                save()  # nothing has changed since the last step
                raise
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
            step += 1
            now = time.monotonic()
            speed = phase.rows * phase.width / (now - clock)
            # A process that was stopped and goes on, or measured on the way, did not train so long.
            seconds, clock = seconds + min(now - clock, _MOST_SECONDS), now
            progress = schedule.progress(step, seconds)
            if step % LOG_EVERY == 0 or progress >= 1:
                numbers = {name: round(float(value), 4) for name, value in parts.items()}
                line = {"step": step, "seconds": round(seconds, 1), "tokens_per_s": round(speed)}
                log.write(json.dumps(line | numbers) + "\n")
                log.flush()
                note = " ".join(f"{name} {value:.3f}" for name, value in numbers.items())
                bar.update(task, completed=progress, note=f"{speed:.0f} tok/s  {note}")
            if now - last_save > SAVE_SECONDS:
                save()
                last_save = now
    save()
    if progress < 1:
        raise KeyboardInterrupt
    return {"steps": step, "tokens": schedule.tokens, "seconds": round(seconds)}


class _LogLine(Record):
    step: int


def _checked(line: Any) -> dict[str, Any]:
    validate(_LogLine, line, "")
    return line


def drop_cut_line(log: Path) -> None:
    """Drop the end of a log that an interruption or a full disk cut within a line."""
    if log.is_file() and not (content := log.read_bytes()).endswith(b"\n") and content:
        write_atomically(log, content[: content.rfind(b"\n") + 1], "the losses")


def curve(log: Path, max_lines: int | None = None) -> list[dict[str, Any]]:
    """Return losses by step, from the lines that :func:`fit` wrote; a resumed run repeats some.

    Args:
        max_lines: about so many lines, evenly spread; ``None``: all.

    Raises:
        HierspecError: a line is damaged; names it.
    """
    body = read_bytes(log, "the losses")
    lines = [line for _, line in parse_lines(body, str(log), _checked)]
    every = 1 if max_lines is None else max(1, len(lines) // max_lines)
    return list({line["step"]: line for line in lines[::every]}.values())


def _progress(label: str, show: bool) -> Progress:
    return Progress(
        TextColumn(f"[bold]{label:<8}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[note]}"),
        TimeElapsedColumn(),
        refresh_per_second=1,
        disable=not show,
    )
