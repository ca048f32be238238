"""Early exits at shares of a model's depth, as layer counts: after layer 1, one layer has run."""

from __future__ import annotations

from collections.abc import Iterable


def at_shares(depth: int, shares: Iterable[float]) -> tuple[int, ...]:
    """The different exits nearest to these shares of ``depth`` layers, ascending.

    Each lies between 1 and ``depth`` − 1, so a model of one layer has none.
    """
    if depth < 2:
        return ()
    return tuple(sorted({min(max(1, round(share * depth)), depth - 1) for share in shares}))


def one_each(depth: int, shares: Iterable[float]) -> tuple[int, ...]:
    """An exit for every share, each above the one before it; the last may reach past the end."""
    found = [0]
    for share in shares:
        found.append(max(found[-1] + 1, round(share * depth)))
    return tuple(found[1:])
