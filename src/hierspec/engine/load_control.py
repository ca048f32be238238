"""Draft lengths that follow the load: the best for one stream may be slow for sixteen.

A forward for one sequence leaves most of the machine idle, so verifying a draft costs little more
than decoding a token. With many sequences every row costs time, and rejected drafts waste most.
Which length is fastest depends on the machine, the models and the texts, so it is measured: tokens
per second of whole rounds, by the number of streams, for several *draft plans*: the hierarchy
as configured, with its budgets halved and quartered, and plain decoding. The best is used, and the
others are measured again as often as that costs little.

The output law is the target's under any choice: a plan is chosen before its rounds, by the times of
earlier ones, and a round of any plan is lossless. But the random numbers that a sampled text takes
depend on its drafts: a request with a seed of its own keeps the hierarchy as configured, so that
its text is the same under any load.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hierspec.core.nodes import (
    Concatenate,
    Node,
    Verify,
    add_first_leaf,
    replace_fields,
    walk_levels,
)
from hierspec.drafters.base import LookUp

_BUDGET_FACTORS = (1.0, 0.5, 0.25)
_PREDICTED_TOKENS = 16  # of a predicted output in a draft
_FIRST_TRIAL, _TRIAL = 3, 2  # rounds a plan is measured for, the first time and later
_DECAY = 0.85  # of earlier measurements, for each new one
_MANY_STREAMS = 4  # from so many streams on, plain decoding is tried first
_STALL = 8  # times a plan's rounds so far: one that takes longer says more of the machine
_HOPELESS = 0.8  # a plan slower than this part of the best ends the search in its direction
# The share of time that may be lost by measuring plans again. With few streams the best one depends
# mostly on the text, which changes with every request; with many, on the machine, which does not.
_MAX_LOSS_FEW, _MAX_LOSS_MANY = 0.1, 0.02
_MIN_WAIT = 0.25  # seconds between two trials of a plan
_MAX_WAIT = 10_000  # rounds of the best plan between two trials, however long the last one took
_MAX_DOUBLINGS = 4  # with many streams, each lost trial doubles a plan's wait, up to so often


class Plans:
    """The plans of one hierarchy in a service.

    Attributes:
        root: has every node of every plan: for the runtime and for window states.
        full: the hierarchy as configured.
        draft_plans: that, with smaller budgets, and plain decoding.
        prediction: the target verifying drafts from a predicted output; ``None`` without
            ``predictor``.
        predictor: makes these drafts; ``None`` where a controller chooses plans, so that nodes
            keep their indices.

    Args:
        controlled: whether a controller chooses budgets, so that smaller ones are not tried.
    """

    def __init__(
        self, root: Verify, predictor: LookUp | None = None, controlled: bool = False
    ) -> None:
        self.prediction: Verify | None = None
        self.predictor = predictor
        self.root = full = root
        if predictor is not None:
            # The prediction's node has the lowest index, so it drafts first and requests with and
            # without a prediction share the target's call.
            self.root = add_first_leaf(root, predictor.name, predictor, _PREDICTED_TOKENS)
            assert isinstance(self.root.below, Concatenate)
            leaf, *levels = self.root.below.parts
            self.prediction = self.root.over(leaf)
            full = self.root.over(levels[0] if levels else None)
        self.plain = full.over(None)
        by_budgets: dict[tuple[int, ...], Verify] = {}  # rounding may give equal budgets
        if full.below is not None:
            for factor in _BUDGET_FACTORS[:1] if controlled else _BUDGET_FACTORS:
                below = _with_scaled_budgets(full.below, factor)
                budgets = tuple(level.budget for level in walk_levels(below))
                by_budgets.setdefault(budgets, full.over(below))
        self.draft_plans = [*by_budgets.values(), self.plain]
        self.full = self.draft_plans[0]


@dataclass(slots=True)
class _PlanTimes:
    """Measurements of a plan at one load: decaying sums over its rounds.

    Attributes:
        switch_seconds: of the first round after another plan, in which drafters catch up.
        last_measured: when, in seconds of rounds at this load.
        num_lost: trials since the best plan changed after which it was not the best.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    switch_seconds: float = 0.0
    last_measured: float = 0.0
    num_lost: int = 0

    @property
    def goodput(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Add a round; no single one, such as one in which the machine stood still, decides."""
        if self.seconds and seconds:
            seconds = min(seconds, _STALL * self.seconds / self.rounds)
            self.seconds = min(self.seconds, _STALL * seconds * self.rounds)
        self.tokens = _DECAY * self.tokens + tokens
        self.seconds = _DECAY * self.seconds + seconds
        self.rounds = _DECAY * self.rounds + 1


@dataclass(slots=True)
class _LoadClass:
    """Measurements at one class of loads: numbers of streams between two powers of two.

    Attributes:
        trial: the plan to measure next.
        direction: of the first search: 1 towards less drafting, -1 towards more, 0 when it is over.
        rounds_left: of the trial; 0: use the best plan.
        clock: seconds of rounds at these loads.
    """

    plans: list[_PlanTimes]
    trial: int
    direction: int
    rounds_left: int = _FIRST_TRIAL
    clock: float = 0.0

    def best(self) -> int:
        return max(range(len(self.plans)), key=lambda plan: self.plans[plan].goodput)

    def trial_loss(self, plan: int) -> float:
        """Estimate the seconds that measuring a plan again loses against the best one.

        A plan that was never measured costs as much as the next that was, and twice that for each
        plan that it drafts more than that one.
        """
        factor = 1.0
        while not self.plans[plan].rounds:
            if any(later.rounds for later in self.plans[plan + 1 :]):
                plan, factor = plan + 1, 2 * factor
            else:
                plan -= 1
        measured, best = self.plans[plan], self.plans[self.best()].goodput or 1.0
        trial_seconds = _TRIAL * measured.seconds / measured.rounds
        slowdown = max(0.0, 1 - measured.goodput / best)
        return factor * (measured.switch_seconds + trial_seconds * slowdown)


@dataclass(slots=True)
class LoadControl:
    """Chooses the plan for a number of streams, and learns from the rounds.

    With few streams the first plan is measured first and then those that draft less, with many
    plain decoding and then those that draft more, until a plan is much slower than the best. A
    class of loads starts from the measurements of a neighbouring class if there are any. Later a
    plan is measured again when the time that this is expected to lose is a small share of the time
    since, and with many streams less often each time that it loses, until the best plan changes.

    Args:
        num_plans: the last is plain decoding.
        adapt: if false, always choose the first.
        controlled: whether a controller, by costs measured for one stream, chooses the first plan's
            plans, plain decoding among them: then nothing is tried for one stream.
    """

    num_plans: int
    adapt: bool = True
    controlled: bool = False
    classes: dict[int, _LoadClass] = field(default_factory=dict[int, _LoadClass])
    _last: tuple[int, int] = (-1, -1)  # class and plan of the last measured round

    def choose(self, num_streams: int, measurable: bool = True) -> int:
        """Choose the plan of the next round; only a ``measurable`` round can be a trial."""
        if not self._has_choice(num_streams):
            return 0
        load = self._load_class(num_streams)
        return load.trial if load.rounds_left > 0 and measurable else load.best()

    def record_round(self, num_streams: int, plan: int, num_tokens: int, seconds: float) -> None:
        """Record a round without prefill: its plan, how many tokens it emitted, its seconds."""
        if not self._has_choice(num_streams):
            return
        load, current = self._load_class(num_streams), (class_of(num_streams), plan)
        switched, self._last = self._last != current, current
        load.clock += seconds
        measured = load.plans[plan]
        if switched:
            measured.switch_seconds = seconds
            return
        previous_best = load.best()
        measured.add(num_tokens, seconds)
        measured.last_measured = load.clock
        if load.best() != previous_best:  # the texts have changed, or the machine
            for loser in load.plans:
                loser.num_lost = 0
        if load.rounds_left > 0 and plan == load.trial:
            load.rounds_left -= 1
            if not load.rounds_left:
                measured.num_lost = min(measured.num_lost + (plan != load.best()), _MAX_DOUBLINGS)
                if load.direction:
                    self._continue_first_search(load)
        if not load.rounds_left:
            self._start_trial(load, num_streams < _MANY_STREAMS)

    def _has_choice(self, num_streams: int) -> bool:
        return self.adapt and self.num_plans > 1 and not (self.controlled and num_streams == 1)

    def _continue_first_search(self, load: _LoadClass) -> None:
        best = load.plans[load.best()].goodput
        following = load.trial + load.direction
        if 0 <= following < self.num_plans and load.plans[load.trial].goodput > _HOPELESS * best:
            load.trial, load.rounds_left = following, _FIRST_TRIAL
        else:
            load.direction = 0

    def _start_trial(self, load: _LoadClass, few_streams: bool) -> None:
        best = load.best()
        longest = _MAX_WAIT * load.plans[best].seconds / max(load.plans[best].rounds, 1)
        max_loss = (_MAX_LOSS_FEW if few_streams else _MAX_LOSS_MANY) / (self.num_plans - 1)
        for i, plan in enumerate(load.plans):
            wait = max(_MIN_WAIT, load.trial_loss(i) / max_loss)
            wait *= 1 if few_streams else 2**plan.num_lost
            if i != best and load.clock - plan.last_measured > min(wait, longest):
                load.trial, load.rounds_left = i, _TRIAL
                return

    def _load_class(self, num_streams: int) -> _LoadClass:
        number = class_of(num_streams)
        if number not in self.classes:
            for neighbour in (number + 1, number - 1):
                load = self.classes.get(neighbour)
                if load is not None and not load.direction and not load.rounds_left:
                    plans = [dataclasses.replace(plan, last_measured=0.0) for plan in load.plans]
                    self.classes[number] = _LoadClass(plans, 0, 0, rounds_left=0)
                    return self.classes[number]
            plans = [_PlanTimes() for _ in range(self.num_plans)]
            first, direction = (0, 1) if num_streams < _MANY_STREAMS else (self.num_plans - 1, -1)
            self.classes[number] = _LoadClass(plans, first, direction)
        return self.classes[number]


def class_of(num_streams: int) -> int:
    """Return the class of a number of streams: all between the same powers of two are alike."""
    return max(num_streams, 1).bit_length() - 1


def _with_scaled_budgets(below: Node, factor: float) -> Node:
    def fields(node: Node) -> dict[str, int]:
        if isinstance(node, Concatenate):
            return {}
        return {"budget": max(1, round(node.budget * factor))}

    return replace_fields(below, fields)
