"""Settings of the training of exit heads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hierspec.errors import HierspecError
from hierspec.lm.exit_heads import KINDS, MLP, TRANSFORM
from hierspec_lab.training.fit import CosineSchedule, Phase
from hierspec_lab.training.models import validate_numbers

LOSSES = ("kl", "tv")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How texts are cut and how long heads of any kind are trained.

    Attributes:
        epochs: passes over the training positions; ``steps`` takes precedence.
        tokens: most tokens of text used, the held-out part included.
        rows, width: windows in a batch, and tokens in a window.
        held_out: most windows, or conversations, to measure on.
    """

    learning_rate: float
    epochs: float
    steps: int | None = None
    tokens: int = 131_072
    rows: int = 2
    width: int = 256
    held_out: int = 16
    seed: int = 0

    def schedule(self, count: int) -> CosineSchedule:
        """Schedule as many steps as the epochs hold batches of ``count`` training tokens."""
        steps = self.steps or math.ceil(self.epochs * count / (self.rows * self.width))
        phases = (Phase(1.0, self.rows, self.width),)
        return CosineSchedule(steps, phases, adamw_rate=self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsSettings(TrainingSettings):
    """Everything that decides exit heads, besides the model and the texts.

    Attributes:
        exits: after how many layers; the last layer needs no head.
        kind: ``transform``, ``mlp`` or ``full`` (:mod:`hierspec.lm.exit_heads`).
        vocabulary: how many tokens the heads score, the most frequent ones; ``None``: all.
        inner: m, of an mlp; ``None``: twice the hidden size.
        loss: ``kl``, or ``tv``: KL that turns into the total variation.
        teacher: the exit whose head those before it learn from, further on; ``None``: all learn
            from the last layer. [P1 §4.1: the smallest model is tuned to match the next one]
    """

    exits: tuple[int, ...]
    kind: str = TRANSFORM
    vocabulary: int | None = None
    inner: int | None = None
    loss: str = "kl"
    teacher: int | None = None
    learning_rate: float = 2e-4
    epochs: float = 2

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise HierspecError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.loss not in LOSSES:
            raise HierspecError(f"loss must be one of {', '.join(LOSSES)}, not {self.loss!r}")
        if self.inner is not None and self.kind != MLP:
            raise HierspecError(f"inner is the size of an mlp; kind {self.kind} has none")
        if not self.exits:
            raise HierspecError("no exits: name layers, as in --exits 2,4")
        if self.teacher is not None and self.teacher not in sorted(set(self.exits))[1:]:
            raise HierspecError(
                f"teacher {self.teacher} is no exit with another before it: name one of --exits"
            )
        positive = ("learning_rate", "epochs", "tokens", "rows", "width", "held_out")
        validate_numbers(self, positive, ("steps", "vocabulary", "inner"))
