"""A trace from its file, refused where it is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

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
        raise ValueError(f"cannot read the trace {path}: {error.strerror}") from None
    events = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line.decode())
        except ValueError:  # of JSON or of UTF-8
            if number == len(lines):
                break  # no line feed follows: writing was cut short
            raise ValueError(f"{path}, line {number}: not JSON; write the trace anew") from None
        try:
            check(event)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        events.append(event)
    if not events:
        raise ValueError(f"{path} holds no events; write one with: hierspec generate --trace FILE")
    return events


def check(event: Any) -> None:
    """Whether an event can be drawn.

    Raises:
        ValueError: it cannot; says why.
    """
    if not isinstance(event, dict):
        raise ValueError("an event is a JSON object")
    kind = event.get("kind")
    if kind not in _TOKENS:
        raise ValueError(f"kind must be one of {', '.join(_TOKENS)}; got {kind!r}")
    if "began" not in event or "seconds" not in event:
        raise ValueError(
            "no times (began, seconds): the trace is from an interpreter without a clock or an "
            "older version; write it anew with: hierspec generate --trace FILE"
        )
    for key in ("began", "seconds"):
        value = event[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise ValueError(f"{key} must be seconds, at least 0; got {value!r}")
    for key in _INTEGER:
        if not _count(event.get(key)):
            raise ValueError(f"{key} must be a whole number, at least 0; got {event.get(key)!r}")
    if not isinstance(event.get("level"), str):
        raise ValueError(f"level must be a name; got {event.get('level')!r}")
    for key in _TOKENS[kind]:
        values = event.get(key)
        if not isinstance(values, list) or not all(map(_count, values)):
            raise ValueError(f"{key} must be a list of whole numbers; got {values!r}")
    others = event.get("others", [])
    if not isinstance(others, list) or not all(
        isinstance(one, list) and all(map(_count, one)) for one in others
    ):
        raise ValueError(f"others must be a list of drafts; got {others!r}")
    if kind == "draft" and not isinstance(event.get("leaf"), bool):
        raise ValueError(f"leaf must be true or false; got {event.get('leaf')!r}")
    if kind == "check":
        _check_verdict(event)


def _check_verdict(event: dict[str, Any]) -> None:
    kept, draft, emitted = event.get("num_accepted"), event["draft"], event["emitted"]
    if len(event["owners"]) != len(draft):
        raise ValueError(f"{len(draft)} draft tokens have {len(event['owners'])} owners")
    longest = max(map(len, [draft, *event.get("others", [])]))
    if not _count(kept) or kept > min(longest, len(emitted)):  # type: ignore[operator]
        raise ValueError(f"num_accepted is {kept!r} of {len(draft)} draft tokens, "
                         f"with {len(emitted)} emitted")  # fmt: skip


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
