"""Evidence for the papers' claims: the statistics, what is counted, and the page."""

import dataclasses
import json
import math
import random
import statistics
from pathlib import Path

import pytest
from scipy import stats

from hierspec_papers.evidence import effects, experiments, page, recorded
from hierspec_papers.evidence.claims import Claim, Finding, combined, decide, effect_by_prompt
from hierspec_papers.evidence.computed import law_of_tokens
from hierspec_papers.evidence.experiments import EXPERIMENTS
from hierspec_papers.evidence.items import ITEMS
from hierspec_papers.evidence.paper_claims import CLAIMS
from hierspec_papers.evidence.sequential import (
    LOOKS,
    Estimate,
    estimate,
    prompts_needed,
    quantile,
    verdict,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "results" / "evidence"


# --- statistics


@pytest.mark.parametrize("freedom", [8, 23, 35, 59])
@pytest.mark.parametrize("probability", [0.9, 0.975, 0.99375])
def test_quantile(freedom, probability):
    exact = stats.t.ppf(probability, freedom)
    assert quantile(probability, freedom) == pytest.approx(exact, rel=0.01)
    assert quantile(1 - probability, freedom) == pytest.approx(-exact, rel=0.01)


def test_interval():
    values = [0.1, 0.3, -0.2, 0.4, 0.25, 0.0, 0.15, 0.3, 0.1, 0.2]
    found = estimate(values, looks=1)
    error = statistics.stdev(values) / math.sqrt(10)
    low, high = stats.t.interval(0.95, 9, loc=statistics.fmean(values), scale=error)
    assert (found.low, found.high) == pytest.approx((low, high), abs=2e-3)
    wider = estimate(values, looks=4)
    assert wider.low < found.low < found.high < wider.high
    with pytest.raises(ValueError, match="two prompts"):
        estimate([0.1])


@pytest.mark.parametrize(
    ("low", "high", "kind", "n", "expected"),
    [
        (0.01, 0.2, "more", 24, "holds"),
        (0.005, 0.02, "more", 24, "does not hold"),  # above 0, by less than matters
        (-0.3, 0.02, "more", 24, "does not hold"),
        (-0.01, 0.2, "more", 24, "undecided"),
        (0.01, 0.2, "more", 23, "undecided"),  # too few prompts for any claim
        (-0.02, 0.02, "same", 24, "holds"),
        (-0.02, 0.04, "same", 24, "undecided"),
        (0.04, 0.2, "same", 24, "does not hold"),
        (-0.2, -0.04, "same", 24, "does not hold"),
    ],
)
def test_verdict(low, high, kind, n, expected):
    assert verdict(Estimate((low + high) / 2, low, high, 0.1, n), 0.03, kind) == expected


def stopped(rng, mean, looks, corrected):
    """Return verdict and estimate at the first look that decides, or at the last."""
    values = [rng.gauss(mean, 0.1) for _ in range(LOOKS[-1])]
    for n in looks:
        found = estimate(values[:n], len(looks) if corrected else 1)
        decision = verdict(found, 0.05)
        if decision != "undecided":
            return decision, found
    return decision, found


def test_looking_several_times_keeps_the_error():
    """Count false findings: without the correction they are more than the error allowed."""
    errors = {}
    for corrected in (True, False):
        rng = random.Random(5)
        outside = 0
        for _ in range(2000):
            values = [rng.gauss(0.0, 0.1) for _ in range(LOOKS[-1])]
            found = [estimate(values[:n], len(LOOKS) if corrected else 1) for n in LOOKS]
            outside += any(one.low > 0 or one.high < 0 for one in found)
        errors[corrected] = outside / 2000
    assert errors[True] < 0.05 < 0.075 < errors[False]


def test_prompts_needed_have_the_power():
    needed = prompts_needed(0.1, 0.05, looks=1)
    assert 30 <= needed <= 34  # (1.96 + .84)² · 4
    rng = random.Random(6)
    held = 0
    for _ in range(1000):
        found = estimate([rng.gauss(0.05, 0.1) for _ in range(needed)], looks=1)
        held += found.low > 0
    assert 0.76 < held / 1000 < 0.86
    assert prompts_needed(0.0, 0.05) == 2
    rng = random.Random(7)
    decisions = [stopped(rng, 0.08, LOOKS, True)[0] for _ in range(300)]
    assert decisions.count("holds") > 290


# --- effects


def run(method, prompt, tokens=9, calls=4, rounds=((4, 2), (4, 4)), **more):
    levels = [{"name": "d", "calls": 8}, {"name": "t", "calls": calls}]
    base = {"method": method, "prompt": prompt, "tokens": tokens, "target_calls": calls}
    return {**base, "rounds": [list(r) for r in rounds], "levels": levels, **more}


def test_metrics_by_hand():
    data = {"prices": {"a": {"d": 0.25, "t": 1.0}, "b": None}}
    one = run("a", 0, decode_seconds=0.5, entropies=[[1.0, 1], [2.0, 0], [2.0, 1], [3.0, 0]])
    assert effects.tokens_per_call(one, data) == 2
    assert effects.tokens_per_cost(one, data) == 8 / (8 * 0.25 + 4)
    assert effects.tokens_per_cost(run("b", 0), data) is None
    assert effects.tokens_per_second(one, data) == 16
    assert effects.acceptance(one, data) == 6 / 8
    assert effects.first_acceptance(run("a", 0, rounds=((4, 0), (4, 1))), data) == 0.5
    assert effects.separation(one, data) == 3.5 / 4
    assert effects.acceptance(run("a", 0, rounds=()), data) is None
    assert effects.kept_per_round(one, data) == 3
    long = run("a", 0, rounds=((2, 0), (6, 1), (1, 1)))
    assert effects.window_deviation(long, data) == 2  # the last round does not count
    exact = {"drafts": 4, "block": 6.0, "tokenwise": 4.0, "expected": 5.0}
    assert effects.exact_own(run("a", 0, exact=exact), data) == 2.25
    assert effects.exact_block(run("a", 0, exact=exact), data) == 2.5
    assert effects.exact_tokenwise(run("a", 0, exact=exact), data) == 2.0
    exact = {"positions": {"drafts": 4, "block": [3.0, 2.0]}}
    assert effects.kept_whole("block")(run("a", 0, exact=exact), data) == 0.5


def test_the_best_is_chosen_on_other_prompts():
    runs = []
    for n in range(4):  # a is good on even prompts, b on odd ones
        runs += [run("a", n, calls=2 if n % 2 == 0 else 8), run("b", n, calls=4)]
    data = {"runs": runs, "prices": {}}
    found = effects.best(data, ["a", "b"], effects.tokens_per_call)
    assert found == {0: 2.0, 2: 2.0, 1: 1.0, 3: 1.0}  # chosen where it is worse, both times
    assert effects.best(data, ["a"], effects.tokens_per_call) == {0: 4.0, 1: 1.0, 2: 4.0, 3: 1.0}


def test_jackknife_of_a_mean_is_its_values():
    values = {0: 1.0, 1: 4.0, 2: 2.0, 5: 7.0}
    found = effects.jackknife(list(values), lambda some: statistics.fmean(values[n] for n in some))
    assert found == pytest.approx(values)
    apart = effects.contrast({0: 1.0, 1: 3.0, 2: 5.0, 3: 7.0}, {0, 1})
    assert statistics.fmean(apart.values()) == pytest.approx(4.0)
    assert effects.contrast({0: 1.0, 1: 3.0, 2: 5.0}, {0}) == {}


def test_a_claim_on_a_file():
    runs = [run("a", n, calls=4 + n % 2) for n in range(24)] + [
        run("b", n, calls=8) for n in range(24)
    ]
    data = {
        "experiment": "p3-trunk",
        "runs": runs,
        "prices": {},
        "prompts": [{"domain": "qa"}] * 24,
        "settings": {"looks": [24]},
    }
    claim = Claim("P3 Table 1", ("p3-trunk",), "a over b", ("a",), ("b",))
    assert effect_by_prompt(claim, data) == pytest.approx([math.log(2), math.log(8 / 5)] * 12)
    found = decide(claim, EXPERIMENTS["p3-trunk"], data)
    assert (found.verdict, found.estimate.n) == ("holds", 24)
    assert found.shown.startswith("1.789×")
    other = Claim("P3 Table 1", ("p3-trunk",), "b over a", ("b",), ("a",))
    assert decide(other, EXPERIMENTS["p3-trunk"], data).verdict == "does not hold"
    assert decide(claim, EXPERIMENTS["p3-trunk"], None).verdict == "undecided"


def of_verdict(decision, experiment="p5-trunk-1", found=True, **more):
    claim = Claim("P5 Figure 1", (experiment,), "a over b", ("full",), **more)
    one = Estimate(0.1, 0.0, 0.2, 0.1, 24) if found else None
    return Finding(claim, EXPERIMENTS[experiment], one, decision, 30)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("holds", "undecided"), "holds"),
        (("undecided", "holds"), "holds"),
        (("holds", "does not hold"), "does not hold"),
        (("does not hold", "undecided"), "does not hold"),
        (("undecided", "undecided"), "undecided"),
    ],
)
def test_models_that_decide_differently(verdicts, expected):
    group = [
        of_verdict(verdict, name)
        for verdict, name in zip(verdicts, ("p5-trunk-1", "p5-smollm2-1"), strict=True)
    ]
    assert combined(group) == page.status_of([group], []) == expected
    shown = page.shown(group)
    decided = {verdict for verdict in verdicts if verdict != "undecided"}
    assert {one.verdict for one in shown} == (decided or {"undecided"})
    lines = page._lines([group], [], expected)
    assert len(lines) == len(shown)
    assert any("own copy in 4 bits" in line for line in lines) == (
        verdicts[1] != "undecided"  # it says so where that copy decides
    )


def test_what_stands_beside_does_not_decide():
    beside, other = of_verdict("holds", decides=False), of_verdict("does not hold")
    assert page.status_of([[beside], [other]], []) == "does not hold"
    assert page.status_of([[other], [beside]], [page.Fixed("holds", "")]) == "does not hold"
    own = of_verdict("does not hold", decides=False)
    assert page.status_of([[of_verdict("holds")], [own]], []) == "holds"


def test_a_recorded_reproduction_is_an_experiment():
    found = recorded.read(ROOT / "benchmarks" / "results")
    assert found.keys() == experiments.RECORDED.keys()
    for name, data in found.items():
        assert data["settings"]["temperature"] == EXPERIMENTS[name].temperature
        assert data["settings"]["target"] == EXPERIMENTS[name].family.target
        assert {run["method"] for run in data["runs"]} == EXPERIMENTS[name].methods.keys()
        assert len(data["runs"]) == 24 * len(EXPERIMENTS[name].methods)
    path = ROOT / "benchmarks" / "results" / EXPERIMENTS[name].file
    other = dataclasses.replace(EXPERIMENTS[name], temperature=0.5)
    with pytest.raises(ValueError, match=r"no runs at temperature 0\.5"):
        recorded.as_experiment(json.loads(path.read_text()), other)


def test_p2_table_a1():
    law = law_of_tokens(0.8, 0.5, 1, 1)
    assert law == pytest.approx([0.5, 0.5 * 0.2, 0.5 * 0.8])


# --- what the registry says


def test_claims_are_about_what_is_measured():
    names = {item.name for item in ITEMS}
    assert len(names) == len(ITEMS) == 59
    for claim in CLAIMS:
        assert claim.item in names, claim.item
        for name in claim.experiments:
            ways = EXPERIMENTS[name].methods
            assert {*claim.ours, *claim.theirs} <= ways.keys(), (claim.text, name)
        assert claim.least > 0
    about = {name for claim in CLAIMS for name in claim.experiments}
    assert about == EXPERIMENTS.keys()
    for item in ITEMS:
        claimed = any(claim.item == item.name for claim in CLAIMS)
        assert claimed or page.fixed(item), item.name


def test_never_fewer_than_24_prompts():
    assert all(one.most >= 24 for one in EXPERIMENTS.values())
    assert all(24 % one.together == 0 for one in EXPERIMENTS.values())


# --- the page


def test_the_page_is_what_the_files_say():
    """Compare with the stored page; ``python benchmarks/evidence.py page`` writes it again."""
    assert (ROOT / "docs" / "papers" / "evidence.md").read_text() == page.page(FOLDER)
