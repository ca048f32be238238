"""From events to stories: who offered what to whom, and what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .reading import check
from .story import Call, Cell, Story

_ROUNDING = 2e-6  # seconds; times in files are rounded


def stories(events: Sequence[dict[str, Any]]) -> list[Story]:
    """The sequences of a trace, in order; batches that share a file come one after another.

    Raises:
        ValueError: an event cannot be drawn, or there is none.
    """
    if not events:
        raise ValueError("there are no events to draw: run a generation with a tracer first")
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
    raise ValueError(f"no draft begins with the accepted tokens {kept}")


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
