"""Claims of P4: verification rules, by the exact law on the same drafts."""

from __future__ import annotations

from typing import Any

from hierspec_papers.evidence import effects
from hierspec_papers.evidence.claims import RULE, SMALL, Claim
from hierspec_papers.evidence.experiments import COOLER, REPETITIONS
from hierspec_papers.evidence.methods import SEVERAL


def claims() -> list[Claim]:
    """Return the claims of P4."""
    exact = {"metric": effects.exact_block, "other": effects.exact_tokenwise, "least": RULE}

    def gain(item: str, experiments: tuple[str, ...], method: str, n: str, **more: Any) -> Claim:
        text = f"block over tokenwise, tokens a call by the exact law on the same drafts{n}"
        return Claim(item, experiments, text, (method,), (method,), **{**exact, **more})

    return [
        gain("P4 Table 1", ("p4-smollm2",), "block", ", n = 5"),
        gain("P4 Table 1", ("p4-trunk",), "block 10", ", n = 10"),
        Claim(
            "P4 Table 1",
            ("clock-p4-large",),
            "block over tokenwise, in time",
            ("block",),
            ("tokenwise",),
            effects.tokens_per_second,
            least=SMALL,
        ),
        Claim(
            "P4 Table 2",
            ("p4-trunk-several",),
            "four drafts over one, tokens a call by the exact law on the same drafts",
            ("block-rrs × 4",),
            ("block-rrs × 4",),
            effects.exact_several("block-rrs"),
            effects.exact_several("one"),
        ),
        Claim(
            "P4 Table 2",
            ("p4-trunk-several",),
            "block after block over recursive rejection, 4 drafts, tokens a call by the exact law "
            "on the same drafts",
            ("block-rrs × 4",),
            ("block-rrs × 4",),
            effects.exact_several("block-rrs"),
            effects.exact_several("rrs"),
            least=RULE,
        ),
        gain("P4 Table 3", ("p4-trunk",), "block 5", ", n = 5, temperature 1"),
        gain("P4 Table 3", ("p4-trunk",), "block 15", ", n = 15, temperature 1"),
        gain("P4 Table 3", ("p4-trunk-cool",), "block", ", n = 5, temperature .6"),
        *(
            gain("P4 Table 3", (f"p4-trunk-at-{t:g}",), "block", f", n = 5, temperature {t:g}")
            for t in COOLER
        ),
        gain("P4 Table 4", ("p4-eagle3",), "block", ", one draft that EAGLE-3 samples"),
        *(
            Claim(
                "P4 Table 4",
                ("p4-eagle3-several",),
                f"{rule} over rrs, tokens a call by the exact law on the same four drafts that "
                "EAGLE-3 samples",
                (f"{rule} × 4",),
                (f"{rule} × 4",),
                effects.exact_several(rule),
                effects.exact_several("rrs"),
                least=RULE,
            )
            for rule in SEVERAL
            if rule != "rrs"
        ),
        *(
            Claim(
                "P4 Figure A.1",
                ("p4-trunk-long", "p4-smollm2-long"),
                f"chance that ten tokens are kept whole, {text}",
                ("block",),
                ("block",),
                effects.kept_whole(more),
                effects.kept_whole(less),
                least=RULE,
            )
            for more, less, text in (
                ("block", "tokenwise", "block over tokenwise"),
                ("ideal", "block", "min(1, R), the ideal, over block"),
            )
        ),
        *(
            gain("P4 Table A.1", (f"p4-trunk-again-{n}",), "block", f", n = 5, repetition {n}")
            for n in REPETITIONS
        ),
        *(
            Claim(
                "P4 Table A.4",
                ("clock-p4-smollm2",),
                f"share of decoding that verification takes, {rule}",
                (rule,),
                metric=effects.verification_overhead,
                against=0.0,
                scale="difference",
                least=0.01,
                kind="same",
            )
            for rule in ("tokenwise", "block")
        ),
        Claim(
            "P4 Table A.3",
            ("p4-trunk",),
            "no cap over the cap, tokens a call by the exact law on the same drafts (lossy)",
            ("uncapped 10",),
            ("uncapped 10",),
            effects.exact_own,
            other=effects.exact_block,
            least=RULE,
        ),
    ]
