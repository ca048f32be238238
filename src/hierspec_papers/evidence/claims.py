"""Claims of the papers as effects of experiments, and the verdicts on them.

Ratios are compared on a logarithmic scale and reported as ratios, shares as differences. ``least``
is the smallest difference that matters: 3 % of speed or of tokens for a system against another, 1 %
for a verification rule (the papers' own margins are 1 to 5 %), .03 of an acceptance, .05 of an AUC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import effects
from .experiments import EXPERIMENTS, PLAIN, WINDOWS, Experiment
from .sequential import Estimate, Kind, Verdict, estimate, prompts_needed, verdict

Scale = Literal["ratio", "difference"]
SYSTEM, RULE, SHARE, AREA = math.log(1.03), math.log(1.01), 0.03, 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    """Something a paper says that an experiment can decide.

    Attributes:
        item: table or figure, by :mod:`.items`' name: ``P3 Table 1``.
        experiments: names of those that measure it, the real model's first.
        text: ours against theirs, as the page says it.
        ours, theirs: methods; of several the best (cross-fitted). No ``theirs``: ``against``.
        metric: of a run; ``other``: theirs, if another.
        against: a fixed number.
        prompts: ``""``: all; ``mathematics`` or ``rest``: of that domain alone.
        steady: the metric's variation over ``ours`` against that over ``theirs``.
    """

    item: str
    experiments: tuple[str, ...]
    text: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...] = ()
    metric: effects.Metric = effects.tokens_per_call
    other: effects.Metric | None = None
    against: float | None = None
    scale: Scale = "ratio"
    least: float = SYSTEM
    kind: Kind = "more"
    steady: bool = False
    prompts: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim on an experiment's file.

    Attributes:
        found: on the claim's own scale (logarithms for ratios); ``None``: nothing measured yet.
        needed: prompts for the smallest difference that matters, given the spread.
    """

    claim: Claim
    experiment: Experiment
    found: Estimate | None
    verdict: Verdict
    needed: int | None

    @property
    def shown(self) -> str:
        """The effect with its interval, ratios as ratios."""
        if self.found is None:
            return "not measured yet"
        parts = (self.found.value, self.found.low, self.found.high)
        if self.claim.scale == "ratio":
            value, low, high = map(math.exp, parts)
            return f"{value:.3f}× [{low:.3f}, {high:.3f}]"
        value, low, high = parts
        return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def _named(*names: str) -> tuple[str, ...]:
    return names


_COST, _CALLS, _SPEED = effects.tokens_per_cost, effects.tokens_per_call, effects.tokens_per_second
_SINGLE = _named("single small 2", "single small 4", *(f"single large {n}" for n in (3, 6, 10)))
_DEEP = _named(*(f"three {name}" for name in ("1-4", "2-4", "2-6", "3-6", "3-10")))
_CLOCK_SINGLE = _named("single large 3", "single large 6", "single large 10")
_CLOCK_DEEP = _named("three 2-6", "three 3-6", "three 3-10")
_P5_1 = ("p5-smollm2-1", "clock-p5-large-1", "p5-trunk-1")
_P5_0 = ("p5-trunk-0",)
_PARTS = ("pre-verify", "self-verify M2", "pre-verify + self-verify")


def _over(system: str) -> tuple[str, ...]:
    return tuple(f"{system}, K = {k}" for k in WINDOWS)


def _p1() -> list[Claim]:
    time = "in time"
    return [
        Claim("P1 Table 3", ("clock-p1-large-0",), f"best three models over best single draft, {time}",
              _CLOCK_DEEP, _CLOCK_SINGLE, _SPEED),
        Claim("P1 Table 4", ("p1-trunk-0", "p1-trunk-1"),
              "best three models over best single draft, by weights", _DEEP, _SINGLE, _COST),
        Claim("P1 Table 4", ("clock-p1-large-0",),
              "best three models over best single draft, by weights", _CLOCK_DEEP, _CLOCK_SINGLE, _COST),
        Claim("P1 Table 4", ("p1-trunk-tails",), "horizontal heuristic over none, by weights",
              ("tail 1", "tail 2"), ("tail 0",), _COST, least=math.log(1.005)),
        Claim("P1 Table 10", ("p1-trunk-warmths",),
              "drafts at .5 over drafts at .6, request at .6, tokens a call",
              ("drafts at 0.5",), ("drafts at 0.6",), least=math.log(1.02)),
    ]  # fmt: skip


def _p2() -> list[Claim]:
    return [
        Claim("P2 Figure 1", ("p2-trunk-0", "p2-trunk-1"),
              "best single draft over best interleaved, by weights",
              ("M_s 2", "M_s 4", "M_q 2", "M_q 4", "M_q 8"), ("interleaved 1", "interleaved 2"), _COST),
        Claim("P2 Figure 1", ("p2-trunk-0", "p2-trunk-1"),
              "M_q alone (n = 0) over n = 2 interleaved, same m, by weights",
              ("M_q 4",), ("interleaved 2",), _COST),
    ]  # fmt: skip


def _p3() -> list[Claim]:
    real, trunk = "p3-smollm2", "p3-trunk"
    return [
        Claim("P3 Table 1", ("clock-p3-smollm2",), "HiSpec over LayerSkip (exit at L/4), in time",
              ("hispec",), ("exit 10",), _SPEED),
        Claim("P3 Table 1", ("clock-p3-large",), "HiSpec over LayerSkip (exit at L/4), in time",
              ("hispec",), ("exit 4",), _SPEED),
        Claim("P3 Table 1", ("clock-p3-smollm2", "clock-p3-large"), "HiSpec over plain decoding, in time",
              ("hispec",), (PLAIN,), _SPEED),
        Claim("P3 Table 1", (real, "clock-p3-smollm2"), "HiSpec over LayerSkip (exit at L/4), by layers run",
              ("hispec",), ("exit 10",), _COST),
        Claim("P3 Table 1", (trunk,), "HiSpec over LayerSkip (exit at L/4), by layers run",
              ("hispec",), ("exit 2",), _COST),
        Claim("P3 Figure 1", ("p3-trunk-others",), "HiSpec over Lookahead, by layers run",
              ("hispec",), ("lookahead",), _COST),
        Claim("P3 Figure 1", ("p3-trunk-others",), "HiSpec over SWIFT, by layers run",
              ("hispec",), ("swift",), _COST),
        Claim("P3 Figure 1", ("p3-trunk-others",), "HiSpec over AdaDecode, tokens a call",
              ("hispec",), ("adadecode",), _CALLS),
        Claim("P3 Figure 2", ("clock-p3-smollm2",), "a check over twice the time of six drafted tokens",
              ("exit 5",), metric=effects.verification_share, against=2.0),
        Claim("P3 Table 2", ("clock-p5-large-1",), "a check over twice the time of six drafted tokens",
              ("vanilla M1",), metric=effects.verification_share, against=2.0),
        Claim("P3 Figure 4", (real,), "acceptance of the exit at L/4, less one half",
              ("exit 10",), metric=effects.first_acceptance, against=0.5, scale="difference", least=SHARE),
        Claim("P3 Figure 4", (trunk,), "acceptance of the exit at L/4, less one half",
              ("exit 2",), metric=effects.first_acceptance, against=0.5, scale="difference", least=SHARE),
        Claim("P3 Figure 5", (real,), "the pair (L/8, L/4) over a later intermediate exit, by layers run",
              ("hispec",), ("hispec 5-15",), _COST),
        Claim("P3 Figure 8", (trunk,), "the pair (L/8, L/4) over a later intermediate exit, by layers run",
              ("hispec",), ("hispec 1-4",), _COST),
        Claim("P3 Figure 6", (real,), "acceptance, HiSpec less a single exit at its draft layer",
              ("hispec",), ("exit 5",), effects.acceptance, scale="difference", least=SHARE),
        Claim("P3 Figure 6", (trunk,), "acceptance, HiSpec less a single exit at its draft layer",
              ("hispec",), ("exit 1",), effects.acceptance, scale="difference", least=SHARE),
        Claim("P3 Figure 6", (real,), "HiSpec over the best single exit, by layers run",
              ("hispec",), ("exit 5", "exit 10", "exit 15"), _COST),
        Claim("P3 Figure 6", (trunk,), "HiSpec over the best single exit, by layers run",
              ("hispec",), ("exit 1", "exit 2", "exit 4"), _COST),
        Claim("P3 Figure 7", ("p3-trunk-lengths",), "N_d = 2 over N_d = 8, by layers run",
              ("2/4",), ("8/4",), _COST),
        Claim("P3 Figure 7", ("p3-trunk-lengths",), "N_d = 2 over N_d = 1, by layers run",
              ("2/4",), ("1/4",), _COST),
        Claim("P3 Figure 7", ("p3-trunk-lengths",), "N_i = 4 over N_i = 12, by layers run",
              ("2/4",), ("2/12",), _COST),
    ]  # fmt: skip


def _p4() -> list[Claim]:
    exact = {"metric": effects.exact_block, "other": effects.exact_tokenwise, "least": RULE}

    def gain(item: str, experiments: tuple[str, ...], method: str, n: str, **more: Any) -> Claim:
        text = f"block over tokenwise, tokens a call by the exact law on the same drafts{n}"
        return Claim(item, experiments, text, (method,), (method,), **{**exact, **more})

    return [
        gain("P4 Table 1", ("p4-smollm2",), "block", ", n = 5"),
        gain("P4 Table 1", ("p4-trunk",), "block 10", ", n = 10"),
        Claim("P4 Table 1", ("clock-p4-large",), "block over tokenwise, in time",
              ("block",), ("tokenwise",), _SPEED, least=math.log(1.02)),
        Claim("P4 Table 2", ("p4-trunk-several",), "four drafts over one, tokens a call",
              ("block-rrs × 4",), ("block-rrs × 1",)),
        Claim("P4 Table 2", ("p4-trunk-several",), "block after block over recursive rejection, 4 drafts",
              ("block-rrs × 4",), ("rrs × 4",), least=math.log(1.02)),
        gain("P4 Table 3", ("p4-trunk",), "block 5", ", n = 5, temperature 1"),
        gain("P4 Table 3", ("p4-trunk",), "block 15", ", n = 15, temperature 1"),
        gain("P4 Table 3", ("p4-trunk-cool",), "block", ", n = 5, temperature .6"),
        gain("P4 Table 4", ("p4-eagle3",), "block", ", EAGLE-3's drafts"),
        Claim("P4 Table A.3", ("p4-trunk",), "no cap over cap, tokens a call (lossy)",
              ("uncapped 10",), ("block 10",), least=RULE),
        Claim("P4 Algorithm 1", ("p4-trunk",), "tokenwise over naive branch resampling, tokens a call",
              ("tokenwise 10",), ("naive 10",)),
    ]  # fmt: skip


def _p5() -> list[Claim]:
    return [
        Claim("P5 Table 1", ("clock-p5-large-1", "clock-p5-large-0"), "the full system over plain decoding, in time",
              ("full",), (PLAIN,), _SPEED),
        Claim("P5 Table 2", ("clock-p5-large-1", "clock-p5-large-0"), "the full system over the best of its parts, in time",
              ("full",), _PARTS, _SPEED),
        Claim("P5 Table 2", ("clock-p5-large-1",), "the full system over vanilla M2, in time",
              ("full",), ("vanilla M2",), _SPEED),
        Claim("P5 Table 2", ("clock-p5-large-1", "p5-trunk-1", "p5-trunk-0"), "the full system over the best of its parts, by weights",
              ("full",), _PARTS, _COST),
        Claim("P5 Table 2", ("clock-p5-large-1", "p5-trunk-1", "p5-trunk-0"), "self-verify M2 over vanilla M2, by weights",
              ("self-verify M2",), ("vanilla M2",), _COST),
        Claim("P5 Table 2", ("clock-p5-large-1", "p5-trunk-1", "p5-trunk-0"), "pre-verify over vanilla M2, by weights",
              ("pre-verify",), ("vanilla M2",), _COST),
        Claim("P5 Table 3", ("clock-p5-large-1", "p5-trunk-1"), "the full system over vanilla M2, prompts that are not mathematics, by weights",
              ("full",), ("vanilla M2",), _COST, prompts="rest"),
        Claim("P5 Table 4", _P5_1, "redundancy σ, full less vanilla M2",
              ("vanilla M2",), ("full",), effects.acceptance, scale="difference", least=SHARE),
        Claim("P5 Table 4", _P5_1, "calls a token η, vanilla M1 over full",
              ("full",), ("vanilla M1",)),
        Claim("P5 Figure 1", _P5_1, "tokens kept a call, M2 over M1 (K = 10)",
              ("vanilla M2",), ("vanilla M1",)),
        Claim("P5 Figure 6", ("p5-smollm2-1", "p5-trunk-1", *_P5_0), "entropy of rejected above kept tokens, M2 (AUC less .5)",
              ("vanilla M2",), metric=effects.separation, against=0.5, scale="difference", least=AREA),
        Claim("P5 Figure 6", ("p5-smollm2-1", "p5-trunk-1", *_P5_0), "entropy of rejected above kept tokens, M1 (AUC less .5)",
              ("vanilla M1",), metric=effects.separation, against=0.5, scale="difference", least=AREA),
        Claim("P5 Figure 7", ("p5-trunk-windows",), "variation over K, vanilla M2 less full, by weights",
              _over("full"), _over("vanilla M2"), _COST, scale="difference", least=AREA, steady=True),
        Claim("P5 Figure 7", ("p5-trunk-windows",), "the full system over vanilla M2, each at its best K, by weights",
              _over("full"), _over("vanilla M2"), _COST),
        Claim("P5 Figure 8", _P5_1, "windows change from round to round: standard deviation, full (tokens)",
              ("full",), metric=effects.window_deviation, against=0.0, scale="difference", least=0.5),
        Claim("P5 Figure 8", _P5_1, "share kept, full less vanilla M1",
              ("full",), ("vanilla M1",), effects.acceptance, scale="difference", least=SHARE),
    ]  # fmt: skip


CLAIMS = (*_p1(), *_p2(), *_p3(), *_p4(), *_p5())


def effect(claim: Claim, data: Mapping[str, Any]) -> list[float]:
    """Return the claim's effect by prompt, on its own scale."""
    metric = claim.metric
    if claim.steady:
        return list(effects.steadier(data, claim.ours, claim.theirs, metric).values())
    ours = effects.best(data, claim.ours, metric)
    if claim.prompts:
        wanted = claim.prompts == "mathematics"
        maths = [p["domain"] in ("gsm8k", "math_reasoning") for p in data["prompts"]]
        ours = {n: value for n, value in ours.items() if maths[n] == wanted}
    if claim.against is not None:
        theirs = dict.fromkeys(ours, claim.against)
    else:
        theirs = effects.best(data, claim.theirs, claim.other or metric)
    compare = effects.log_ratio if claim.scale == "ratio" else effects.difference
    return list(compare(ours, theirs).values())


def finding(claim: Claim, experiment: Experiment, data: Mapping[str, Any] | None) -> Finding:
    """Return the verdict on a claim by an experiment's file, or that there is none yet."""
    found = effect(claim, data) if data else []
    if len(found) < 2 or not data:
        return Finding(claim, experiment, None, "undecided", None)
    looks = len(data["settings"]["looks"])
    one = estimate(found, looks)
    said = verdict(one, claim.least, claim.kind)
    return Finding(claim, experiment, one, said, prompts_needed(one.deviation, claim.least, looks))


def about(experiment: str) -> list[Claim]:
    """Return the claims that an experiment measures."""
    return [claim for claim in CLAIMS if experiment in claim.experiments]


def decided(data: Mapping[str, Any]) -> bool:
    """Return whether every claim about this file's experiment is decided by it."""
    name = data["experiment"]
    every: Sequence[Claim] = about(name)
    return all(finding(c, EXPERIMENTS[name], data).verdict != "undecided" for c in every)
