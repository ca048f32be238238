"""Drafts that follow the load: what pays for one stream may not pay for sixteen.

A forward for one sequence leaves most of the machine idle, so checking a draft costs little more
than a step. With many sequences every row costs, and drafts that are thrown away cost most. Which
length pays depends on the machine, the models and the texts, so it is measured: tokens a second of
whole rounds, by the number of streams, for the hierarchy as configured, with its budgets halved and
quartered, and without any draft. The best is used, and the others are tried again now and then.

Whatever is chosen, the output's law is the target's: a plan is chosen before its rounds, by what
the clock said of earlier ones, and a round is lossless under any. But the random numbers that a
sampled text takes depend on its drafts: a request with a seed of its own keeps the hierarchy as
configured, so that its text is the same under any load.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hierspec.core.nodes import Concatenate, Draft, Node, Verify, walk
from hierspec.drafters.prediction import Prediction
from hierspec.errors import HierspecError

from .control import label

_SHARES = (1.0, 0.5, 0.25)
_PREDICTED_TOKENS = 16
_FIRST_TRY, _TRY = 3, 2  # rounds an arm is measured for, at first and again
_EVERY = 96  # rounds between two tries of the others
_MEMORY = 0.85  # weight of what was measured before


class Plans:
    """The plans of one hierarchy in a service.

    Attributes:
        root: holds every node of every plan: for the runtime and for window states.
        arms: the hierarchy as configured, with smaller budgets, and without drafts.
        prediction: the target over a predicted output.
        look_up: that drafts from it.
        controlled: a controller chooses plans, so the nodes keep their indices.
    """

    def __init__(self, root: Verify, controlled: bool = False) -> None:
        self.controlled = controlled
        self.look_up = Prediction()
        self.prediction: Verify | None = None
        self.root = full = root
        if not controlled:
            # What is predicted is drafted first of all, so that target calls meet.
            full = _shifted(root)
            draft = Draft(0, self.look_up.name, self.look_up, _PREDICTED_TOKENS).under(root.rule)
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
        """Of the levels, by index."""
        return {
            node.index: node.name for node in walk(self.root) if not isinstance(node, Concatenate)
        }


@dataclass(slots=True)
class _Arm:
    tokens: float = 0.0
    seconds: float = 0.0
    rounds: int = 0

    @property
    def goodput(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Level:
    """What is known of a number of streams."""

    arms: list[_Arm]
    rounds: int = 0
    trying: int = 0
    left: int = _FIRST_TRY


@dataclass(slots=True)
class LoadControl:
    """Which arm to use for how many streams.

    Args:
        num_arms: the last is plain decoding.
        adapt: false: always the first.
    """

    num_arms: int
    adapt: bool = True
    levels: dict[int, _Level] = field(default_factory=dict[int, _Level])
    _last: tuple[int, int] = (-1, -1)

    def choose(self, streams: int) -> int:
        """The arm of the next round."""
        if not self.adapt or self.num_arms == 1:
            return 0
        level = self._level(streams)
        if level.left <= 0:
            return self._best(level)
        return level.trying

    def measured(self, streams: int, arm: int, tokens: int, seconds: float) -> None:
        """A round without prompts, and what came of it."""
        if not self.adapt or self.num_arms == 1:
            return
        level = self._level(streams)
        switched = self._last != (_bucket(streams), arm)
        self._last = (_bucket(streams), arm)
        level.rounds += 1
        if not switched:  # else drafters have read what they missed
            found = level.arms[arm]
            found.tokens = _MEMORY * found.tokens + tokens
            found.seconds = _MEMORY * found.seconds + seconds
            found.rounds += 1
        if level.left > 0:
            level.left -= arm == level.trying and not switched
            if level.left <= 0 and level.trying + 1 < self.num_arms:
                level.trying += 1
                level.left = _TRY if level.rounds > _EVERY else _FIRST_TRY
        elif level.rounds % _EVERY == 0:
            level.trying, level.left = 0, _TRY

    def to_dict(self) -> dict[str, list[float]]:
        """Tokens a second of every arm, by the least number of streams of a class."""
        return {
            str(1 << bucket): [arm.goodput for arm in level.arms]
            for bucket, level in sorted(self.levels.items())
        }

    def _level(self, streams: int) -> _Level:
        bucket = _bucket(streams)
        if bucket not in self.levels:
            self.levels[bucket] = _Level([_Arm() for _ in range(self.num_arms)])
        return self.levels[bucket]

    def _best(self, level: _Level) -> int:
        return max(range(self.num_arms), key=lambda arm: level.arms[arm].goodput)


def named(plan: Verify) -> str:
    """``"plain"``, or the levels used with their budgets."""
    try:
        return label(plan)
    except HierspecError:  # no plain chain
        return " + ".join(
            f"{node.name} {node.budget}"
            for node in walk(plan.below)
            if not isinstance(node, Concatenate)
        )


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


def _shifted(node: Verify) -> Verify:
    """The same with every index one higher."""

    def shifted(node: Node) -> Node:
        if isinstance(node, Concatenate):
            parts = tuple(shifted(part) for part in node.parts)
            return dataclasses.replace(node, index=node.index + 1, parts=parts)
        if isinstance(node, Draft) or node.below is None:
            return dataclasses.replace(node, index=node.index + 1)
        return dataclasses.replace(node, index=node.index + 1, below=shifted(node.below))

    found = shifted(node)
    assert isinstance(found, Verify)
    return found
