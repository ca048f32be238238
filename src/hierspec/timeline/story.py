"""What became of every token: the calls of one sequence, and the cells they handed up.

A level hands its tokens up; the level above keeps some and adds one of its own. So each token of
a level is a *cell* that knows the cell of the level below it was kept from, and what the level
above said. What the target emits is the text; whatever leads there was kept for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FATES = ("text", "dropped", "rejected", "unseen")


@dataclass(slots=True, eq=False)
class Cell:
    """One token at one level.

    Attributes:
        position: in the sequence, prompt included.
        kind: how the level came to it: ``"drafted"``, ``"kept"`` (from the level below),
            ``"corrected"``, ``"bonus"``, ``"plain"`` (there was no draft), or ``"follow-up"``
            (the draws after a check that some rules need).
        source: the cell below that was kept.
        accepted: what the level above decided; ``None``: it never saw the token.
        in_text: the target emitted it.
    """

    token: int
    position: int
    kind: str
    source: Cell | None = None
    accepted: bool | None = None
    in_text: bool = False

    @property
    def fate(self) -> str:
        """``"text"``, ``"dropped"`` (kept by the level above, but not in the text),
        ``"rejected"``, or ``"unseen"``."""
        if self.in_text:
            return "text"
        return {None: "unseen", True: "dropped", False: "rejected"}[self.accepted]


@dataclass(slots=True, eq=False)
class Call:
    """What one level did at a time. Seconds; ``drafted`` and ``accepted`` of checks."""

    kind: str
    index: int
    began: float
    seconds: float
    cells: list[Cell] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True, eq=False)
class Story:
    """One sequence. ``levels`` are the names of its generation's, by node index, target last."""

    generation: int
    sequence: int
    levels: dict[int, str]
    calls: list[Call] = field(default_factory=list)

    @property
    def root(self) -> int:
        return max(self.levels)

    @property
    def text(self) -> list[tuple[Cell, int]]:
        """The target's tokens and the level that first wrote each."""
        writers = {id(cell): call.index for call in self.calls for cell in call.cells}
        out = []
        for call in self.calls:
            for cell in call.cells if call.index == self.root else ():
                origin = cell
                while origin.source is not None:
                    origin = origin.source
                out.append((cell, writers.get(id(origin), self.root)))
        return out

    def fates(self) -> dict[int, dict[str, int]]:
        """How many tokens of each level met each fate."""
        out: dict[int, dict[str, int]] = {i: dict.fromkeys(FATES, 0) for i in self.levels}
        for call in self.calls:
            for cell in call.cells:
                out[call.index][cell.fate] += 1
        return out

    def verdicts(self, index: int) -> tuple[int, int]:
        """Of a level's tokens: how many the level above judged, and how many it kept."""
        judged = [c.accepted for call in self.calls if call.index == index for c in call.cells]
        return sum(a is not None for a in judged), sum(a is True for a in judged)
