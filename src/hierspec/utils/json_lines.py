"""Files that hold a JSON value on each line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from hierspec.errors import HierspecError, errors_in

from .files import decode_utf8
from .schema import parse_json, validate

T = TypeVar("T")


def is_json_lines(path: Path) -> bool:
    """Return whether a file, by its name, holds a JSON value on each line."""
    return path.suffix.lower() in (".jsonl", ".ndjson")


def parse_lines(
    body: bytes, source: str, parse: Callable[[Any], T], *, may_be_cut: bool = False
) -> Iterator[tuple[int, T]]:
    """Yield the number of each line that is not blank, from 1, and what ``parse`` makes of it.

    Args:
        source: the file's name in errors.
        parse: checks and converts the JSON value of a line; its errors need not name the line.
        may_be_cut: leave out a last line that is not JSON: the file is still being written, or its
            writing was interrupted.

    Raises:
        HierspecError: a line is not UTF-8, not JSON, or refused by ``parse``; names file and line.
    """
    text = decode_utf8(_without_cut_line(body) if may_be_cut else body, source)
    # Not splitlines(): JSON strings may hold U+2028 and the like.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{source}, line {number}"
            value = parse_json(line, place)
            with errors_in(place):
                parsed = parse(value)
            yield number, parsed


def read_line(shape: type[T], line: str | bytes) -> T | None:
    """Return a line's value as ``shape``; ``None`` if it is damaged.

    For files that lines are added to, where an interruption cuts a line short.
    """
    try:
        return validate(shape, parse_json(line, ""), "")
    except HierspecError:
        return None


def _without_cut_line(body: bytes) -> bytes:
    start = body.rfind(b"\n") + 1
    try:
        json.loads(body[start:])
    except (ValueError, RecursionError):
        return body[:start]
    return body
