"""Random hierarchies for certificates: every rule, right or wrong, in every surrounding.

Windows with and without a memory, controllers, orders 0 to 3, two and three levels, dropped bonus
tokens: small enough that a law of some tokens more than the longest proposal can be enumerated,
which says whether a case is lossy without what is under test.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch
import wrong_rules as wrong
from installed import rules
from tabular_cases import chain, output_law

from hierspec.core.nodes import Concatenate, Draft, Verify, initial_states
from hierspec.core.rules import Verifier
from hierspec.core.windows import ConfidenceWindow, EntropyWindow, FixedWindow, Window
from hierspec.exact.cases import JumpingController
from hierspec.exact.interpreter import ExactInterpreter, longest_proposal
from hierspec.exact.output import model_law
from hierspec.exact.recording import windows
from hierspec.lm.tabular import KINDS, TabularModel
from hierspec.verifiers.soundness import validate

EXACT = rules("tokenwise", "block", "naive")
LEADING = [*rules("leading"), *rules("leading", top_m=2)]
MIDDLE = [*EXACT, *LEADING]
LOSSY = [
    *rules("uncapped"),
    *LEADING,
    wrong.StopsAtTheFirstFailure(),
    wrong.OneUniformForAll(),
    wrong.ResidualWithoutWeight(),
    wrong.ResidualOfTheUncappedRatio(),
    wrong.EndsAtThePadding(),
    wrong.EmitsFromFullP(),
    wrong.AcceptsTooGladly(),
]
LOSSY_MIDDLE = [
    wrong.HandsUpTheDraftersLaw(),
    wrong.HandsUpAcceptedOnly(),
    wrong.HandsUpTheResidual(),
    wrong.DropsATokenForItsValue(),
    wrong.CutsAfterLookingAhead(),
    wrong.EmitsFromFullP(),
    wrong.KeepsTheLikeliest(),
    *rules("uncapped"),
]


class Case(NamedTuple):
    """A hierarchy for ``certify_tree``."""

    root: Verify
    vocab_size: int
    controller: JumpingController | None

    @property
    def longest(self) -> int:
        """The most tokens a plan hands up."""
        plans = [self.root] if self.controller is None else self.controller.plans
        return max(longest_proposal(plan.below) for plan in plans)

    def tv(self, horizon: int) -> float:
        """The distance of the first ``horizon`` tokens' law, enumerated."""
        root, controller = self.root, self.controller
        states = initial_states(root if controller is None else controller.root)
        first = root if controller is None else controller.plans[0]
        found = output_law(
            ExactInterpreter(first, self.vocab_size), states, horizon, controller=controller
        )
        return float(np.abs(found - model_law(root.model, horizon)).sum() / 2)


def lossless(seed: int) -> Case:
    """A case that ``check`` lets through."""
    rng = random.Random(seed)
    while True:
        levels = rng.choice([2, 2, 3])
        rules = [rng.choice(MIDDLE) for _ in range(levels - 2)] + [rng.choice(EXACT)]
        case = _case(rng, rules)
        try:
            for root in case.controller.plans if case.controller else [case.root]:
                validate(root)
        except ValueError:  # a rule that wants a draft of fixed length, say
            continue
        return case


def with_a_mistake(seed: int) -> Case:
    """A case with a wrong rule, for the target or below it. It may be harmless where it stands."""
    rng = random.Random(seed)
    if rng.random() < 0.6:
        below = [rng.choice([*EXACT[:2], *LEADING[:1]])] if rng.random() < 0.3 else []
        return _case(rng, [*below, rng.choice(LOSSY)])
    return _case(rng, [rng.choice(LOSSY_MIDDLE), rng.choice(EXACT[:2])])


def is_lossy(case: Case) -> bool:
    """Whether a law longer than the longest proposal shows it."""
    return any(case.tv(case.longest + more) > 1e-8 for more in (2, 4))


def _case(rng: random.Random, rules: list[Verifier]) -> Case:
    while True:
        case = _drawn(rng, rules)
        # What adapts multiplies the states of a law, and each token its texts.
        adapting = sum(window == EntropyWindow() for window in windows(case.root).values())
        if case.longest + adapting <= (5 if case.vocab_size == 2 else 3):
            return case


def _drawn(rng: random.Random, rules: list[Verifier]) -> Case:
    V = rng.choice([2, 3])
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))

    def model() -> TabularModel:
        order = rng.choice([0, 1, 1, 2, 3] if V == 2 else [0, 1, 1])
        return TabularModel.random(V, order, generator, rng.choice(KINDS))

    budgets = [rng.choice([1, 2, 3] if len(rules) == 1 else [1, 2]) for _ in rules]
    concatenated = len(rules) == 1 and rng.random() < 0.15
    below = None
    if concatenated:
        parts = tuple(Draft(i, f"part {i}", model(), 1, _window(rng)) for i in range(2))
        below = Concatenate(2, "both", parts, rng.choice([1, 2] if V == 2 else [1]))
        budgets = []
    count = len(rules) + (below is None)
    root = chain(
        [model() for _ in range(count)],
        rules,
        budgets,
        [_window(rng) for _ in budgets],
        [rng.random() < 0.8 for _ in rules],
        below,
    )
    controller: Any = None
    if not concatenated and rng.random() < 0.35:
        plans = [[rng.choice([0, 1, 2]) for _ in budgets] for _ in range(rng.choice([2, 3, 6]))]
        controller = JumpingController(root, plans)
    return Case(root, V, controller)


def _window(rng: random.Random) -> Window:
    return rng.choice(
        [
            FixedWindow(),
            EntropyWindow(),
            EntropyWindow(),
            EntropyWindow(rng.uniform(0.2, 0.9)),
            ConfidenceWindow(rng.uniform(0.3, 0.7)),
        ]
    )
