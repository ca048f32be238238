"""Several numbers of a hierarchy varied at once: its budgets, and how often parts are repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..config import ConcatenateConfig

_POINTS = 500  # looked at; a few dozen hold more different ones than are ever wanted


def around(own: Sequence[int]) -> list[tuple[int, ...]]:
    """Different points around ``own``, which comes first; any beginning of them is spread evenly.

    Each number runs from half to twice its own, and at least two up. The points are an additive
    recurrence in as many dimensions d, whose steps are powers of 1/φ, φ^(d+1) = φ + 1: of the
    golden ratio where d is 1.
    """
    size = len(own)
    phi = 2.0
    for _ in range(60):
        phi = (1.0 + phi) ** (1 / (size + 1))
    found = [tuple(own)]
    for point in range(1, _POINTS):
        shares = [(0.5 + point * phi ** -(k + 1)) % 1.0 for k in range(size)]
        found.append(tuple(_between(n, share) for n, share in zip(own, shares, strict=True)))
    return list(dict.fromkeys(found))


def _between(own: int, share: float) -> int:
    """From half to twice ``own``, of 0 ≤ ``share`` < 1, in even steps of the square root: between
    even steps, which are coarse for small numbers, and even ratios, which hardly try large ones."""
    low, high = (own + 1) // 2, max(2 * own, own + 2)
    return int((low**0.5 + share * ((high + 1) ** 0.5 - low**0.5)) ** 2)


def knobs(levels: Sequence[Any]) -> list[int]:
    """All that is varied, in the order of the file: budgets, and before those of its parts how
    often a concatenation repeats them, where it does."""
    out = []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            out += [level.repeat] if level.repeat > 1 else []
            out += [n for part in level.parts for n in knobs(part)]
        else:
            out.append(level.num_speculative_tokens)
    return out


def turned(levels: Sequence[Any], values: Sequence[int]) -> tuple[Any, ...]:
    """The levels with other numbers, in the order of :func:`knobs`."""
    return _turned(levels, iter(values))


def _turned(levels: Sequence[Any], values: Iterator[int]) -> tuple[Any, ...]:
    out = []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            repeat = next(values) if level.repeat > 1 else 1
            parts = tuple(_turned(part, values) for part in level.parts)
            out.append(replace(level, parts=parts, repeat=repeat))
        else:
            out.append(replace(level, num_speculative_tokens=next(values)))
    return tuple(out)


def ascending(levels: Sequence[Any]) -> bool:
    """Whether no level of a chain holds fewer tokens than the one below hands up at once: it would
    hand them on as they come, whatever its budget."""
    budgets, parts = [], []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            parts += level.parts
        else:
            budgets.append(level.num_speculative_tokens)
    return budgets == sorted(budgets) and all(map(ascending, parts))
