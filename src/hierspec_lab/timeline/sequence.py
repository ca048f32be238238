"""What became of every token: the calls of one sequence, and the cells they handed up.

A level hands its tokens up; the level above accepts some and adds one of its own. So each token of
a level is a *cell*, which refers to the cell of the level below that it was accepted from, and
records whether the level above accepted it. Tokens that the target emits, and the cells they come
from, are the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hierspec.errors import HierspecError

from .events import CheckEvent, DraftEvent, Event, RowEvent, TraceEvent, as_record

_ROUNDING = 2e-6  # seconds; times in files are rounded
FATES = ("text", "dropped", "rejected", "unseen")
CellKey = tuple[int, int, int]  # level, position, number of the draft


@dataclass(slots=True, eq=False)
class TokenCell:
    """One token at one level.

    Attributes:
        position: in the sequence, prompt included.
        kind: how the level produced it: ``"drafted"``, ``"kept"`` (from the level below),
            ``"recovered"``, ``"bonus"``, ``"plain"`` (there was no draft), or ``"follow-up"``
            (an extra token that the rule needs, drawn after the check).
        source: the cell of the level below that it was accepted from.
        accepted: whether the level above accepted it; ``None``: it was never offered the token.
        in_text: whether the target emitted it.
    """

    token: int
    position: int
    kind: str
    source: TokenCell | None = None
    accepted: bool | None = None
    in_text: bool = False

    @property
    def fate(self) -> str:
        """``"text"``, ``"dropped"`` (accepted by the level above, but not in the text),
        ``"rejected"``, or ``"unseen"``."""
        if self.in_text:
            return "text"
        return {None: "unseen", True: "dropped", False: "rejected"}[self.accepted]


@dataclass(slots=True, eq=False)
class Call:
    """One call of a level; times in seconds; ``drafted`` and ``accepted`` count for checks."""

    kind: str
    index: int
    began: float
    seconds: float
    cells: list[TokenCell] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True, eq=False)
class Timeline:
    """The calls of one sequence and the fates of its tokens, rebuilt from the trace.

    Attributes:
        generation, sequence: their numbers in the trace.
        levels: names by node index, the target last.
    """

    generation: int
    sequence: int
    levels: dict[int, str]
    calls: list[Call] = field(default_factory=list)

    @property
    def root(self) -> int:
        return max(self.levels)

    @property
    def target_checks(self) -> list[Call]:
        """The target's checks, one a round."""
        return [call for call in self.calls if call.index == self.root and call.kind == "check"]

    @property
    def text(self) -> list[tuple[TokenCell, int]]:
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
        """Count the tokens of each level by fate."""
        out: dict[int, dict[str, int]] = {i: dict.fromkeys(FATES, 0) for i in self.levels}
        for call in self.calls:
            for cell in call.cells:
                out[call.index][cell.fate] += 1
        return out

    def count_judged(self, index: int) -> tuple[int, int]:
        """Count a level's tokens that the level above judged, and those of them that it accepted.

        A prefix that several drafts share counts in each of them.
        """
        judged = [c.accepted for call in self.calls if call.index == index for c in call.cells]
        return sum(a is not None for a in judged), sum(a is True for a in judged)


def timelines(events: Sequence[TraceEvent]) -> list[Timeline]:
    """Rebuild every sequence of a trace, in order; batches that share a file follow each other.

    Raises:
        HierspecError: an event cannot be drawn, or there is none.
    """
    if not events:
        raise HierspecError("there are no events to draw: run a generation with a tracer first")
    out: list[Timeline] = []
    for generation, part in enumerate(_split_generations([as_record(event) for event in events])):
        levels = dict(sorted({event.index: event.level for event in part}.items()))
        for sequence in dict.fromkeys(event.sequence for event in part):
            sequence_events = [event for event in part if event.sequence == sequence]
            out.append(_link_cells(sequence_events, Timeline(generation, sequence, levels)))
    return out


def _split_generations(events: Sequence[Event]) -> list[list[Event]]:
    """Split events by generation, where times start again or requests of a sequence overlap."""
    out: list[list[Event]] = []
    latest, ends = float("inf"), {}
    for event in events:
        if isinstance(event, DraftEvent) and not event.leaf:
            continue  # it spans the events of its parts
        if event.began < max(latest, ends.get(event.sequence, 0.0)) - _ROUNDING:
            out.append([])
            ends = {}
        latest, ends[event.sequence] = event.began, event.began + event.seconds
        out[-1].append(event)
    return out


def _link_cells(events: Sequence[Event], timeline: Timeline) -> Timeline:
    """Add the events' calls to the timeline, each token linked to the cell it was accepted from."""
    latest: dict[CellKey, TokenCell] = {}
    calls: dict[int, Call] = {}
    for event in events:
        index, start = event.index, event.base_length
        call = Call(event.kind, index, event.began, event.seconds)
        new_cells: list[list[TokenCell]] = []
        if isinstance(event, DraftEvent):
            for tokens in [event.tokens, *event.others]:
                new_cells.append([TokenCell(t, start + i, "drafted") for i, t in enumerate(tokens)])
        elif isinstance(event, CheckEvent):
            drafts = [
                _offered_cells(tokens, owners, start, number, latest, calls)
                for number, (tokens, owners) in enumerate(event.drafts)
            ]
            chosen = _kept_draft(event, drafts)
            for cell in (cell for draft in drafts for cell in draft):
                cell.accepted = False
            call.drafted, call.accepted = len(chosen), event.num_accepted
            new_cells = [_emitted_cells(event, chosen, index == timeline.root)]
        for number, cells in enumerate(new_cells):
            call.cells += cells
            latest.update({(index, cell.position, number): cell for cell in cells})
        timeline.calls.append(call)
        if not isinstance(event, RowEvent):
            calls[index] = call
    return timeline


def _offered_cells(
    tokens: list[int],
    owners: list[int],
    start: int,
    number: int,
    latest: dict[CellKey, TokenCell],
    calls: dict[int, Call],
) -> list[TokenCell]:
    """Find the cells of an offered draft; tokens without an event join their level's last call."""
    out = []
    for i, (token, owner) in enumerate(zip(tokens, owners, strict=True)):
        cell = latest.pop((owner, start + i, number), None)
        if cell is None or cell.token != token:
            cell = TokenCell(token, start + i, "follow-up")
            if owner in calls:
                calls[owner].cells.append(cell)
        out.append(cell)
    return out


def _kept_draft(event: CheckEvent, drafts: list[list[TokenCell]]) -> list[TokenCell]:
    """Return the draft that begins with the accepted tokens."""
    kept = event.emitted[: event.num_accepted]
    for draft in drafts:
        if [cell.token for cell in draft[: len(kept)]] == kept:
            return draft
    raise HierspecError(f"no draft begins with the accepted tokens {kept}")


def _emitted_cells(event: CheckEvent, below: list[TokenCell], is_target: bool) -> list[TokenCell]:
    """Make the cells of a check, and record its decision in those below."""
    kept, start = event.num_accepted, event.base_length
    last_kind = "plain" if not below else "recovered" if kept < len(below) else "bonus"
    cells = []
    for i, token in enumerate(event.emitted):
        source = below[i] if i < kept else None
        cells.append(
            TokenCell(token, start + i, "kept" if source else last_kind, source, None, is_target)
        )
    for i, cell in enumerate(below):
        cell.accepted = i < kept
    if is_target:
        for cell in below[:kept]:
            ancestor: TokenCell | None = cell
            while ancestor is not None:
                ancestor.in_text, ancestor = True, ancestor.source
    return cells
