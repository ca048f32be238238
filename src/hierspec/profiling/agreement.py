"""Agreement of models position by position, and classes of text with similar agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hierspec.core.context import Context
from hierspec.core.distributions import DenseDistributions, Distributions, OneHotDistributions
from hierspec.drafters.base import LookUp
from hierspec.verifiers import formulas

from . import rounds
from .candidates import CandidatePool
from .rounds import (
    DraftingSettings,
    build_levels,
    distributions_after,
    open_sequences,
    probabilities,
)


@dataclass(slots=True, eq=False)
class Agreement:
    """Two models on the same texts: sums over positions of 1 − TV and of equal argmaxes."""

    overlap: float = 0.0
    equal: float = 0.0
    positions: int = 0

    @property
    def acceptance(self) -> float | None:
        """1 − TV on average; ``None`` where there was nothing to compare."""
        return round(self.overlap / self.positions, 5) if self.positions else None

    @property
    def equal_argmax(self) -> float | None:
        """The share of equal argmaxes; ``None`` as above."""
        return round(self.equal / self.positions, 5) if self.positions else None


def overlap(q: Distributions, p: Distributions, vocab_size: int) -> np.ndarray:
    """Return 1 − TV of every row, [n]."""
    if isinstance(q, OneHotDistributions) and isinstance(p, OneHotDistributions):
        return (likeliest(q) == likeliest(p)).astype(float)
    for rows, other in ((q, p), (p, q)):  # a drafter may be greedy by its own temperature
        if isinstance(rows, OneHotDistributions):
            return probabilities(other, rows.ids)
    first, second = q.dense(vocab_size), p.dense(vocab_size)
    return formulas.overlap(first.to(second), second).double().cpu().numpy()


def likeliest(rows: Distributions) -> np.ndarray:
    """Return the token of the largest probability of every row, [n]."""
    if isinstance(rows, OneHotDistributions):
        return np.array(rows.ids)
    assert isinstance(rows, DenseDistributions)
    return rows.probs.argmax(-1).cpu().numpy()


def agreements(
    pool: CandidatePool,
    texts: Sequence[Sequence[int]],
    starts: Sequence[int],
    stops: Sequence[int],
    drafting: DraftingSettings,
) -> tuple[dict[tuple[int, int], Agreement], list[np.ndarray]]:
    """Compare all models that score, teacher-forced over a span of every text.

    Args:
        starts, stops: per text; compared are the distributions of tokens start … stop − 1.

    Returns:
        sums for every pair; and per text how easy each position is for each candidate, [positions,
        candidates]: 1 − TV from the target, or whether a look-up proposes the token.
    """
    scoring = [i for i, entrant in enumerate(pool.entrants) if entrant.scores]
    sums = {(i, k): Agreement() for i in scoring for k in scoring if i < k}
    target, ease = len(pool.entrants) - 1, []
    width = max(1, rounds.MAX_ENTRIES // (pool.vocab_size * len(scoring)))
    for text, start, stop in zip(texts, starts, stops, strict=True):
        (sequence,) = open_sequences(build_levels(pool), [0], [text], drafting)
        first = max(start, 1)
        easy = np.zeros((max(stop - first, 0), target))
        for i, entrant in enumerate(pool.entrants[:-1]):
            if not entrant.scores:
                easy[:, i] = _lookup_hits(entrant.model, text, first, stop)
        try:
            for low in range(first, stop, width):
                high = min(low + width, stop)
                context = Context(text[: high - 1])
                rows = {
                    i: distributions_after(pool, i, [sequence], [context], [high - 1 - low])[0]
                    for i in scoring
                }
                top = {i: likeliest(distributions) for i, distributions in rows.items()}
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


def classes(ease: Sequence[np.ndarray], drafting: DraftingSettings, count: int) -> list[list[int]]:
    """Return per text the number of the class of each place, a position where a draft is begun.

    The text from a place to the next is about as easy for every candidate as at other places of its
    class. All places are split in two by the candidate for which they differ most, and so on, into
    ``count`` classes of equal size; into fewer if there are fewer places.

    Args:
        ease: per text, [positions, candidates].
    """
    positions = drafting.place_positions([len(easy) for easy in ease])
    spans = [
        easy[start:stop]
        for easy, places in zip(ease, positions, strict=True)
        for start, stop in pairwise([*places, len(easy)])
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
        candidate = scores[group].var(0).argmax()
        group = group[scores[group, candidate].argsort(kind="stable")]
        cut = len(group) * (parts // 2) // parts
        groups.append((group[:cut], parts // 2, first))
        groups.append((group[cut:], parts - parts // 2, first + parts // 2))
    numbers = iter(out.tolist())
    return [[next(numbers) for _ in places] for places in positions]


def _lookup_hits(lookup: Any, text: Sequence[int], start: int, stop: int) -> list[bool]:
    """Return at each position whether a look-up would have proposed the token there.

    Drafters that read the target's last check have nothing to propose on unchecked text.
    """
    if not isinstance(lookup, LookUp):
        return [False] * (stop - start)
    index = lookup.open()
    out = [
        lookup.propose(Context(text[:position]), 1, index) == (text[position],)
        for position in range(start, stop)
    ]
    lookup.close(index)
    return out
