"""In which order methods take turns: seeded, and each after each other equally often.

A method finds caches, clock rates and memory as the one before it has left them. A rotation keeps
the neighbours, so that one of two methods always has the same predecessor; rows of a Williams
design (E. J. Williams, Aust. J. Sci. Res. A 2, 1949, 149–168) do not.
"""

from __future__ import annotations

import random


def rounds(count: int) -> int:
    """After how many rounds everything is balanced: of as many methods, twice as many if odd."""
    if count < 2:
        return 1
    return 2 * count if count % 2 else count


def order(count: int, number: int, seed: int) -> list[int]:
    """Methods 0 … ``count`` − 1 in the order of round ``number``.

    Of :func:`rounds` rounds from a multiple of it on, every method has every place equally often
    (once; twice if ``count`` is odd), and comes directly after every other equally often
    (likewise). Fewer rounds hold none of these more often. ``seed`` decides which method stands
    where in the design, and shuffles its rows; it and ``number`` are all that the order depends
    on.
    """
    cycle, row = divmod(number, rounds(count))
    dice = random.Random(f"{seed} {cycle}")
    labels, rows = list(range(count)), list(range(rounds(count)))
    dice.shuffle(labels)
    dice.shuffle(rows)
    mirrored, shift = divmod(rows[row], max(1, count))
    steps = [*_zigzag(count)]
    return [labels[(step + shift) % count] for step in (reversed(steps) if mirrored else steps)]


def _zigzag(count: int) -> list[int]:
    """0, −1, 1, −2, 2, … modulo ``count``: where that is even, no two steps are alike; where it is
    odd, the reverse has those that are missing."""
    return [((i + 1) // 2) * (-1) ** i % count for i in range(count)]
