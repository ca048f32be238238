"""A search for the attentions and MLPs that a draft can do without, while it drafts.

SWIFT [Xia et al. 2025, §4.1]: a candidate is a set of parts, of a given size, between the first and
the last layer; its score is how often the model without these parts chooses the token that was
written. Candidates are drawn at random; at an interval, one is suggested by a Gaussian process over
the scores so far (its upper confidence bound). Drafts leave out the best set so far. The search
ends when a score is high enough, or after many candidates without a better one.

Two things differ from SWIFT: the Gaussian process chooses among sets (drawn at random, or one
exchange away from the best one), where SWIFT takes the highest coordinates of a point of the cube;
and the initial set is scored first, so that only a better one replaces it. All random numbers
depend only on the seed and the number of the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .skipping import Skip, evenly_spaced_parts

_NUM_DRAWN, _NUM_EXCHANGED = 512, 128  # numbers of sets that the process chooses from
_KAPPA = 2.5  # of the upper confidence bound: standard deviations above the mean
_NOISE = 1e-2  # variance of a score, of scores with variance 1
_SCALES = (1.0, 2.0, 4.0, 8.0)  # length scales of the kernel; the likeliest is used


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of the search; the defaults are SWIFT's.

    Attributes:
        share: of the parts between the first and the last layer that are left out.
        kind: random candidates only, or also suggested ones.
        context_window: how many written tokens a candidate is scored on.
        interval: rounds of the target from one candidate to the next.
        bayes_interval: candidates from one suggested one to the next.
        max_candidates: number of candidates after which the search ends.
        patience: candidates in a row without a better one that end it.
        enough: the score above which it ends.
    """

    share: float = 0.45
    kind: Literal["bayesian", "random"] = "bayesian"
    context_window: int = 32
    interval: int = 1
    bayes_interval: int = 25
    max_candidates: int = 1000
    patience: int = 300
    enough: float = 0.95
    seed: int = 0


@dataclass(slots=True)
class SkipSearch:
    """A search in progress.

    Attributes:
        depth: layers of the model.
        best: the parts that drafts leave out; ``score`` is its score, −1 before it has one.
        tried: the sets scored so far as rows of 0 and 1, [parts] each; ``scores`` are theirs.
        num_worse: candidates in a row that were no better.
        num_rounds: rounds of the target so far.
    """

    settings: SearchSettings
    depth: int
    best: Skip = field(init=False)
    score: float = -1.0
    tried: list[np.ndarray] = field(default_factory=list[np.ndarray])
    scores: list[float] = field(default_factory=list[float])
    num_worse: int = 0
    num_rounds: int = 0

    def __post_init__(self) -> None:
        self.best = evenly_spaced_parts(self.settings.share, self.depth)

    @property
    def finished(self) -> bool:
        settings = self.settings
        return (
            self.score > settings.enough
            or len(self.scores) >= settings.max_candidates
            or self.num_worse >= settings.patience
        )

    def count_round(self) -> None:
        """Count a round of the target, in which a candidate was scored if one :attr:`is_due`."""
        self.num_rounds += 1

    @property
    def is_due(self) -> bool:
        """Whether a candidate is to be scored in the round that is counted next."""
        return not self.finished and self.num_rounds % self.settings.interval == 0

    def next_candidate(self) -> Skip:
        """Return the set to score next: the initial one, then drawn or suggested ones."""
        number, settings = len(self.scores), self.settings
        if not number:
            return self.best
        rng = np.random.default_rng([settings.seed, number])
        if settings.kind == "bayesian" and number % settings.bayes_interval == 0:
            return self._as_skip(self._suggest(rng))
        return self._as_skip(self._draw(rng, 1)[0])

    def record(self, candidate: Skip, score: float) -> None:
        """Record a candidate's score: the share of written tokens that it would have chosen."""
        self.tried.append(self._as_row(candidate))
        self.scores.append(score)
        if score > self.score:
            self.best, self.score, self.num_worse = candidate, score, 0
        else:
            self.num_worse += 1

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw sets of the right size, uniformly: [count, parts] of 0 and 1."""
        parts, size = 2 * (self.depth - 2), sum(map(len, self.best))
        ranks = rng.random((count, parts)).argsort(1)
        return (ranks < size).astype(np.float64)

    def _suggest(self, rng: np.random.Generator) -> np.ndarray:
        """Return the set with the highest upper confidence bound among many."""
        best = self._as_row(self.best)
        exchanged = np.repeat(best[None], _NUM_EXCHANGED, 0)
        skipped, kept = np.flatnonzero(best), np.flatnonzero(best == 0)
        rows = np.arange(_NUM_EXCHANGED)
        if len(kept):
            exchanged[rows, rng.choice(skipped, _NUM_EXCHANGED)] = 0.0
            exchanged[rows, rng.choice(kept, _NUM_EXCHANGED)] = 1.0
        points = np.concatenate([self._draw(rng, _NUM_DRAWN), exchanged])
        mean, std = posterior(np.stack(self.tried), np.array(self.scores), points)
        return points[int((mean + _KAPPA * std).argmax())]

    def _as_row(self, skip: Skip) -> np.ndarray:
        middle = self.depth - 2
        row = np.zeros(2 * middle)
        row[[i - 1 for i in skip.attention]] = 1.0
        row[[middle + i - 1 for i in skip.mlp]] = 1.0
        return row

    def _as_skip(self, row: np.ndarray) -> Skip:
        attention, mlp = (np.flatnonzero(half) + 1 for half in np.split(row, 2))
        return Skip(tuple(attention.tolist()), tuple(mlp.tolist()))


def posterior(x: np.ndarray, y: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a Gaussian process's mean and standard deviation at ``points`` [m, d], given ``y`` [n]
    at ``x`` [n, d].

    Its kernel is Matérn's of smoothness 5/2, with the length scale of the highest likelihood.
    """
    mean, std = y.mean(), y.std() or 1.0
    best = -np.inf, 0.0, x, y
    for scale in _SCALES:
        chol = np.linalg.cholesky(_matern(x, x, scale) + _NOISE * np.eye(len(x)))
        solved = np.linalg.solve(chol, (y - mean) / std)
        likelihood = -0.5 * solved @ solved - np.log(np.diag(chol)).sum()
        if likelihood > best[0]:
            best = likelihood, scale, chol, solved
    _, scale, chol, solved = best
    cross = np.linalg.solve(chol, _matern(x, points, scale))  # [n, m]
    variance = np.clip(1.0 - (cross**2).sum(0), 0.0, None)
    return mean + std * (solved @ cross), std * np.sqrt(variance)


def _matern(a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    square = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
    r = np.sqrt(5 * np.clip(square, 0.0, None)) / scale
    return (1 + r + r**2 / 3) * np.exp(-r)
