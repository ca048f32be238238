"""Chains run without models (:mod:`hierspec_lab.simulation`), to check the planner's prices.

P1's Table 5 compares four latencies: real or independent acceptances, real or constant costs.
Here *real* is what was measured: recorded drafts, or their survival curves, and milliseconds by
pair and length. Under curves and real costs :func:`hierspec.planner.latency.latency` is exact.

Acceptances also say how long drafts are, since some drafters stop by themselves. The number drawn
when a draft is made (replayed: the draft's index in the record; sampled: the length at which it
stops) decides later how much of it is accepted, so drafts wait, in order, for the check that
consumes them. Each level's tests are drawn or replayed independently, as the planner assumes: that
a text is hard for two levels at once is not simulated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hierspec.config.nodes import build_nodes, make_rule
from hierspec.config.numbered import NumberedConfig
from hierspec.core.nodes import Verify
from hierspec.errors import HierspecError
from hierspec.exact.numbered import NumberedConcatenation
from hierspec.planner.estimates import Chain, Estimates
from hierspec.profiling.profile import Profile
from hierspec_lab.simulation import CallPrices, LevelCount, Simulation, simulate


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """A profile's drafts: their lengths, and how many tokens of each were accepted.

    Attributes:
        lengths: by drafter, tokens of each of its drafts.
        kept: by (drafter, verifier), tokens that the verifier keeps of each of them.
    """

    lengths: Mapping[int, Sequence[int]]
    kept: Mapping[tuple[int, int], Sequence[int]]


def records(profile: Profile, temperature: float) -> Records:
    """Return the drafts that a profile recorded at the temperature nearest to this one."""
    pairs = profile.measured(profile.nearest(temperature)).pairs
    return Records(
        {pair.drafter: pair.lengths for pair in pairs},
        {(pair.drafter, pair.verifier): pair.kept for pair in pairs},
    )


class DraftAcceptances:
    """Decides how long drafts are and how many of their tokens a check accepts, draft by draft.

    A proposal of a level that verifies is one draft. Subclasses draw a number for each draft (its
    ``outcome``), from which follow how long it is and how many of its tokens are accepted.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, deque[tuple[int, int]]] = defaultdict(deque)

    def draw_outcome(self, model: int) -> int:
        """Draw the number that decides a new draft's length and what is accepted of it."""
        return 0

    def length(self, model: int, outcome: int, budget: int) -> int:
        return budget

    def survivors(self, owner: int, model: int, n: int, outcome: int) -> int:
        """Return how many of a draft's first ``n`` tokens ``model`` accepts."""
        raise NotImplementedError

    def start_draft(self, model: int, budget: int) -> int:
        """Make a new draft and return its number of tokens."""
        outcome = self.draw_outcome(model)
        n = self.length(model, outcome, budget)
        if n:
            self._waiting[model].append((n, outcome))
        return n

    def kept(self, model: int, owners: Sequence[int]) -> int:
        total = 0
        drafts = list(self._drafts(owners))  # all of them are consumed, accepted or not
        for owner, n, outcome in drafts:
            tau = self.survivors(owner, model, n, outcome)
            total += tau
            if tau < n:
                break
        return total

    def _drafts(self, owners: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        start = 0
        while start < len(owners):
            owner = owners[start]
            if waiting := self._waiting[owner]:
                n, outcome = waiting.popleft()
            else:
                end = next(
                    (i for i in range(start, len(owners)) if owners[i] != owner), len(owners)
                )
                n, outcome = end - start, self.draw_outcome(owner)
            yield owner, n, outcome
            start += n


class SampledAcceptances(DraftAcceptances):
    """Drafts keep their first m tokens with probability S(m), each draft drawn anew.

    Args:
        iid: take only the rate of the first token from the curves: S(m) = S(1)^m [P1 Table 5].

    A curve is taken at its running minimum: the mean of sampled block curves may rise by a hair.
    Beyond its end nothing is accepted, as in :func:`hierspec.planner.latency.latency`.
    """

    def __init__(self, estimates: Estimates, iid: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.estimates, self.iid = estimates, iid
        self._random = np.random.Generator(np.random.Philox(seed))
        self._uniforms: list[float] = []
        self._curves: dict[tuple[int, int, int], list[float]] = {}
        self._stops = {
            i: (joint[estimates.target, :, 0].cumsum() / joint[estimates.target, :, 0].sum())
            for i, joint in estimates.joint_survival.items()
        }

    def draw_outcome(self, model: int) -> int:
        """Draw the length at which the drafter would stop by itself."""
        if model not in self._stops:
            return 0
        stops = self._stops[model]
        length = int(np.searchsorted(stops, self._uniform(), side="right"))
        return min(length, len(stops) - 1)  # where rounding left the sum below 1

    def length(self, model: int, outcome: int, budget: int) -> int:
        return min(outcome, budget) if model in self._stops else budget

    def survivors(self, owner: int, model: int, n: int, outcome: int) -> int:
        curve = self._curves.get((owner, model, outcome))
        if curve is None:
            curve = self._curves[owner, model, outcome] = self._curve(owner, model, outcome)
        # u < S(m) for as many m as −S(m) < −u: S falls, so −S rises.
        return min(bisect_left(curve, -self._uniform()), n)

    def _curve(self, owner: int, model: int, outcome: int) -> list[float]:
        """Return −S(1), −S(2), …; if the drafter stops by itself, of drafts of ``outcome`` tokens.

        With ``iid`` they are of drafts of any length.
        """
        joint = self.estimates.joint_survival.get(owner)
        if joint is None:
            curve = self.estimates.survival[owner, model]
        else:
            rows = joint[model, 1:].sum(0) if self.iid else joint[model, outcome]
            reached = rows[0]  # at m = 0: how often there is such a draft at all
            curve = rows / reached if reached else np.zeros_like(rows)
        if self.iid:
            curve = curve[1] ** np.arange(len(self.estimates.survival[owner, model]))
        return (-np.minimum.accumulate(curve[1:])).tolist()

    def _uniform(self) -> float:
        if not self._uniforms:
            self._uniforms = self._random.random(4096).tolist()
        return self._uniforms.pop()


class ReplayedAcceptances(DraftAcceptances):
    """Replays recorded drafts in a cycle; a draft cut to n tokens accepts min(accepted, n).

    The drafts of one drafter have one order for all its verifiers. A draft longer than its
    record goes on with the next one where all of the record was accepted.
    """

    def __init__(self, records: Records, estimates: Estimates) -> None:
        super().__init__()
        self.records, self.estimates = records, estimates
        self._next: dict[int, int] = defaultdict(int)

    def draw_outcome(self, model: int) -> int:
        if not self.records.lengths.get(model):
            raise HierspecError(
                f"no recorded drafts of model {model}: measure the profile again with hierspec "
                "profile"
            )
        index = self._next[model]
        self._next[model] = (index + 1) % len(self.records.lengths[model])
        return index

    def length(self, model: int, outcome: int, budget: int) -> int:
        if not self.estimates.stops_by_itself(model):
            return budget
        return min(self.records.lengths[model][outcome], budget)

    def survivors(self, owner: int, model: int, n: int, outcome: int) -> int:
        if (owner, model) not in self.records.kept:
            raise HierspecError(f"no recorded drafts of model {owner} for model {model}")
        lengths, kept = self.records.lengths[owner], self.records.kept[owner, model]
        total = 0
        while total < n and lengths[outcome]:
            total += kept[outcome]
            if kept[outcome] < lengths[outcome] or total >= n:
                break
            outcome = self.draw_outcome(owner)
        return min(total, n)


ACCEPTANCES = ("iid", "curves", "recorded")
COSTS = ("real", "artificial")


def build_root(chain: Chain, names: Sequence[str] | None = None) -> Verify[int, int]:
    """Convert ``chain`` to nodes for :func:`hierspec_lab.simulation.simulate`; models are numbers.

    Args:
        names: of all models, by number.
    """

    def numbered(model: int, budget: int, verifies: bool) -> Any:
        bonus = not verifies or model not in chain.dropped_bonus
        return NumberedConfig(model=model, num_speculative_tokens=budget, bonus=bonus)

    def concatenate(parts: Sequence[Sequence[Any]], repeat: int = 1) -> Any:
        return NumberedConcatenation(parts=tuple(map(tuple, parts)), repeat=repeat)

    def model_name(model: int) -> str:
        return names[model] if names else f"model {model}"

    def model_of(level: Any, key: str) -> tuple[int | None, str]:
        if isinstance(level, NumberedConcatenation):
            tailed = level.parts[0][-1]
            return None, f"{model_name(tailed.model)} and tail" if chain.tail else chain.order
        model = chain.models[-1] if level is None else level.model
        is_tail = chain.tail and key.endswith(".parts[1][0]")
        return model, model_name(model) + (" (tail)" if is_tail else "")

    levels = chain.levels_below(numbered, concatenate)
    return build_nodes(levels, model_of, make_rule("tokenwise"))


def simulate_chain(
    estimates: Estimates,
    chain: Chain,
    acceptances: str | Records = "curves",
    costs: str | CallPrices | Sequence[float] = "real",
    rounds: int = 2000,
    seed: int = 0,
) -> Simulation:
    """Run ``rounds`` rounds of the target under ``chain``.

    Args:
        acceptances: ``"iid"``: coin flips at the acceptance of a draft's first token;
            ``"curves"``: the measured survival; records: real drafts in order, whatever
            ``estimates.classes`` are, so a text's weight is the number of its rounds.
        costs: ``"real"``: the estimates' by pair and length; ``"artificial"``: a constant per
            call of each model (:func:`constant_costs`); or other prices.
        rounds: over all classes of text together, where the estimates have some: each gets
            equally many, ms per token is the mean over them as the planner's is, and counts are
            sums.

    Raises:
        HierspecError: a level cannot draft for the one above it, or has no records; an unknown
            name.
    """
    estimates.validate(chain)
    if isinstance(acceptances, str):
        validate_choice(acceptances, ACCEPTANCES[:-1], "acceptances, unless Records,")
    if isinstance(costs, str):
        validate_choice(costs, COSTS, "costs")
    if isinstance(acceptances, Records) or not estimates.classes:
        source: DraftAcceptances = (
            ReplayedAcceptances(acceptances, estimates)
            if isinstance(acceptances, Records)
            else SampledAcceptances(estimates, acceptances == "iid", seed)
        )
        if isinstance(costs, str):
            costs = (
                SimulatedCosts(estimates, chain.dropped_bonus)
                if costs == "real"
                else constant_costs(estimates)
            )
        root = build_root(chain, estimates.names)
        return simulate(root, source, costs, rounds, lengths=source.start_draft)
    rounds_per_class = max(2, -(-rounds // len(estimates.classes)))  # one has no spread
    return _mean(
        [
            simulate_chain(part, chain, acceptances, costs, rounds_per_class, part_seed)
            for part_seed, part in enumerate(estimates.classes, seed)
        ]
    )


def validate_choice(name: str, names: Sequence[str], option: str) -> None:
    """Refuse a name that is not among ``names``."""
    if name not in names:
        *first, last = map(repr, names)
        raise HierspecError(f"{option} must be {', '.join(first)} or {last}, not {name!r}")


def constant_costs(estimates: Estimates) -> list[float]:
    """Return P1's constant cost per call of each model: that of a single step."""
    return [estimates.step_ms(model) for model in range(len(estimates.names))]


class SimulatedCosts:
    """The estimates' costs; longer drafts are priced as the longest that is known."""

    def __init__(self, estimates: Estimates, dropped_bonus: Collection[int] = ()) -> None:
        self._draft = estimates.draft_ms.tolist()
        self._check = {bonus: estimates.check_ms(bonus).tolist() for bonus in (True, False)}
        self._dropped_bonus = dropped_bonus
        self._last, self._steps = estimates.longest, constant_costs(estimates)

    def draft(self, model: int, n: int) -> float:
        return self._draft[model][min(n, self._last)]

    def check(self, drafter: int | None, model: int, n: int) -> float:
        if drafter is None:
            return self._steps[model]
        check_ms = self._check[model not in self._dropped_bonus]
        return check_ms[drafter][model][min(n, self._last)]


def _mean(parts: Sequence[Simulation]) -> Simulation:
    """Average ms per token over classes, which have equal shares of the text; add up the counts."""
    levels = [
        LevelCount(
            counts[0].name,
            sum(level.calls for level in counts),
            sum(level.num_draft_tokens for level in counts),
            sum(level.num_accepted_tokens for level in counts),
            sum(level.milliseconds for level in counts),
        )
        for counts in zip(*(part.levels for part in parts), strict=True)
    ]
    return replace(
        parts[0],
        ms_per_token=sum(part.ms_per_token for part in parts) / len(parts),
        standard_error=math.hypot(*(part.standard_error for part in parts)) / len(parts),
        num_tokens=sum(part.num_tokens for part in parts),
        target_calls=sum(part.target_calls for part in parts),
        levels=levels,
    )
