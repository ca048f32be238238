"""A trace from its file, refused where it is damaged.

What became of every token: the calls of one sequence, and the cells they handed up.

A level hands its tokens up; the level above keeps some and adds one of its own. So each token of
a level is a *cell* that knows the cell of the level below it was kept from, and what the level
above said. What the target emits is the text; whatever leads there was kept for good.

From events to stories: who offered what to whom, and what was decided.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError

_INTEGER = ("sequence", "index", "base_length")
_TOKENS = {"draft": ("tokens",), "check": ("draft", "owners", "emitted"), "row": ()}


def read(path: str | Path) -> list[dict[str, Any]]:
    """The events of a trace file, in order.

    A last line that was cut off by an interruption is left out.

    Raises:
        ValueError: the file cannot be read, a line is damaged, or nothing is in it; names both.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise HierspecError(f"cannot read the trace {path}: {error.strerror}") from None
    events = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line.decode())
        except ValueError:  # of JSON or of UTF-8
            if number == len(lines):
                break  # no line feed follows: writing was cut short
            raise HierspecError(f"{path}, line {number}: not JSON; write the trace anew") from None
        try:
            check(event)
        except ValueError as error:
            raise HierspecError(f"{path}, line {number}: {error}") from None
        events.append(event)
    if not events:
        raise HierspecError(
            f"{path} holds no events; write one with: hierspec generate --trace FILE"
        )
    return events


def check(event: Any) -> None:
    """Whether an event can be drawn.

    Raises:
        ValueError: it cannot; says why.
    """
    if not isinstance(event, dict):
        raise HierspecError("an event is a JSON object")
    kind = event.get("kind")
    if kind not in _TOKENS:
        raise HierspecError(f"kind must be one of {', '.join(_TOKENS)}; got {kind!r}")
    if "began" not in event or "seconds" not in event:
        raise HierspecError(
            "no times (began, seconds): the trace is from an interpreter without a clock or an "
            "older version; write it anew with: hierspec generate --trace FILE"
        )
    for key in ("began", "seconds"):
        value = event[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise HierspecError(f"{key} must be seconds, at least 0; got {value!r}")
    for key in _INTEGER:
        if not _count(event.get(key)):
            raise HierspecError(f"{key} must be a whole number, at least 0; got {event.get(key)!r}")
    if not isinstance(event.get("level"), str):
        raise HierspecError(f"level must be a name; got {event.get('level')!r}")
    for key in _TOKENS[kind]:
        values = event.get(key)
        if not isinstance(values, list) or not all(map(_count, values)):
            raise HierspecError(f"{key} must be a list of whole numbers; got {values!r}")
    others = event.get("others", [])
    if not isinstance(others, list) or not all(
        isinstance(one, list) and all(map(_count, one)) for one in others
    ):
        raise HierspecError(f"others must be a list of drafts; got {others!r}")
    if kind == "draft" and not isinstance(event.get("leaf"), bool):
        raise HierspecError(f"leaf must be true or false; got {event.get('leaf')!r}")
    if kind == "check":
        _check_verdict(event)


def _check_verdict(event: dict[str, Any]) -> None:
    kept, draft, emitted = event.get("num_accepted"), event["draft"], event["emitted"]
    if len(event["owners"]) != len(draft):
        raise HierspecError(f"{len(draft)} draft tokens have {len(event['owners'])} owners")
    longest = max(map(len, [draft, *event.get("others", [])]))
    if not _count(kept) or kept > min(longest, len(emitted)):  # type: ignore[operator]
        raise HierspecError(f"num_accepted is {kept!r} of {len(draft)} draft tokens, "
                         f"with {len(emitted)} emitted")  # fmt: skip


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


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


_ROUNDING = 2e-6  # seconds; times in files are rounded


def stories(events: Sequence[dict[str, Any]]) -> list[Story]:
    """The sequences of a trace, in order; batches that share a file come one after another.

    Raises:
        ValueError: an event cannot be drawn, or there is none.
    """
    if not events:
        raise HierspecError("there are no events to draw: run a generation with a tracer first")
    out: list[Story] = []
    for generation, part in enumerate(_generations(events)):
        calls = [event for event in part if event["kind"] != "draft" or event["leaf"]]
        levels = {event["index"]: event["level"] for event in calls}
        levels = dict(sorted(levels.items()))
        for sequence in dict.fromkeys(event["sequence"] for event in calls):
            own = [event for event in calls if event["sequence"] == sequence]
            out.append(_linked(own, Story(generation, sequence, levels)))
    return out


def _generations(events: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Times start again with every generation, and a sequence asks for one thing at a time."""
    out: list[list[dict[str, Any]]] = []
    latest, ends = float("inf"), {}
    for event in events:
        check(event)
        began, end = event["began"], event["began"] + event["seconds"]
        whole = event["kind"] == "draft" and not event["leaf"]  # spans the events of its parts
        if not whole:
            if began < max(latest, ends.get(event["sequence"], 0.0)) - _ROUNDING:
                out.append([])
                ends = {}
            latest, ends[event["sequence"]] = began, end
        if out:
            out[-1].append(event)
    return out


def _linked(events: Sequence[dict[str, Any]], story: Story) -> Story:
    latest: dict[tuple[int, int, int], Cell] = {}  # by level, position, and number of the draft
    calls: dict[int, Call] = {}
    for event in events:
        index, at = event["index"], event["base_length"]
        call = Call(event["kind"], index, event["began"], event["seconds"])
        made: list[list[Cell]] = []
        if event["kind"] == "draft":
            for tokens in [event["tokens"], *event.get("others", [])]:
                made.append([Cell(t, at + i, "drafted") for i, t in enumerate(tokens)])
        elif event["kind"] == "check":
            drafts = [
                _found(tokens, owners, at, number, latest, calls)
                for number, (tokens, owners) in enumerate(_offered(event))
            ]
            chosen = _chosen(event, drafts)
            for cell in (cell for draft in drafts for cell in draft):
                cell.accepted = False
            call.drafted, call.accepted = len(chosen), event["num_accepted"]
            made = [_emitted(event, chosen, index == story.root)]
        for number, cells in enumerate(made):
            call.cells += cells
            latest.update({(index, cell.position, number): cell for cell in cells})
        story.calls.append(call)
        if event["kind"] != "row":
            calls[index] = call
    return story


def _offered(event: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """The drafts of a check and whose they are; several are always one leaf's."""
    owners = event["owners"]
    others = [(tokens, owners[:1] * len(tokens)) for tokens in event.get("others", [])]
    return [(event["draft"], owners), *others]


def _found(
    tokens: list[int],
    owners: list[int],
    at: int,
    number: int,
    latest: dict[tuple[int, int, int], Cell],
    calls: dict[int, Call],
) -> list[Cell]:
    """The cells of an offered draft; those that no event told of join their level's last call."""
    out = []
    for i, (token, owner) in enumerate(zip(tokens, owners, strict=True)):
        cell = latest.pop((owner, at + i, number), None)
        if cell is None or cell.token != token:
            cell = Cell(token, at + i, "follow-up")
            if owner in calls:
                calls[owner].cells.append(cell)
        out.append(cell)
    return out


def _chosen(event: dict[str, Any], drafts: list[list[Cell]]) -> list[Cell]:
    """The draft that begins with what was accepted."""
    kept = event["emitted"][: event["num_accepted"]]
    for draft in drafts:
        if [cell.token for cell in draft[: len(kept)]] == kept:
            return draft
    raise HierspecError(f"no draft begins with the accepted tokens {kept}")


def _emitted(event: dict[str, Any], below: list[Cell], is_target: bool) -> list[Cell]:
    """The cells of a check; those below learn what was decided."""
    kept, at = event["num_accepted"], event["base_length"]
    own = "plain" if not below else "corrected" if kept < len(below) else "bonus"
    cells = []
    for i, token in enumerate(event["emitted"]):
        source = below[i] if i < kept else None
        cells.append(Cell(token, at + i, "kept" if source else own, source, None, is_target))
    for i, cell in enumerate(below):
        cell.accepted = i < kept
    if is_target:
        for cell in below[:kept]:
            seen: Cell | None = cell
            while seen is not None:
                seen.in_text, seen = True, seen.source
    return cells
