"""Claims of P4: verification rules, by what each is expected to keep of the same drafts."""

from __future__ import annotations

from paper_evidence import effects
from paper_evidence.claims import RULE_LOG_RATIO, SMALL_LOG_RATIO, Claim
from paper_evidence.experiments import FURTHER_TEMPERATURES, REPETITIONS
from paper_evidence.methods import MULTI_DRAFT_RULES


def claims() -> list[Claim]:
    """Return the claims of P4."""

    def block_gain(item: str, experiment: str, method: str, conditions: str) -> Claim:
        return Claim(
            item,
            (experiment,),
            f"block over tokenwise, expected tokens a call on the same drafts{conditions}",
            (method,),
            (method,),
            effects.expected_tokens_per_call("block"),
            effects.expected_tokens_per_call("tokenwise"),
            smallest_effect=RULE_LOG_RATIO,
        )

    return [
        block_gain("P4 Table 1", "p4-smollm2", "block", ", n = 5"),
        block_gain("P4 Table 1", "p4-trunk", "block 10", ", n = 10"),
        Claim(
            "P4 Table 1",
            ("clock-p4-large",),
            "block over tokenwise, in time",
            ("block",),
            ("tokenwise",),
            effects.tokens_per_second,
            smallest_effect=SMALL_LOG_RATIO,
        ),
        Claim(
            "P4 Table 2",
            ("p4-trunk-several",),
            "four drafts over one, expected tokens a call on the same drafts",
            ("block-rrs × 4",),
            ("block-rrs × 4",),
            effects.expected_tokens_per_call("block-rrs"),
            effects.expected_tokens_per_call("one"),
        ),
        Claim(
            "P4 Table 2",
            ("p4-trunk-several",),
            "block after block over recursive rejection, 4 drafts, expected tokens a call on the "
            "same drafts",
            ("block-rrs × 4",),
            ("block-rrs × 4",),
            effects.expected_tokens_per_call("block-rrs"),
            effects.expected_tokens_per_call("rrs"),
            smallest_effect=RULE_LOG_RATIO,
        ),
        block_gain("P4 Table 3", "p4-trunk", "block 5", ", n = 5, temperature 1"),
        block_gain("P4 Table 3", "p4-trunk", "block 15", ", n = 15, temperature 1"),
        block_gain("P4 Table 3", "p4-trunk-cool", "block", ", n = 5, temperature .6"),
        *(
            block_gain("P4 Table 3", f"p4-trunk-at-{t:g}", "block", f", n = 5, temperature {t:g}")
            for t in FURTHER_TEMPERATURES
        ),
        block_gain("P4 Table 4", "p4-eagle3", "block", ", one draft that EAGLE-3 samples"),
        *(
            Claim(
                "P4 Table 4",
                ("p4-eagle3-several",),
                f"{rule} over rrs, expected tokens a call on the same four drafts that EAGLE-3 "
                "samples",
                (f"{rule} × 4",),
                (f"{rule} × 4",),
                effects.expected_tokens_per_call(rule),
                effects.expected_tokens_per_call("rrs"),
                smallest_effect=RULE_LOG_RATIO,
            )
            for rule in MULTI_DRAFT_RULES
            if rule != "rrs"
        ),
        *(
            Claim(
                "P4 Figure A.1",
                ("p4-trunk-long", "p4-smollm2-long"),
                f"chance that ten tokens are kept whole, {text}",
                ("block",),
                ("block",),
                effects.all_kept_chance(rule),
                effects.all_kept_chance(baseline),
                smallest_effect=RULE_LOG_RATIO,
            )
            for rule, baseline, text in (
                ("block", "tokenwise", "block over tokenwise"),
                ("ideal", "block", "min(1, R), the ideal, over block"),
            )
        ),
        *(
            block_gain("P4 Table A.1", f"p4-trunk-again-{n}", "block", f", n = 5, repetition {n}")
            for n in REPETITIONS
        ),
        *(
            Claim(
                "P4 Table A.4",
                ("clock-p4-smollm2",),
                f"share of decoding that verification takes, {rule}",
                (rule,),
                metric=effects.verification_time_share,
                reference=0.0,
                scale="difference",
                smallest_effect=0.01,
                kind="same",
                decides=False,  # the share falls with the size of the models
            )
            for rule in ("tokenwise", "block")
        ),
        Claim(
            "P4 Table A.3",
            ("p4-trunk",),
            "no cap over the cap, expected tokens a call on the same drafts (lossy)",
            ("uncapped 10",),
            ("uncapped 10",),
            effects.expected_tokens_per_call(None),
            their_metric=effects.expected_tokens_per_call("block"),
            smallest_effect=RULE_LOG_RATIO,
        ),
    ]
