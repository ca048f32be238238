"""Agreement of models position by position, and classes of text with similar agreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions, OneHotDistributions, likeliest
from hierspec.drafters.base import LookUp
from hierspec.engine.sequences import LiveSequence
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
from .schema import PairAgreement

SCORED = 8  # tokens that are scored at a time: about as many as a draft has


def overlap(q: Distributions, p: Distributions, vocab_size: int) -> np.ndarray:
    """Return 1 − TV of every row, [n]."""
    if isinstance(q, OneHotDistributions) and isinstance(p, OneHotDistributions):
        return (np.array(likeliest(q)) == np.array(likeliest(p))).astype(float)
    for rows, other in ((q, p), (p, q)):  # a drafter may be greedy by its own temperature
        if isinstance(rows, OneHotDistributions):
            return probabilities(other, rows.ids)
    first, second = q.dense(vocab_size), p.dense(vocab_size)
    return formulas.overlap(first.to(second), second).double().cpu().numpy()


@dataclass(slots=True, eq=False)
class TextScores:
    """What models say of one text's tokens start … stop − 1.

    Attributes:
        probabilities: by model, of each token, [positions].
        overlaps: 1 − TV at each position, by pair, [positions].
        equal: whether both have the same likeliest token there.
    """

    start: int
    stop: int
    probabilities: dict[int, np.ndarray]
    overlaps: dict[tuple[int, int], np.ndarray]
    equal: dict[tuple[int, int], np.ndarray]

    @property
    def count(self) -> int:
        return max(self.stop - self.start, 0)


def agreements(
    pool: CandidatePool,
    texts: Sequence[Sequence[int]],
    starts: Sequence[int],
    stops: Sequence[int],
    drafting: DraftingSettings,
    on_part: Callable[[float], None] = lambda part: None,
) -> tuple[dict[tuple[int, int], PairAgreement], list[np.ndarray], list[TextScores]]:
    """Compare all models that score, teacher-forced over a span of every text.

    The text before a few tokens has been read by the target, as when drafts begin: a copy on its
    cache reads the target's keys and values, and its own only in the tokens that it scores.

    Args:
        starts, stops: per text; compared are the distributions of tokens start … stop − 1.

    Returns:
        how alike every pair is; per text how easy each position is for each candidate, [positions,
        candidates]: 1 − TV from the target, or whether a look-up proposes the token; and the
        scores of every text.
    """
    scoring = [i for i, member in enumerate(pool.members) if member.scores]
    pairs = list(combinations(scoring, 2))
    target = len(pool.members) - 1
    found: list[TextScores] = []
    for start, stop in zip(starts, stops, strict=True):
        count = max(stop - max(start, 1), 0)
        probs = {i: np.zeros(count) for i in scoring}
        overlaps = {pair: np.zeros(count) for pair in pairs}
        equal = {pair: np.zeros(count, dtype=bool) for pair in pairs}
        found.append(TextScores(max(start, 1), stop, probs, overlaps, equal))
    for batch in rounds.batches(len(texts), pool.vocab_size * len(scoring) * SCORED):
        sequences = open_sequences(build_levels(pool), batch, [texts[n] for n in batch], drafting)
        try:
            read = [Context(texts[n][: found[n].start]) for n in batch]
            distributions_after(pool, target, sequences, read, [0] * len(sequences))
            longest = max(found[n].count for n in batch)
            for low in range(0, longest, SCORED):
                active = [s for s in sequences if low < found[s.id].count]
                _score(pool, active, [found[s.id] for s in active], low)
                part = min((low + SCORED) / longest, 1.0)
                on_part((batch.start + len(batch) * part) / len(texts))
        finally:
            for sequence in sequences:
                sequence.close()
    ease = [np.zeros((scores.count, target)) for scores in found]
    for text, scores, easy in zip(texts, found, ease, strict=True):
        for i, member in enumerate(pool.members[:-1]):
            if member.scores:
                easy[:, i] = scores.overlaps[i, target]
            else:
                easy[:, i] = copied(member.model, text, scores, 1)[1][:, 0]
    return {pair: _agreement(found, pair) for pair in pairs}, ease, found


def mean_agreement(
    found: Sequence[TextScores], pair: tuple[int, int], *, greedy: bool = False
) -> float:
    """Return a pair's mean 1 − TV, or its share of equal likeliest tokens; 0 without positions."""
    parts = [(scores.equal if greedy else scores.overlaps)[pair] for scores in found]
    return float(np.concatenate(parts).mean()) if any(map(len, parts)) else 0.0


def _agreement(found: Sequence[TextScores], pair: tuple[int, int]) -> PairAgreement:
    if not (positions := sum(scores.count for scores in found)):
        return PairAgreement()
    return PairAgreement(
        acceptance=round(mean_agreement(found, pair), 5),
        equal_argmax=round(mean_agreement(found, pair, greedy=True), 5),
        positions=positions,
    )


def _score(
    pool: CandidatePool, sequences: Sequence[LiveSequence], found: Sequence[TextScores], low: int
) -> None:
    highs = [min(low + SCORED, scores.count) for scores in found]
    stops = [scores.start + high for scores, high in zip(found, highs, strict=True)]
    contexts = [
        Context(sequence.tokens[: stop - 1])
        for sequence, stop in zip(sequences, stops, strict=True)
    ]
    back = [high - 1 - low for high in highs]
    rows = {
        i: distributions_after(pool, i, sequences, contexts, back)
        for i in sorted(found[0].probabilities)
    }
    for n, (sequence, scores, high) in enumerate(zip(sequences, found, highs, strict=True)):
        tokens = sequence.tokens[scores.start + low : scores.start + high]
        top = {i: np.array(likeliest(of_texts[n])) for i, of_texts in rows.items()}
        for i, of_texts in rows.items():
            scores.probabilities[i][low:high] = probabilities(of_texts[n], tokens)
        for (i, k), shared in scores.overlaps.items():
            shared[low:high] = overlap(rows[i][n], rows[k][n], pool.vocab_size)
            scores.equal[i, k][low:high] = top[i] == top[k]


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


def copied(
    look_up: LookUp, text: Sequence[int], scores: TextScores, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what a look-up proposes at each position: how many tokens, [positions], and which of
    them are the text's, with all before them, [positions, size]."""
    lengths = np.zeros(scores.count, dtype=int)
    equal = np.zeros((scores.count, size), dtype=bool)
    index = look_up.open()
    for number, start in enumerate(range(scores.start, scores.stop)):
        draft = look_up.propose(Context(text[:start]), size, index)
        lengths[number] = len(draft)
        for place, (token, own) in enumerate(zip(draft, text[start : scores.stop], strict=False)):
            if token != own:
                break
            equal[number, place] = True
    look_up.close(index)
    return lengths, equal
