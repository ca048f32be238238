"""Claims of P5: the full system against its parts, redundancy, entropies, windows.

M1 is the smaller drafter, M2 the larger. *Vanilla* M1 or M2 is that drafter alone, with drafts of
fixed length; by *self-verify* it stops after a token of too high entropy; by *pre-verify* M2
verifies the drafts of M1 before the target does. The full system is all of these.
"""

from __future__ import annotations

import math

from hierspec_lab.papers.p5.readings import READINGS
from paper_evidence import effects
from paper_evidence.claims import (
    ACCEPTANCE_DIFFERENCE,
    AUC_DIFFERENCE,
    TOKEN_DIFFERENCE,
    VARIATION_DIFFERENCE,
    Claim,
)
from paper_evidence.methods import PLAIN, READ_AS, THRESHOLDS, WINDOW_SIZES, at_threshold

_COST, _SPEED = effects.tokens_per_cost, effects.tokens_per_second
_PRINTED_COST = effects.tokens_per_printed_cost
_VANILLA = "vanilla M2, K = 10"
_LONG = ("p5-trunk-long", "p5-large-long")  # 256 tokens; in the first M2 is a model of its own
_BY_ROUND = ("p5-trunk-rounds", "p5-large-rounds")  # as long, with every round
_PARTS = ("pre-verify", "self-verify M2", "pre-verify + self-verify")


def _at_each_window(system: str) -> tuple[str, ...]:
    return tuple(f"{system}, K = {k}" for k in WINDOW_SIZES)


def _at_each_threshold(*systems: str) -> tuple[str, ...]:
    return tuple(at_threshold(system, t) for system in systems for t in (None, *THRESHOLDS))


_VANILLA_AT_BEST_K = tuple(f"vanilla M2, K = {k}" for k in (6, 10))
_CALIBRATED = _at_each_threshold(*(f"full, {reading}" for reading in READINGS))
_CALIBRATED_PARTS = (
    "pre-verify",
    *_VANILLA_AT_BEST_K,
    *_at_each_threshold("self-verify M2", "pre-verify + self-verify"),
)
FULL = at_threshold(f"full, {READ_AS}", None)


def claims() -> list[Claim]:
    """Return the claims of P5."""
    return [
        Claim(
            "P5 Table 1",
            ("clock-p5-large-1", "clock-p5-large-0"),
            "the full system over plain decoding, in time",
            ("full",),
            (PLAIN,),
            _SPEED,
        ),
        *(
            Claim(
                "P5 Table 1",
                (f"clock-p5-{family}-rivals",),
                f"the full system over {name}, in time",
                ("full",),
                (theirs,),
                _SPEED,
                decides=False,  # the rivals' drafters are others, so more than the system differs
            )
            for family, theirs, name in (
                ("large", "specdec++", "SpecDec++ with zoo:mid and its trained head"),
                ("large", "pearl", "PEARL with zoo:mid, two threads on two cores"),
                ("smollm2", "eagle3", "EAGLE-3 (a chain of four)"),
            )
        ),
        *(
            Claim("P5 Table 2", _LONG, f"{text}, at P5's costs", ours, theirs, _PRINTED_COST)
            for ours, theirs, text in (
                (
                    _CALIBRATED,
                    _CALIBRATED_PARTS,
                    "the full system over the best of its parts, readings, thresholds and K "
                    "calibrated",
                ),
                (
                    _CALIBRATED,
                    (_VANILLA,),
                    "the full system, reading and threshold calibrated, over vanilla M2 (1.23)",
                ),
                ((FULL,), (_VANILLA,), "the full system over vanilla M2 (1.23)"),
                (
                    (at_threshold("self-verify M2", None),),
                    (_VANILLA,),
                    "self-verify M2 over vanilla M2 (1.10)",
                ),
                (("pre-verify",), (_VANILLA,), "pre-verify over vanilla M2 (1.05)"),
            )
        ),
        *(
            Claim(
                "P5 Table 2",
                experiments,
                f"the full system over {text}, in time, 128 tokens",
                ("full",),
                theirs,
                _SPEED,
                decides=False,  # calls cost other shares of the target's than P5's do
            )
            for experiments, theirs, text in (
                (("clock-p5-large-1", "clock-p5-large-0"), _PARTS, "the best of its parts"),
                (("clock-p5-large-1",), ("vanilla M2",), "vanilla M2"),
            )
        ),
        Claim(
            "P5 Table 3",
            ("clock-p5-large-1",),
            "gain of full over vanilla M2, other prompts over mathematics, in time",
            ("full",),
            ("vanilla M2",),
            _SPEED,
            contrasts_domains=True,
        ),
        *(
            Claim(
                "P5 Table 3",
                (experiment,),
                "gain of full over vanilla M2, other prompts over mathematics, at P5's costs (a "
                "tenth would matter: P5's is 1.4 times)",
                ("full",),
                ("vanilla M2",),
                _PRINTED_COST,
                contrasts_domains=True,
                smallest_effect=math.log(1.1),
                decides=decides,
            )
            for experiment, decides in (
                ("p5-trunk-domains", True),
                ("p5-smollm2-1", False),  # M2 is the target's own copy
            )
        ),
        Claim(
            "P5 Table 3",
            ("p5-trunk-domains", "p5-smollm2-1"),
            "share kept of M1 alone, other prompts less mathematics",
            ("vanilla M1",),
            metric=effects.acceptance,
            reference=0.0,
            scale="difference",
            smallest_effect=ACCEPTANCE_DIFFERENCE,
            contrasts_domains=True,
            decides=False,  # P5's reason, not what it reports
        ),
        Claim(
            "P5 Table 4",
            _LONG,
            "redundancy σ is alike: vanilla M2 less the full system",
            # σ is 1 − acceptance: its difference is that of acceptances the other way round.
            (FULL,),
            (_VANILLA,),
            effects.acceptance,
            scale="difference",
            smallest_effect=0.05,
            kind="same",
        ),
        Claim(
            "P5 Table 4",
            _LONG,
            "calls a token η, vanilla M1 over full",
            # η is 1 / tokens a call: its ratio is that of tokens a call the other way round.
            (FULL,),
            ("vanilla M1",),
        ),
        Claim(
            "P5 Table 4",
            _LONG,
            "the full system over vanilla M1 (1.75), at P5's costs",
            (FULL,),
            ("vanilla M1",),
            _PRINTED_COST,
        ),
        Claim(
            "P5 Figure 1",
            _BY_ROUND,
            "drafted tokens kept a call of the target, M2 less M1 (K = 10)",
            ("vanilla M2",),
            ("vanilla M1",),
            effects.kept_per_round,
            scale="difference",
            smallest_effect=TOKEN_DIFFERENCE,
        ),
        *(
            Claim(
                "P5 Figure 6",
                ("p5-trunk-1", "p5-trunk-0", "p5-smollm2-1"),
                f"entropy of rejected above kept tokens, {drafter} (AUC less .5)",
                (f"vanilla {drafter}",),
                metric=effects.entropy_auc,
                reference=0.5,
                scale="difference",
                smallest_effect=AUC_DIFFERENCE,
            )
            for drafter in ("M2", "M1")
        ),
        *(
            Claim(
                "P5 Figure 7",
                ("p5-trunk-windows",),
                f"variation over K, vanilla M2 less {system}, at P5's costs",
                # A difference of variations is theirs less ours: less variation is better.
                _at_each_window(system),
                _at_each_window("vanilla M2"),
                _PRINTED_COST,
                scale="difference",
                smallest_effect=VARIATION_DIFFERENCE,
                compares_variation=True,
            )
            for system in ("full", "pre-verify + self-verify")
        ),
        *(
            Claim(
                "P5 Figure 7",
                ("p5-trunk-windows",),
                f"the full system over vanilla M2, both at K = {k}, at P5's costs",
                (f"full, K = {k}",),
                (f"vanilla M2, K = {k}",),
                _PRINTED_COST,
            )
            for k in WINDOW_SIZES
        ),
        Claim(
            "P5 Figure 7",
            _LONG,
            "the full system at K = 10 over vanilla M2 at the better of K = 6 and 10, at P5's "
            "costs",
            (FULL,),
            _VANILLA_AT_BEST_K,
            _PRINTED_COST,
        ),
        *(
            Claim(
                "P5 Figure 7",
                ("p5-trunk-windows",),
                f"the full system over vanilla M2, each at its best K, {costs}",
                _at_each_window("full"),
                _at_each_window("vanilla M2"),
                metric,
                decides=False,  # more than the figure shows
            )
            for costs, metric in (("at P5's costs", _PRINTED_COST), ("by weights", _COST))
        ),
        Claim(
            "P5 Figure 8",
            _BY_ROUND,
            "windows change from round to round: standard deviation of full, less half a token",
            ("full",),
            metric=effects.window_deviation,
            reference=0.5,
            scale="difference",
            smallest_effect=TOKEN_DIFFERENCE,
        ),
        Claim(
            "P5 Figure 8",
            _LONG,
            "share kept, full less vanilla M1",
            (FULL,),
            ("vanilla M1",),
            effects.acceptance,
            scale="difference",
            smallest_effect=ACCEPTANCE_DIFFERENCE,
        ),
        Claim(
            "P5 Figure 8",
            ("p5-smollm2-chats",),
            "share kept, full (any token) less vanilla M1, 48 tokens of chats",
            ("full",),
            ("vanilla M1",),
            effects.acceptance,
            scale="difference",
            smallest_effect=ACCEPTANCE_DIFFERENCE,
            decides=False,  # M2 is the target's own copy
        ),
    ]
