"""Drafts that follow the load: what pays for one stream may not pay for sixteen.

A forward for one sequence leaves most of the machine idle, so checking a draft costs little more
than a step. With many sequences every row costs, and drafts that are thrown away cost most. Which
length pays depends on the machine, the models and the texts, so it is measured: tokens a second of
whole rounds, by the number of streams, for the hierarchy as configured, with its budgets halved and
quartered, and without any draft. The best is used, and the others are tried again as often as that
costs little.

Whatever is chosen, the output's law is the target's: a plan is chosen before its rounds, by what
the clock said of earlier ones, and a round is lossless under any. But the random numbers that a
sampled text takes depend on its drafts: a request with a seed of its own keeps the hierarchy as
configured, so that its text is the same under any load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.drafters.prediction import Prediction
from hierspec.errors import HierspecError

from .control import label

_SHARES = (1.0, 0.5, 0.25)
_PREDICTED_TOKENS = 16
_FIRST_TRY, _TRY = 3, 2  # rounds an arm is measured for, at first and again
_MEMORY = 0.85  # weight of what was measured before
_MANY = 4  # streams from which plain decoding is tried first
_HOPELESS = 0.8  # of the best arm's speed: what drafts more, or less, than such a one is left out
# Of the time may be lost by trying arms again. One stream's text matters more than its machine, and
# changes with every request; of many streams it is the other way round.
_FOR_FEW, _FOR_MANY = 0.1, 0.02
_PATIENCE = 0.25  # seconds between two tries of an arm, at least
_DOUBLINGS = 4  # with many streams an arm that lost again waits twice as long, so often at most


class Plans:
    """The plans of one hierarchy in a service.

    Attributes:
        root: holds every node of every plan: for the runtime and for window states.
        arms: the hierarchy as configured, with smaller budgets, and without drafts.
        prediction: the target over a predicted output.
        look_up: that drafts from it.
        controlled: a controller chooses plans, so the nodes keep their indices and names.
    """

    def __init__(
        self, root: Verify, controlled: bool = False, shown: Callable[[str], str] = str
    ) -> None:
        self.controlled = controlled
        self.look_up = Prediction()
        self.prediction: Verify | None = None
        self.root = full = root
        if not controlled:
            # What is predicted is drafted first of all, so that target calls meet.
            full = _shifted(root, shown)
            draft = Draft(0, self.look_up.name, self.look_up, _PREDICTED_TOKENS).for_rule(root.rule)
            parts = (draft,) if full.below is None else (draft, full.below)
            every = Concatenate(root.index + 1, "levels", parts)
            full = dataclasses.replace(full, index=root.index + 2)
            self.root = dataclasses.replace(full, below=every)
            self.prediction = dataclasses.replace(full, below=draft)
        self.plain = dataclasses.replace(full, below=None)
        self.arms: list[Verify] = []
        seen: set[tuple[int, ...]] = set()
        if full.below is not None:
            for share in _SHARES:
                arm = dataclasses.replace(full, below=_scaled(full.below, share))
                budgets = _budgets(arm)
                if budgets not in seen:
                    seen.add(budgets)
                    self.arms.append(arm)
        self.arms.append(self.plain)

    @property
    def full(self) -> Verify:
        """The hierarchy as configured."""
        return self.arms[0]

    def names(self) -> dict[int, str]:
        """Return the names of the levels, by index."""
        return {
            node.index: node.name for node in walk(self.root) if not isinstance(node, Concatenate)
        }


@dataclass(slots=True)
class _Arm:
    """What is known of a plan: tokens and seconds of its last rounds.

    Attributes:
        entering: seconds of the first round after another plan, in which drafters read what they
            have missed.
        tried: when it was last measured, in seconds of rounds.
        lost: tries since the best arm changed in which it was not the best.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    entering: float = 0.0
    tried: float = 0.0
    lost: int = 0

    @property
    def goodput(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Level:
    """What is known of a number of streams; ``clock``: seconds of its rounds."""

    arms: list[_Arm]
    trying: int
    step: int
    left: int = _FIRST_TRY
    clock: float = 0.0

    def best(self) -> int:
        return max(range(len(self.arms)), key=lambda arm: self.arms[arm].goodput)

    def loss(self, arm: int) -> float:
        """Estimate the seconds that trying an arm again costs; of one never tried those of its
        neighbour, and twice that where it drafts more."""
        known, factor = arm, 1.0
        while not self.arms[known].seconds:
            further = known + 1 < len(self.arms) and any(a.seconds for a in self.arms[known + 1 :])
            known, factor = (known + 1, 2 * factor) if further else (known - 1, factor)
        found, best = self.arms[known], self.arms[self.best()].goodput or 1.0
        spent = _TRY * found.seconds / found.rounds
        return factor * (found.entering + spent * max(0.0, 1 - found.goodput / best))


@dataclass(slots=True)
class LoadControl:
    """Which arm to use for how many streams.

    With few streams the first arm is tried first and then those that draft less, with many plain
    decoding and then those that draft more; where that no longer pays the rest is left out. What
    was found for half or twice as many streams is taken to begin with. Later each is tried again as
    often as the time that it is expected to lose stays a small share, and with many streams less
    often each time that it loses, until the best arm changes.

    Args:
        num_arms: the last is plain decoding.
        adapt: false: always the first.
    """

    num_arms: int
    adapt: bool = True
    levels: dict[int, _Level] = field(default_factory=dict[int, _Level])
    _last: tuple[int, int] = (-1, -1)

    def choose(self, streams: int, may_try: bool = True) -> int:
        """Choose the arm of the next round; ``may_try``: that round can be measured."""
        if not self.adapt or self.num_arms == 1:
            return 0
        level = self._level(streams)
        return level.trying if level.left > 0 and may_try else level.best()

    def measured(self, streams: int, arm: int, tokens: int, seconds: float) -> None:
        """Record a round without prompts: its arm, the tokens it emitted and its seconds."""
        if not self.adapt or self.num_arms == 1:
            return
        level, here = self._level(streams), (_bucket(streams), arm)
        switched, self._last = self._last != here, here
        level.clock += seconds
        found = level.arms[arm]
        if switched:
            found.entering = seconds
            return
        before = level.best()
        found.tokens = _MEMORY * found.tokens + tokens
        found.seconds = _MEMORY * found.seconds + seconds
        found.rounds = _MEMORY * found.rounds + 1
        found.tried = level.clock
        if level.best() != before:  # another text, or another machine
            for other in level.arms:
                other.lost = 0
        if level.left > 0 and arm == level.trying:
            level.left -= 1
            if not level.left:
                found.lost = min(found.lost + (arm != level.best()), _DOUBLINGS)
                if level.step:
                    self._next(level)
        if not level.left:
            self._again(level, streams < _MANY)

    def _next(self, level: _Level) -> None:
        """Move on to the neighbour of the arm just tried for the first time, where that may pay."""
        best = level.arms[level.best()].goodput
        further = level.trying + level.step
        if 0 <= further < self.num_arms and level.arms[level.trying].goodput > _HOPELESS * best:
            level.trying, level.left = further, _FIRST_TRY
        else:
            level.step = 0

    def _again(self, level: _Level, few: bool) -> None:
        """Try another arm where the time since it was tried has made that cheap."""
        best, share = level.best(), (_FOR_FEW if few else _FOR_MANY) / (self.num_arms - 1)
        for at in range(self.num_arms):
            arm = level.arms[at]
            wait = max(_PATIENCE, level.loss(at) / share) * (1 if few else 2**arm.lost)
            if at != best and level.clock - arm.tried > wait:
                level.trying, level.left = at, _TRY
                return

    def to_dict(self) -> dict[str, list[float]]:
        """Return tokens a second of every arm, by the least number of streams of a class."""
        return {
            str(1 << bucket): [arm.goodput for arm in level.arms]
            for bucket, level in sorted(self.levels.items())
        }

    def _level(self, streams: int) -> _Level:
        bucket = _bucket(streams)
        if bucket not in self.levels:
            for near in (bucket + 1, bucket - 1):
                level = self.levels.get(near)
                if level is not None and not level.step and not level.left:
                    arms = [dataclasses.replace(arm, tried=0.0) for arm in level.arms]
                    self.levels[bucket] = _Level(arms, 0, 0, left=0)
                    return self.levels[bucket]
            arms = [_Arm() for _ in range(self.num_arms)]
            few = streams < _MANY
            begin, step = (0, 1) if few else (self.num_arms - 1, -1)
            self.levels[bucket] = _Level(arms, begin, step)
        return self.levels[bucket]


def named(plan: Verify) -> str:
    """Name a plan of any shape: ``"plain"``, or its levels with their budgets."""
    try:
        return label(plan)
    except HierspecError:  # no plain chain
        return " + ".join(
            f"{node.name} {node.budget}"
            for node in walk(plan.below)
            if not isinstance(node, Concatenate)
        )


def alike(streams: int, others: int) -> bool:
    """Return whether two numbers of streams are of one class: between the same powers of two."""
    return _bucket(streams) == _bucket(others)


def _bucket(streams: int) -> int:
    return max(streams, 1).bit_length() - 1


def _scaled(node: Node, share: float) -> Node:
    if isinstance(node, Concatenate):
        return dataclasses.replace(node, parts=tuple(_scaled(part, share) for part in node.parts))
    budget = max(1, round(node.budget * share))
    if isinstance(node, Draft) or node.below is None:
        return dataclasses.replace(node, budget=budget)
    return dataclasses.replace(node, budget=budget, below=_scaled(node.below, share))


def _budgets(plan: Verify) -> tuple[int, ...]:
    return tuple(node.budget for node in walk(plan.below) if not isinstance(node, Concatenate))


def _shifted(root: Verify, shown: Callable[[str], str]) -> Verify:
    """Return the hierarchy with every index one higher, and names as they are shown."""

    def shifted(node: Node) -> Node:
        index, name = node.index + 1, shown(node.name)
        if isinstance(node, Concatenate):
            parts = tuple(shifted(part) for part in node.parts)
            return dataclasses.replace(node, index=index, name=name, parts=parts)
        if isinstance(node, Draft) or node.below is None:
            return dataclasses.replace(node, index=index, name=name)
        return dataclasses.replace(node, index=index, name=name, below=shifted(node.below))

    found = shifted(root)
    assert isinstance(found, Verify)
    return found
