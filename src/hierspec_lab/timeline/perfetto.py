"""A trace for Perfetto (ui.perfetto.dev) and chrome://tracing, in their JSON trace-event format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .drawing import TokenText
from .events import TraceEvent
from .sequence import Call, Timeline, timelines


def chrome(events: Sequence[TraceEvent], texts: TokenText | None = None) -> dict[str, Any]:
    """Return the object to write as JSON: a process per sequence, a track per level, target on top.

    ``ts`` and ``dur`` are microseconds. Generations that share a trace are laid side by side:
    each starts at 0.

    Args:
        texts: token id → text.
    """
    out: list[dict[str, Any]] = []
    for pid, timeline in enumerate(timelines(events)):
        name = f"generation {timeline.generation}, sequence {timeline.sequence}"
        out.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}})
        for index, level in timeline.levels.items():
            track = {"ph": "M", "pid": pid, "tid": index}
            order = timeline.root - index
            out.append({**track, "name": "thread_name", "args": {"name": level}})
            out.append({**track, "name": "thread_sort_index", "args": {"sort_index": order}})
        for call in timeline.calls:
            out.append(_slice(call, timeline, pid, texts))
    return {"displayTimeUnit": "ms", "traceEvents": out}


def _slice(call: Call, timeline: Timeline, pid: int, texts: TokenText | None) -> dict[str, Any]:
    args: dict[str, Any] = {
        "tokens": [cell.token for cell in call.cells],
        "kinds": [cell.kind for cell in call.cells],
        "fates": [cell.fate for cell in call.cells],
    }
    if texts is not None:
        args["text"] = "".join(texts(cell.token) for cell in call.cells)
    if call.kind == "check":
        args["num_draft_tokens"] = call.drafted
        args["num_accepted"] = call.accepted
    return {
        "ph": "X",
        "name": f"{call.kind} {call.accepted}/{call.drafted}" if call.drafted else call.kind,
        "cat": call.kind,
        "pid": pid,
        "tid": call.index,
        "ts": round(call.began * 1e6, 3),
        "dur": round(call.seconds * 1e6, 3),
        "args": args,
    }
