"""How alike models are on given text, position by position, and which stretches are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hierspec.core.context import Context

from .candidates import Pool
from .rates import MAX_ENTRIES, Plan, edge, laws_after, likeliest, opened, overlap, plain


@dataclass(slots=True, eq=False)
class Agreement:
    """Two models on the same texts: sums over positions of 1 − TV and of equal argmaxes."""

    overlap: float = 0.0
    equal: float = 0.0
    positions: int = 0


def agreements(
    pool: Pool,
    texts: Sequence[Sequence[int]],
    starts: Sequence[int],
    stops: Sequence[int],
    plan: Plan,
) -> tuple[dict[tuple[int, int], Agreement], list[np.ndarray]]:
    """One teacher-forced pass of every model that has a law, over a span of every text.

    Args:
        starts, stops: per text; the laws of the tokens at positions start … stop − 1.

    Returns:
        sums for every pair; and per text [positions, candidates] how easy the text is for each:
        1 − TV from the target, or whether a look-up finds the token.
    """
    scoring = [i for i, entrant in enumerate(pool.entrants) if entrant.scores]
    sums = {(i, k): Agreement() for i in scoring for k in scoring if i < k}
    target, ease = len(pool.entrants) - 1, []
    width = max(1, MAX_ENTRIES // (pool.vocab_size * len(scoring)))
    for text, start, stop in zip(texts, starts, stops, strict=True):
        (sequence,) = opened(plain(pool), [0], [text], plan)
        first = max(start, 1)
        easy = np.zeros((max(stop - first, 0), target))
        for i, entrant in enumerate(pool.entrants[:-1]):
            if not entrant.scores:
                easy[:, i] = _found(entrant.model, text, first, stop)
        try:
            for low in range(first, stop, width):
                high = min(low + width, stop)
                context = Context(text[: high - 1])
                rows = {}
                for number in scoring:
                    (rows[number],) = laws_after(
                        pool, number, [sequence], [context], [high - 1 - low]
                    )
                top = {number: likeliest(law) for number, law in rows.items()}
                for (i, k), total in sums.items():
                    shared = overlap(rows[i], rows[k], pool.vocab_size)
                    if k == target:
                        easy[low - first : high - first, i] = shared
                    total.overlap += float(shared.sum())
                    total.equal += float((top[i] == top[k]).sum())
                    total.positions += high - low
        finally:
            sequence.close()
        ease.append(easy)
    return sums, ease


def classes(ease: Sequence[np.ndarray], plan: Plan, count: int) -> np.ndarray:
    """The class of every place of every text, [texts, places].

    Places are alike if the text after them, up to the next place, is about as easy for each of the
    candidates: they are cut in two where they differ most, again and again, into ``count`` classes
    of equally many places; fewer where there are fewer places.

    Args:
        ease: per text, [positions, candidates].
    """
    spans = [
        easy[edge(len(easy), at, plan.places) : edge(len(easy), at + 1, plan.places)]
        for easy in ease
        for at in range(plan.places)
    ]
    width = ease[0].shape[1]
    scores = np.array([span.mean(0) if len(span) else np.zeros(width) for span in spans])
    out = np.zeros(len(scores), dtype=int)
    groups = [(np.arange(len(scores)), min(count, len(scores)), 0)]
    while groups:
        group, parts, first = groups.pop()
        if parts < 2 or not width:
            out[group] = first
            continue
        by = scores[group].var(0).argmax()
        group = group[scores[group, by].argsort(kind="stable")]
        cut = len(group) * (parts // 2) // parts
        groups.append((group[:cut], parts // 2, first))
        groups.append((group[cut:], parts - parts // 2, first + parts // 2))
    return out.reshape(len(ease), plan.places)


def _found(lookup: Any, text: Sequence[int], start: int, stop: int) -> list[bool]:
    """At each position, whether a look-up would have proposed the token that stands there."""
    index = lookup.open()
    out = []
    for at in range(start, stop):
        out.append(lookup.propose(Context(text[:at]), 1, index) == (text[at],))
    lookup.close(index)
    return out
