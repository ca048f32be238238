"""A method by name, before it has models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hierspec_lab.bench.method_records import MethodRecord

if TYPE_CHECKING:  # models bring torch along; a list of names needs none of it
    from .base import Method
    from .ours import BenchModels


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method by name, before it has models.

    Attributes:
        name: unique in the catalogue; ``--methods`` takes it.
        title: for tables and pictures.
        group: one of :data:`hierspec_lab.bench.method_records.GROUPS`.
        source: ``P1`` … ``P5``, a citation, or empty.
        summary: one line of help.
        candidates: models, temperature → the method, or a small grid of it to tune; as many for
            comparable methods. Raises :class:`hierspec_lab.bench.methods.base.Unavailable` where it
            cannot run.
        lossless: whether its text has the target's law (greedy: the target's tokens).
    """

    name: str
    title: str
    group: str
    source: str
    summary: str
    candidates: Callable[[BenchModels, float], list[Method]]
    lossless: bool = True

    def record(self) -> MethodRecord:
        """Make the method's record as it is before anything is measured."""
        return MethodRecord(
            name=self.name,
            title=self.title,
            group=self.group,
            source=self.source,
            lossless=self.lossless,
            configuration=None,
            skipped=None,
            tuning=None,
            predicted_ms_per_token=None,
            parameters=None,
            runs=[],
            summary=None,
        )
