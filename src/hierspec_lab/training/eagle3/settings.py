"""Settings of the training of an EAGLE-3 network."""

from __future__ import annotations

from dataclasses import dataclass

from hierspec.errors import HierspecError
from hierspec_lab.training.models import validate_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Settings:
    """Everything that decides a network, besides the target and the texts.

    Attributes:
        draft_vocab: D, the size of its vocabulary: the D most frequent tokens of the texts.
        feature_layers: after which layers of the target; default: 2, n/2 and n − 3.
        intermediate: width of its MLP; default: the target's.
        depth: how many steps are unrolled at most: one in the first tenth of the training, then the
            smaller of two numbers that every batch draws from 1 to this.
        decay: the weight of a step's loss, relative to the step before.
        minutes: of training; takes precedence over ``steps``, and these over ``epochs``.
        conversations: how many the target writes where no texts are given.
        batch: positions in a batch, padding included.
        longest: tokens read of a text; the rest is left out.
        store_gib: most space for the target's features on disk.
        watch_steps: after how many steps to look for new texts, again and again; 0: never.
        measure_minutes: after how many to measure the network and write it, again and again.
    """

    draft_vocab: int = 8192
    feature_layers: tuple[int, ...] | None = None
    intermediate: int | None = None
    depth: int = 5
    decay: float = 0.9
    learning_rate: float = 2e-3
    minutes: float | None = None
    epochs: float = 2
    steps: int | None = None
    conversations: int = 2500
    batch: int = 320
    longest: int = 768
    store_gib: float = 8
    watch_steps: int = 0
    measure_minutes: float = 15
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = ("draft_vocab", "depth", "decay", "learning_rate", "epochs", "batch", "store_gib")
        validate_numbers(self, (*numbers, "measure_minutes", "minutes", "steps", "intermediate"))
        if self.longest < 3:
            raise HierspecError(f"longest must be at least 3 tokens, not {self.longest}")
        if self.watch_steps < 0:
            raise HierspecError(f"watch must not be negative, not {self.watch_steps}")
        layers = self.feature_layers
        if layers is not None and (len(layers) != 3 or layers != tuple(sorted({*layers}))):
            raise HierspecError(
                f"EAGLE-3 reads three different layers, lowest first, as in 2,15,27; got "
                f"{','.join(map(str, layers))}"
            )
