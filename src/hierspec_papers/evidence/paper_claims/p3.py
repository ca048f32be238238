"""Claims of P3: HiSpec against single exits, exits and lengths, the share of verification."""

from __future__ import annotations

from hierspec_papers.evidence import effects
from hierspec_papers.evidence.claims import SHARE, Claim
from hierspec_papers.evidence.experiments import RECORDED
from hierspec_papers.evidence.families import FAMILIES
from hierspec_papers.evidence.methods import PLAIN, every_pair

_COST, _CALLS, _SPEED = effects.tokens_per_cost, effects.tokens_per_call, effects.tokens_per_second


def _pairs(item: str, family: str, shown: str) -> Claim:
    """Return the claim: P3's pair of exits, or the nearest to it, over all other trained pairs."""
    ours, *others = [f"{low}-{high}" for low, high in every_pair(FAMILIES[family])]
    text = f"exits {shown}, nearest to (L/8, L/4), over the best of the {len(others)} other pairs"
    name = f"p3-{family}-pairs"
    return Claim(item, (name,), f"{text}, by layers run", (ours,), tuple(others), _COST)


def claims() -> list[Claim]:
    """Return the claims of P3."""
    real, chats, trunk = "p3-smollm2", "p3-smollm2-chats", "p3-trunk"
    return [
        Claim(
            "P3 Table 1",
            ("clock-p3-smollm2",),
            "HiSpec over LayerSkip (exit 10 of 30 layers), in time",
            ("hispec",),
            ("exit 10",),
            _SPEED,
        ),
        Claim(
            "P3 Table 1",
            ("clock-p3-large",),
            "HiSpec over LayerSkip (exit at L/4), in time",
            ("hispec",),
            ("exit 4",),
            _SPEED,
        ),
        Claim(
            "P3 Table 1",
            ("clock-p3-smollm2", "clock-p3-large"),
            "HiSpec over plain decoding, in time",
            ("hispec",),
            (PLAIN,),
            _SPEED,
        ),
        Claim(
            "P3 Table 1",
            (real, "clock-p3-smollm2", chats),
            "HiSpec over LayerSkip (exit 10 of 30 layers), by layers run",
            ("hispec",),
            ("exit 10",),
            _COST,
        ),
        Claim(
            "P3 Table 1",
            (trunk,),
            "HiSpec over LayerSkip (exit at L/4), by layers run",
            ("hispec",),
            ("exit 2",),
            _COST,
        ),
        *(
            Claim(
                "P3 Figure 1",
                tuple(RECORDED),
                f"HiSpec over {name}, in time, presets untuned",
                ("HiSpec",),
                (theirs,),
                _SPEED,
            )
            for theirs, name in (
                ("LayerSkip", "LayerSkip (exit at L/4)"),
                ("LookAhead", "Lookahead"),
                ("SWIFT", "SWIFT"),
                ("AdaDecode", "AdaDecode without trained heads"),
            )
        ),
        *(
            Claim(
                "P3 Figure 1",
                ("clock-p3-smollm2-others",),
                f"HiSpec over {name}, in time",
                ("hispec",),
                (theirs,),
                _SPEED,
            )
            for theirs, name in (
                ("lookahead", "Lookahead"),
                ("swift", "SWIFT"),
                ("adadecode", "AdaDecode with trained heads"),
            )
        ),
        Claim(
            "P3 Figure 1",
            ("p3-trunk-others",),
            "HiSpec over Lookahead, by layers run",
            ("hispec",),
            ("lookahead",),
            _COST,
        ),
        Claim(
            "P3 Figure 1",
            ("p3-trunk-others",),
            "HiSpec over SWIFT, tokens a call of the target, whatever the drafts cost",
            ("hispec",),
            ("swift",),
            _CALLS,
            decides=False,
        ),
        Claim(
            "P3 Figure 1",
            ("p3-trunk-others",),
            "HiSpec over AdaDecode without trained heads, tokens a call of the target, whatever "
            "the drafts cost",
            ("hispec",),
            ("adadecode",),
            _CALLS,
            decides=False,
        ),
        *(
            Claim(
                item,
                (experiment,),
                f"a check over twice the time of six tokens drafted by {drafter} (P3's drafts: 1/9 "
                "to 1/400)",
                (method,),
                metric=effects.verification_share,
                against=2.0,
            )
            for item in ("P3 Figure 2", "P3 Table 2")
            for experiment, method, drafter in (
                ("clock-p3-smollm2", "exit 5", "an exit of 1/6 of the target"),
                ("clock-p5-large-1", "vanilla M1", "a model of 1/70 of the target"),
            )
        ),
        Claim(
            "P3 Figure 4",
            (real,),
            "acceptance of the exit after 10 of 30 layers, less one half",
            ("exit 10",),
            metric=effects.first_acceptance,
            against=0.5,
            scale="difference",
            least=SHARE,
        ),
        Claim(
            "P3 Figure 4",
            (trunk,),
            "acceptance of the exit at L/4, less one half",
            ("exit 2",),
            metric=effects.first_acceptance,
            against=0.5,
            scale="difference",
            least=SHARE,
        ),
        *(
            _pairs(item, family, shown)
            for item in ("P3 Figure 5", "P3 Figure 8")
            for family, shown in (("smollm2", "5 and 10 of 30 layers"), ("trunk", "1 and 2 of 8"))
        ),
        Claim(
            "P3 Figure 6",
            (real, chats),
            "acceptance, HiSpec less a single exit at its draft layer",
            ("hispec",),
            ("exit 5",),
            effects.acceptance,
            scale="difference",
            least=SHARE,
        ),
        Claim(
            "P3 Figure 6",
            (trunk,),
            "acceptance, HiSpec less a single exit at its draft layer",
            ("hispec",),
            ("exit 1",),
            effects.acceptance,
            scale="difference",
            least=SHARE,
        ),
        Claim(
            "P3 Figure 6",
            (real, chats),
            "HiSpec over the best single exit, by layers run",
            ("hispec",),
            ("exit 5", "exit 10", "exit 15"),
            _COST,
        ),
        Claim(
            "P3 Figure 6",
            (trunk,),
            "HiSpec over the best single exit, by layers run",
            ("hispec",),
            ("exit 1", "exit 2", "exit 4"),
            _COST,
        ),
        Claim(
            "P3 Figure 7",
            ("p3-trunk-lengths",),
            "N_d = 2 over N_d = 8, by layers run",
            ("2/4",),
            ("8/4",),
            _COST,
        ),
        Claim(
            "P3 Figure 7",
            ("p3-trunk-lengths",),
            "N_d = 2 over N_d = 1, by layers run",
            ("2/4",),
            ("1/4",),
            _COST,
        ),
        Claim(
            "P3 Figure 7",
            ("p3-trunk-lengths",),
            "N_i = 4 over N_i = 12, by layers run",
            ("2/4",),
            ("2/12",),
            _COST,
        ),
    ]
