"""What decides exit heads, besides the model and the texts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hierspec.errors import HierspecError
from hierspec.lm.exit_heads import KINDS, TRANSFORM


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsSettings:
    """What decides the heads, besides the model and the texts.

    Attributes:
        exits: after how many layers; the last layer needs no head.
        kind: ``transform`` or ``full`` (:mod:`hierspec.lm.exit_heads`).
        epochs: passes over the text to train on; ``steps`` takes precedence.
        tokens: most tokens of text used, what is kept back for measuring included.
        rows, width: windows in a batch, and tokens in a window.
        held_out: most windows to measure on.
    """

    exits: tuple[int, ...]
    kind: str = TRANSFORM
    learning_rate: float = 2e-4
    epochs: float = 2
    steps: int | None = None
    tokens: int = 131_072
    rows: int = 2
    width: int = 256
    held_out: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise HierspecError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if not self.exits:
            raise HierspecError("no exits: name layers, as in --exits 2,4")
        for name in ("learning_rate", "epochs", "tokens", "rows", "width", "held_out"):
            if not 0 < getattr(self, name) < math.inf:
                raise HierspecError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise HierspecError(f"steps must be at least 1, not {self.steps}")
