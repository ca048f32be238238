"""Acceptance sources of simulated plans: coin flips, measured curves, or recorded drafts.

A source also says how long drafts are, since drafters with windows stop by themselves. What it
draws for a draft when that is made (its place in the record, where it stops) decides later how
much of it is kept, so drafts wait here, in order, for the check that consumes them.

Each level's tests are drawn or replayed on their own, as the planner assumes: where two levels
find the same text hard, that is not seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .estimates import Estimates


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Drafts of a profile: what became of each.

    Attributes:
        lengths: by drafter, tokens of each of its drafts.
        kept: by (drafter, verifier), tokens that the verifier keeps of each of them.
    """

    lengths: Mapping[int, Sequence[int]]
    kept: Mapping[tuple[int, int], Sequence[int]]

    @classmethod
    def of(cls, pairs: Sequence[Mapping[str, Any]]) -> Records:
        """From the pairs of a profile, at one temperature.

        Raises:
            ValueError: they hold no records.
        """
        if any("kept" not in pair or "lengths" not in pair for pair in pairs):
            raise ValueError(
                "this profile holds no recorded drafts: measure it again with hierspec profile, "
                "or simulate with --acceptances curves"
            )
        return cls(
            {pair["drafter"]: pair["lengths"] for pair in pairs},
            {(pair["drafter"], pair["verifier"]): pair["kept"] for pair in pairs},
        )


class Source:
    """Splits what is handed up into drafts. A whole hand-up of a verifying level is one draft.

    Subclasses say what is drawn for a draft (``mark``), how long it is, and what is kept of it.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[tuple[int, int]]] = defaultdict(deque)

    def mark(self, model: int) -> int:
        """What is drawn for a new draft of ``model``."""
        return 0

    def length(self, model: int, mark: int, budget: int) -> int:
        return budget

    def survivors(self, owner: int, model: int, n: int, mark: int) -> int:
        """How many of the first ``n`` tokens of such a draft ``model`` keeps."""
        raise NotImplementedError

    def drafted(self, model: int, budget: int) -> int:
        """Tokens of a new draft."""
        mark = self.mark(model)
        n = self.length(model, mark, budget)
        if n:
            self._waiting[model].append((n, mark))
        return n

    def kept(self, model: int, owners: Sequence[int]) -> int:
        total = 0
        drafts = list(self._drafts(owners))  # all of them are consumed, kept or not
        for owner, n, mark in drafts:
            tau = self.survivors(owner, model, n, mark)
            total += tau
            if tau < n:
                break
        return total

    def _drafts(self, owners: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        at = 0
        while at < len(owners):
            owner = owners[at]
            if waiting := self._waiting[owner]:
                n, mark = waiting.popleft()
            else:
                end = next((i for i in range(at, len(owners)) if owners[i] != owner), len(owners))
                n, mark = end - at, self.mark(owner)
            yield owner, n, mark
            at += n


class Drawn(Source):
    """Drafts keep their first m tokens with probability S(m), each draft drawn anew.

    Args:
        iid: take only the rate of the first token from the curves: S(m) = S(1)^m [P1 Table 5].

    A curve is taken at its running minimum: the mean of sampled block curves may rise by a hair.
    Beyond its end nothing is kept, as in :func:`hierspec.planner.latency.latency`.
    """

    def __init__(self, estimates: Estimates, iid: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.estimates, self.iid = estimates, iid
        self._random = np.random.Generator(np.random.Philox(seed))
        self._block: list[float] = []
        self._curves: dict[tuple[int, int, int], list[float]] = {}
        self._stops = {
            i: (window[estimates.target, :, 0].cumsum() / window[estimates.target, :, 0].sum())
            for i, window in estimates.windows.items()
        }

    def mark(self, model: int) -> int:
        """Where the drafter would stop by itself."""
        if model not in self._stops:
            return 0
        stops = self._stops[model]
        at = int(np.searchsorted(stops, self._uniform(), side="right"))
        return min(at, len(stops) - 1)  # where rounding left the sum below 1

    def length(self, model: int, mark: int, budget: int) -> int:
        return min(mark, budget) if model in self._stops else budget

    def survivors(self, owner: int, model: int, n: int, mark: int) -> int:
        curve = self._curves.get((owner, model, mark))
        if curve is None:
            curve = self._curves[owner, model, mark] = self._curve(owner, model, mark)
        # u < S(m) for as many m as −S(m) < −u: S falls, so −S rises.
        return min(bisect_left(curve, -self._uniform()), n)

    def _curve(self, owner: int, model: int, mark: int) -> list[float]:
        """−S(1), −S(2), …; of a drafter with a window, of its drafts that stop at ``mark``."""
        window = self.estimates.windows.get(owner)
        if window is None:
            curve = self.estimates.survival[owner, model]
        else:
            rows = window[model, 1:].sum(0) if self.iid else window[model, mark]
            reached = rows[0]  # at m = 0: how often there is such a draft at all
            curve = rows / reached if reached else np.zeros_like(rows)
        if self.iid:
            curve = curve[1] ** np.arange(len(self.estimates.survival[owner, model]))
        return (-np.minimum.accumulate(curve[1:])).tolist()

    def _uniform(self) -> float:
        if not self._block:
            self._block = self._random.random(4096).tolist()
        return self._block.pop()


class Replayed(Source):
    """Recorded drafts, in order and over again: a shorter draft keeps min(kept, n).

    The drafts of one drafter stand in one order for all its verifiers. A draft longer than its
    record goes on with the next one where all of the record was kept.
    """

    def __init__(self, records: Records, estimates: Estimates) -> None:
        super().__init__()
        self.records, self.varied = records, estimates.windows.keys()
        self._next: dict[int, int] = defaultdict(int)

    def mark(self, model: int) -> int:
        if not self.records.lengths.get(model):
            raise ValueError(
                f"no recorded drafts of model {model}: measure the profile again with hierspec "
                "profile"
            )
        at = self._next[model]
        self._next[model] = (at + 1) % len(self.records.lengths[model])
        return at

    def length(self, model: int, mark: int, budget: int) -> int:
        return min(self.records.lengths[model][mark], budget) if model in self.varied else budget

    def survivors(self, owner: int, model: int, n: int, mark: int) -> int:
        if (owner, model) not in self.records.kept:
            raise ValueError(f"no recorded drafts of model {owner} for model {model}")
        lengths, kept = self.records.lengths[owner], self.records.kept[owner, model]
        total = 0
        while total < n and lengths[mark]:
            total += kept[mark]
            if kept[mark] < lengths[mark] or total >= n:
                break
            mark = self.mark(owner)
        return min(total, n)
