"""A method by name, before it has models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # models bring torch along; a list of names needs none of it
    from hierspec.bench.turns import Method

    from .ours import Models


GROUPS = ("plain", "planned", "paper", "baseline", "peer")


@dataclass(frozen=True, slots=True)
class Entry:
    """A method by name, before it has models.

    Attributes:
        name: unique in the catalogue; ``--methods`` takes it.
        title: for tables and pictures.
        group: one of ``GROUPS``.
        source: ``P1`` … ``P5``, a citation, or empty.
        summary: one line of help.
        lossless: whether its text has the target's law (greedy: the target's tokens).
        candidates: models, temperature → the method, or a small grid of it to tune; as many for
            comparable methods. Raises :class:`hierspec.bench.turns.Unavailable` where it cannot
            run.
    """

    name: str
    title: str
    group: str
    source: str
    summary: str
    lossless: bool
    candidates: Callable[[Models, float], list[Method]]
