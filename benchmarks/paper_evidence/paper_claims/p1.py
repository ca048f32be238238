"""Claims of P1: what its formula chooses against what it does not, the heuristic, temperatures.

P1 stacks models where its formula says so at measured acceptances and costs. In the families
where it chooses a single draft, that one is compared with the best stack (:mod:`..formula`, which a
test holds against these claims).
"""

from __future__ import annotations

import math

from paper_evidence import effects
from paper_evidence.claims import SMALL_LOG_RATIO, Claim
from paper_evidence.families import FAMILIES
from paper_evidence.formula import SWEEPS, choose_tail, choose_with_tail
from paper_evidence.methods import TAIL, exit_stacks, sweep

_COST, _SPEED = effects.tokens_per_cost, effects.tokens_per_second
_SINGLE = ("single small 2", "single small 4", *(f"single large {n}" for n in (3, 6, 10)))
_HIERARCHIES = tuple(f"three {name}" for name in ("1-4", "2-4", "2-6", "3-6", "3-10"))
_TIMED_SINGLE = ("single large 3", "single large 6", "single large 10")
_TIMED_HIERARCHIES = ("three 2-6", "three 3-6", "three 3-10")


def claims() -> list[Claim]:
    """Return the claims of P1."""
    exit_methods = tuple(exit_stacks(FAMILIES["smollm2"]))
    swept = tuple(sweep(FAMILIES["trunk"]))
    return [
        Claim(
            "P1 Table 3",
            ("clock-p1-smollm2-exits",),
            "best two early exits, stacked, over best single exit, in time",
            tuple(name for name in exit_methods if name.startswith("exits ")),
            tuple(name for name in exit_methods if name.startswith("exit ")),
            _SPEED,
            decides=False,  # budgets are fixed: P1 chooses them, as the planner does
        ),
        Claim(
            "P1 Table 3",
            ("clock-p1-large-0",),
            "best three models over best single draft, in time",
            _TIMED_HIERARCHIES,
            _TIMED_SINGLE,
            _SPEED,
            decides=False,  # as above
        ),
        *(
            Claim(
                "P1 Table 4",
                (f"p1-{family}-0", f"p1-{family}-1"),
                f"the formula's choice, a single draft, over the best three {models}, by weights",
                _SINGLE,
                _HIERARCHIES,
                _COST,
            )
            for family, models in (
                ("trunk", "models"),
                ("t5", "encoder-decoders"),
                ("tuned", "models, the smallest fine-tuned on M2"),
            )
        ),
        Claim(
            "P1 Table 4",
            ("clock-p1-large-0",),
            "the formula's choice, three models, over the best single draft, by weights",
            _TIMED_HIERARCHIES,
            _TIMED_SINGLE,
            _COST,
        ),
        Claim(
            "P1 Table 4",
            ("p1-trunk-tails",),
            "horizontal heuristic over none, by weights",
            ("tail 1", "tail 2"),
            ("tail 0",),
            _COST,
            smallest_effect=math.log(1.005),
        ),
        *(
            Claim(
                "P1 §5",
                SWEEPS,
                f"the formula's choice with {text}, over the best of a sweep of vertical and "
                "horizontal cascades, by weights (within 2 %)",
                swept,
                swept,
                _COST,
                choose=choose,
                smallest_effect=SMALL_LOG_RATIO,
                kind="no less",
                decides=decides,
            )
            for choose, text, decides in (
                (choose_with_tail, f"{TAIL} tokens of the smallest model after every level", True),
                (choose_tail, "none, 3 or 10 such tokens", False),  # P1 does not choose how many
            )
        ),
        Claim(
            "P1 Table 10",
            ("p1-trunk-warmths",),
            "drafts at .5 over drafts at .6, request at .6: how likely a first token is kept, "
            "in the same contexts",
            ("drafts at 0.6",),
            ("drafts at 0.6",),
            effects.first_kept_chance(1.2),
            effects.first_kept_chance(1.0),
            smallest_effect=SMALL_LOG_RATIO,
        ),
    ]
