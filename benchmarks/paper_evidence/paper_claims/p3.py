"""Claims of P3: HiSpec against single exits, exits and lengths, the share of verification."""

from __future__ import annotations

from paper_evidence import effects
from paper_evidence.claims import ACCEPTANCE_DIFFERENCE, Claim
from paper_evidence.experiments import RECORDED
from paper_evidence.families import FAMILIES
from paper_evidence.methods import LAYERSKIP_LENGTHS, PLAIN, exit_layer_pairs

_COST, _CALLS, _SPEED = effects.tokens_per_cost, effects.tokens_per_call, effects.tokens_per_second


# P3's exits cost an eighth and a quarter of the target and keep .397 of their tokens. Of SmolLM2,
# layers were not trained to exit: after a sixth of them .1 is kept. What it says stands beside.
_SMOLLM2_DECIDES = False


def _best_pair(item: str, family: str, layers: str) -> Claim:
    """Return the claim: P3's pair of exits, or the nearest to it, over all other trained pairs."""
    ours, *theirs = [f"{low}-{high}" for low, high in exit_layer_pairs(FAMILIES[family])]
    text = f"exits {layers}, nearest to (L/8, L/4), over the best of the {len(theirs)} other pairs"
    name = f"p3-{family}-pairs"
    decides = family != "smollm2" or _SMOLLM2_DECIDES
    text = f"{text}, by layers run"
    return Claim(item, (name,), text, (ours,), tuple(theirs), _COST, decides=decides)


def _compared_in(system: str) -> str:
    """Return where P3 compares HiSpec with a system: Figure 1 is without SWIFT."""
    return "P3 Table 1" if system == "SWIFT" else "P3 Figure 1"


def claims() -> list[Claim]:
    """Return the claims of P3."""
    smollm2, chats, trunk = "p3-smollm2", "p3-smollm2-chats", "p3-trunk"
    return [
        Claim(
            "P3 Table 1",
            ("clock-p3-smollm2",),
            "HiSpec over LayerSkip (exit 10 of 30 layers), in time",
            ("hispec",),
            ("exit 10",),
            _SPEED,
            decides=_SMOLLM2_DECIDES,
        ),
        Claim(
            "P3 Table 1",
            ("clock-p3-large",),
            "HiSpec over LayerSkip (exit at L/4), in time",
            ("hispec",),
            ("exit 4",),
            _SPEED,
        ),
        *(
            Claim(
                "P3 Table 1",
                (experiment,),
                "HiSpec over plain decoding, in time",
                ("hispec",),
                (PLAIN,),
                _SPEED,
                decides=decides,
            )
            for experiment, decides in (
                ("clock-p3-large", True),
                ("clock-p3-smollm2", _SMOLLM2_DECIDES),
            )
        ),
        Claim(
            "P3 Table 1",
            (smollm2, "clock-p3-smollm2", chats),
            "HiSpec over LayerSkip (exit 10 of 30 layers), by layers run",
            ("hispec",),
            ("exit 10",),
            _COST,
            decides=_SMOLLM2_DECIDES,
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
                "P3 Table 1",
                (f"p3-{family}-tuned",),
                f"HiSpec, with a bonus token below or without, over LayerSkip {text}, by layers "
                "run",
                ("hispec", "hispec, no bonus"),
                theirs,
                _COST,
                decides=is_tuned and (family != "smollm2" or _SMOLLM2_DECIDES),
            )
            for text, theirs, is_tuned in (
                ("of tuned length", tuple(f"layerskip {n}" for n in LAYERSKIP_LENGTHS), True),
                ("at six tokens", ("layerskip 6",), False),
            )
            for family in ("trunk", "smollm2")
        ),
        *(
            Claim(
                _compared_in(name),
                tuple(RECORDED),
                f"HiSpec over {name}, in time, presets untuned",
                ("HiSpec",),
                (theirs,),
                _SPEED,
                decides=theirs != "SWIFT",  # in so short a text it searches for layers throughout
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
                _compared_in(name),
                ("clock-p3-smollm2-others",),
                f"HiSpec over {name}, in time",
                ("hispec",),
                (theirs,),
                _SPEED,
                decides=_SMOLLM2_DECIDES,
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
            "P3 Table 1",
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
                metric=effects.check_time_ratio,
                reference=2.0,
                decides=decides,
            )
            for item in ("P3 Figure 2", "P3 Table 2")
            for experiment, method, drafter, decides in (
                ("clock-p3-smollm2", "exit 5", "an exit of 1/6 of the target", _SMOLLM2_DECIDES),
                ("clock-p5-large-1", "vanilla M1", "a model of 1/70 of the target", True),
            )
        ),
        *(
            Claim(
                "P3 Figure 4",
                (experiment,),
                f"acceptance of the exit {place}, less one half",
                (exit_name,),
                metric=effects.first_token_acceptance,
                reference=0.5,
                scale="difference",
                smallest_effect=ACCEPTANCE_DIFFERENCE,
                decides=decides,
            )
            for experiment, exit_name, place, decides in (
                (smollm2, "exit 10", "after 10 of 30 layers", _SMOLLM2_DECIDES),
                (trunk, "exit 2", "at L/4", True),
            )
        ),
        *(
            _best_pair(item, family, layers)
            for item in ("P3 Figure 5", "P3 Figure 8")
            for family, layers in (("smollm2", "5 and 10 of 30 layers"), ("trunk", "1 and 2 of 8"))
        ),
        *(
            Claim(
                item,
                experiments,
                f"acceptance, HiSpec less a single exit at its draft layer{size}",
                ("hispec",),
                (draft_exit,),
                effects.acceptance,
                scale="difference",
                smallest_effect=smallest,
                decides=decides,
            )
            for item, size, smallest in (
                ("P3 Figure 6", "", ACCEPTANCE_DIFFERENCE),
                ("P3 §3.3", " (half of the printed .184 would matter)", 0.092),
            )
            for experiments, draft_exit, decides in (
                ((smollm2, chats), "exit 5", _SMOLLM2_DECIDES),
                ((trunk,), "exit 1", True),
            )
        ),
        *(
            Claim(
                "P3 Figure 6",
                experiments,
                "HiSpec over the best single exit, by layers run",
                ("hispec",),
                tuple(f"exit {layer}" for layer in layers),
                _COST,
                decides=decides,
            )
            for experiments, layers, decides in (
                ((smollm2, chats), (5, 10, 15), _SMOLLM2_DECIDES),
                ((trunk,), (1, 2, 4), True),
            )
        ),
        *(
            Claim(
                "P3 Figure 7",
                ("p3-trunk-lengths",),
                f"{text}, by layers run",
                ("2/4",),
                (n,),
                _COST,
            )
            for text, n in (
                ("N_d = 2 over N_d = 8", "8/4"),
                ("N_d = 2 over N_d = 1", "1/4"),
                ("N_i = 4 over N_i = 12", "2/12"),
            )
        ),
    ]
