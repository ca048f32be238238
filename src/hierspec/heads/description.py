"""What the metadata of a file of heads must be, before anything relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hierspec.checks import is_number

from .kinds import KINDS


def wrong(info: Mapping[str, Any]) -> str | None:
    """What is wrong with the description of a file of heads, in a line; ``None``: nothing."""
    for key, (sound, what, needed) in _KEYS.items():
        if key not in info:
            if needed:
                return f"its metadata lacks {key!r}"
        elif not sound(info[key]):
            return f"its metadata has no valid {key!r}: {_short(info[key])} is not {what}"
    last = info["num_layers"] - 1
    beyond = [layer for layer in info["exits"] if layer > last]
    if beyond:
        return (
            f"its metadata has no valid 'exits': a model of {last + 1} layers has none after "
            f"layer {beyond[0]}"
        )
    return None


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _exits(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(map(_count, value))
        and value == sorted(set(value))
    )


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _figures(value: Any) -> bool:
    """By exit, by name: numbers."""
    return isinstance(value, dict) and all(
        isinstance(row, dict) and all(map(is_number, row.values())) for row in value.values()
    )


_SIZE, _FIGURES = "a whole number above 0", "an object of numbers by exit"
# key → whether a value is sound, what it should be, and whether a file must have it
_KEYS: dict[str, tuple[Callable[[Any], bool], str, bool]] = {
    "kind": (lambda value: value in KINDS, f"one of {', '.join(KINDS)}", True),
    "exits": (_exits, "a list of different layers from 1 on, ascending", True),
    "model": (_text, "a text", True),
    "hidden_size": (_count, _SIZE, True),
    "vocab_size": (_count, _SIZE, True),
    "num_layers": (_count, _SIZE, True),
    "input_size": (_count, _SIZE, False),
    "fingerprint": (lambda value: value is None or _text(value), "a text or null", False),
    "parameters": (_count, _SIZE, False),
    "before": (_figures, _FIGURES, False),
    "after": (_figures, _FIGURES, False),
    "texts": (lambda value: isinstance(value, dict), "an object", False),
}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
