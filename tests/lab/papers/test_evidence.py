"""Evidence for the papers' claims: the statistics, what is counted, and the page."""

import dataclasses
import gzip
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from paper_evidence import effects, experiments, formula, page, recorded
from paper_evidence.claims import (
    Claim,
    Finding,
    combined_verdict,
    decide,
    effect_by_prompt,
)
from paper_evidence.computed import token_count_probs
from paper_evidence.experiments import EXPERIMENTS
from paper_evidence.files import (
    ExperimentFile,
    ExperimentRun,
    read_experiment,
    write_experiment,
)
from paper_evidence.items import ITEMS
from paper_evidence.paper_claims import CLAIMS
from paper_evidence.sequential import (
    LOOKS,
    Estimate,
    estimate,
    judge_interval,
    prompts_needed,
    quantile,
)
from scipy import stats

from hierspec.errors import HierspecError

ROOT = Path(__file__).resolve().parents[3]
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
    interval = estimate(values, looks=1)
    error = statistics.stdev(values) / math.sqrt(10)
    low, high = stats.t.interval(0.95, 9, loc=statistics.fmean(values), scale=error)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=2e-3)
    wider = estimate(values, looks=4)
    assert wider.low < interval.low < interval.high < wider.high
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
        (-0.02, 0.2, "no less", 24, "holds"),
        (-0.04, 0.2, "no less", 24, "undecided"),
        (-0.2, -0.04, "no less", 24, "does not hold"),
    ],
)
def test_verdict(low, high, kind, n, expected):
    assert judge_interval(Estimate((low + high) / 2, low, high, 0.1, n), 0.03, kind) == expected


def verdict_when_stopped(rng, mean, looks):
    """Return the verdict at the first look that decides, or at the last."""
    values = [rng.gauss(mean, 0.1) for _ in range(LOOKS[-1])]
    for n in looks:
        effect = estimate(values[:n], len(looks))
        decision = judge_interval(effect, 0.05)
        if decision != "undecided":
            break
    return decision


def test_looking_several_times_keeps_the_error():
    """Count false findings: without the correction they are more than the error allowed."""
    errors = {}
    for corrected in (True, False):
        rng = random.Random(5)
        outside = 0
        for _ in range(2000):
            values = [rng.gauss(0.0, 0.1) for _ in range(LOOKS[-1])]
            estimates = [estimate(values[:n], len(LOOKS) if corrected else 1) for n in LOOKS]
            outside += any(effect.low > 0 or effect.high < 0 for effect in estimates)
        errors[corrected] = outside / 2000
    assert errors[True] < 0.05 < 0.075 < errors[False]


def test_prompts_needed_have_the_power():
    needed = prompts_needed(0.1, 0.05, looks=1)
    assert 30 <= needed <= 34  # (1.96 + .84)² · 4
    rng = random.Random(6)
    held = 0
    for _ in range(1000):
        effect = estimate([rng.gauss(0.05, 0.1) for _ in range(needed)], looks=1)
        held += effect.low > 0
    assert 0.76 < held / 1000 < 0.86
    assert prompts_needed(0.0, 0.05) == 2
    rng = random.Random(7)
    decisions = [verdict_when_stopped(rng, 0.08, LOOKS) for _ in range(300)]
    assert decisions.count("holds") > 290


# --- effects


def run(method, prompt, tokens=9, calls=4, rounds=((4, 2), (4, 4)), **more):
    counts = {"drafted": 0, "accepted": 0}
    levels = [{"name": "d", "calls": 8, **counts}, {"name": "t", "calls": calls, **counts}]
    base = {"method": method, "prompt": prompt, "tokens": tokens, "target_calls": calls}
    times = {"text": "", "seconds": 1.0, "decode_seconds": 0.5}
    return ExperimentRun(**{**base, **times, "rounds": rounds, "levels": levels, **more})


def file_of(runs=(), prices=None, num_prompts=24):
    settings = {"target": "t", "dtype": "float32", "temperature": 0.0, "max_new_tokens": 48}
    settings |= {"prompt_tokens": 64, "together": 12, "seed": 0, "looks": [24]}
    return ExperimentFile(
        experiment="p3-trunk",
        shows="",
        settings=settings,
        files=[],
        prompts=[{"file": "f", "line": n, "domain": "qa"} for n in range(num_prompts)],
        environment=[],
        load=[],
        methods={},
        prices=prices or {},
        runs=list(runs),
    )


def test_metrics_by_hand():
    file = file_of(prices={"a": {"d": 0.25, "t": 1.0}, "b": None})
    timed = run("a", 0, entropies=[[1.0, 1], [2.0, 0], [2.0, 1], [3.0, 0]])
    assert effects.tokens_per_call(timed, file) == 2
    assert effects.tokens_per_cost(timed, file) == 8 / (8 * 0.25 + 4)
    assert effects.tokens_per_cost(run("b", 0), file) is None
    assert effects.tokens_per_second(timed, file) == 16
    assert effects.acceptance(timed, file) == 6 / 8
    assert effects.first_token_acceptance(run("a", 0, rounds=((4, 0), (4, 1))), file) == 0.5
    assert effects.entropy_auc(timed, file) == 3.5 / 4
    assert effects.acceptance(run("a", 0, rounds=()), file) is None
    assert effects.kept_per_round(timed, file) == 3
    long = run("a", 0, rounds=((2, 0), (6, 1), (1, 1)))
    assert effects.window_deviation(long, file) == 2  # the last round does not count
    exact = {"drafts": 4, "kept": 5, "expected": 5.0, "block": 6.0, "tokenwise": 4.0}
    exact |= {"positions": {"drafts": 4, "block": [3.0, 2.0]}, "powers": {"1.2": 3.0}}
    compared = run("a", 0, exact=exact)
    assert effects.expected_tokens_per_call(None)(compared, file) == 2.25
    assert effects.expected_tokens_per_call("block")(compared, file) == 2.5
    assert effects.expected_tokens_per_call("tokenwise")(compared, file) == 2.0
    assert effects.all_kept_chance("block")(compared, file) == 0.5
    assert effects.first_kept_chance(1.2)(compared, file) == 0.75
    several = run("a", 0, exact={"drafts": 2, "kept": 3, "rrs": 3.0})
    assert effects.expected_tokens_per_call("rrs")(several, file) == 2.5
    assert (
        effects.expected_tokens_per_call("rrs")(run("a", 0, exact={"drafts": 0, "kept": 0}), file)
        is None
    )


def test_costs_that_p5s_table_implies_give_its_speedups():
    def level(name, calls, drafted=0, accepted=0):
        return {"name": name, "calls": calls, "drafted": drafted, "accepted": accepted}

    def run_of(method, *levels):  # of 10,000 tokens after the first
        calls = levels[-1]["calls"]
        return run(method, 0, tokens=10_001, calls=calls, rounds=(), levels=levels)

    small = run_of("vanilla M1", level("s", 49_300), level("t", 4930))
    large = run_of("vanilla M2", level("l", 14_420, 14_420, 8671), level("t", 1442))
    full = run_of("full", level("s", 20_000), level("l", 7000), level("t", 1446))
    file = file_of([small, large, full])
    speedups = [effects.tokens_per_printed_cost(one, file) for one in file.runs]
    assert speedups == pytest.approx([1.69, 2.40, 3.15], abs=0.01)
    assert effects.acceptance(large, file) == 8671 / 14_420  # without rounds, from the level's sums
    assert effects.tokens_per_printed_cost(small, file_of([small])) is None  # which is M1?


def test_the_best_is_chosen_on_other_prompts():
    runs = []
    for n in range(4):  # a is good on even prompts, b on odd ones
        runs += [run("a", n, calls=2 if n % 2 == 0 else 8), run("b", n, calls=4)]
    file = file_of(runs)
    best = effects.best_by_prompt(file, ["a", "b"], effects.tokens_per_call)
    assert best == {0: 2.0, 2: 2.0, 1: 1.0, 3: 1.0}  # chosen where it is worse, both times
    alone = effects.best_by_prompt(file, ["a"], effects.tokens_per_call)
    assert alone == {0: 4.0, 1: 1.0, 2: 4.0, 3: 1.0}


def test_one_text_at_many_times_the_speed_does_not_choose_a_ratio():
    runs = [run("a", n, calls=1 if n < 2 else 8) for n in range(8)]
    file = file_of(runs + [run("b", n, calls=4) for n in range(8)])
    best = effects.best_by_prompt(file, ["a", "b"], effects.tokens_per_call)
    assert best[0] == 8  # a has a mean of 2.75
    best = effects.best_by_prompt(file, ["a", "b"], effects.tokens_per_call, by_logarithm=True)
    assert set(best.values()) == {2.0}


def test_both_halves_of_prompts_have_all_domains():
    file = file_of(num_prompts=24)
    for n, prompt in enumerate(file.prompts):
        prompt.domain = f"domain {n % 8}"  # as prompts go round eight of them
    half_of = effects.halves(file)
    for half in (0, 1):
        assert {d for d, own in zip(file.domains, half_of, strict=True) if own == half} == set(
            file.domains
        )


def test_a_choice_is_made_on_other_prompts():
    file = file_of([run(name, n, calls=4 + n) for name in "ab" for n in range(4)])

    def choose(others):
        odd = {one.prompt % 2 for one in others.runs}
        assert len(odd) == 1
        return "b" if odd == {1} else "a"

    chosen = effects.chosen_by_prompt(file, choose, effects.tokens_per_call)
    assert chosen == {n: 8 / (4 + n) for n in range(4)}
    claim = Claim("P1 §5", (), "", ("a", "b"), ("a",), choose=choose, kind="no less")
    assert effect_by_prompt(claim, file) == [0.0] * 4


def test_jackknife_of_a_mean_is_its_values():
    values = {0: 1.0, 1: 4.0, 2: 2.0, 5: 7.0}
    pseudo_values = effects.jackknife(
        list(values), lambda prompts: statistics.fmean(values[n] for n in prompts)
    )
    assert pseudo_values == pytest.approx(values)
    contrast = effects.contrast({0: 1.0, 1: 3.0, 2: 5.0, 3: 7.0}, {0, 1})
    assert statistics.fmean(contrast.values()) == pytest.approx(4.0)
    assert effects.contrast({0: 1.0, 1: 3.0, 2: 5.0}, {0}) == {}


def test_a_claim_on_a_file():
    runs = [run("a", n, calls=4 + n % 2) for n in range(24)] + [
        run("b", n, calls=8) for n in range(24)
    ]
    file = file_of(runs)
    claim = Claim("P3 Table 1", ("p3-trunk",), "a over b", ("a",), ("b",))
    assert effect_by_prompt(claim, file) == pytest.approx([math.log(2), math.log(8 / 5)] * 12)
    finding = decide(claim, EXPERIMENTS["p3-trunk"], file)
    assert (finding.verdict, finding.estimate.n) == ("holds", 24)
    assert finding.effect_text.startswith("1.789×")
    reversed_claim = Claim("P3 Table 1", ("p3-trunk",), "b over a", ("b",), ("a",))
    assert decide(reversed_claim, EXPERIMENTS["p3-trunk"], file).verdict == "does not hold"
    assert decide(claim, EXPERIMENTS["p3-trunk"], None).verdict == "undecided"


def finding_of(verdict, experiment="p5-trunk-1", **options):
    claim = Claim("P5 Figure 1", (experiment,), "a over b", ("full",), **options)
    effect = Estimate(0.1, 0.0, 0.2, 0.1, 24)
    return Finding(claim, EXPERIMENTS[experiment], effect, verdict, 30)


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
        finding_of(verdict, name)
        for verdict, name in zip(verdicts, ("p5-trunk-1", "p5-smollm2-1"), strict=True)
    ]
    assert combined_verdict(group) == page.status_of([group], []) == expected
    findings = page.representatives(group)
    decided = {verdict for verdict in verdicts if verdict != "undecided"}
    assert {finding.verdict for finding in findings} == (decided or {"undecided"})
    lines = page._lines([group], [], expected)
    assert len(lines) == len(findings)
    assert any("own copy in 4 bits" in line for line in lines) == (
        verdicts[1] != "undecided"  # it says so where that copy decides
    )


def test_claims_beside_an_item_do_not_decide_it():
    beside, other = finding_of("holds", decides=False), finding_of("does not hold")
    assert page.status_of([[beside], [other]], []) == "does not hold"
    assert page.status_of([[other], [beside]], [page.FixedVerdict("holds", "")]) == "does not hold"
    own = finding_of("does not hold", decides=False)
    assert page.status_of([[finding_of("holds")], [own]], []) == "holds"


def test_a_recorded_reproduction_is_an_experiment():
    files = recorded.read_recorded(ROOT / "benchmarks" / "results")
    assert files.keys() == experiments.RECORDED.keys()
    for name, file in files.items():
        assert file.settings.temperature == EXPERIMENTS[name].temperature
        assert file.settings.target == EXPERIMENTS[name].family.target
        assert {run.method for run in file.runs} == EXPERIMENTS[name].methods.keys()
        assert len(file.runs) == 24 * len(EXPERIMENTS[name].methods)
    path = ROOT / "benchmarks" / "results" / EXPERIMENTS[name].file
    other = dataclasses.replace(EXPERIMENTS[name], temperature=0.5)
    with pytest.raises(HierspecError, match=r"no runs at temperature 0\.5"):
        recorded.read_as_experiment(path, other)


def test_p2_table_a1():
    probs = token_count_probs(0.8, 0.5, 1, 1)
    assert probs == pytest.approx([0.5, 0.5 * 0.2, 0.5 * 0.8])


# --- files


def content(name: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


@pytest.mark.parametrize("name", ["p4-eagle3-several", "p4-smollm2-long", "p5-smollm2-chats"])
def test_files_are_written_as_they_were_read(name, tmp_path):
    """Check that all keys are kept, also those of a later version."""
    data = content(name)
    data["later"] = data["runs"][0]["later"] = data["runs"][0]["levels"][0]["later"] = {"key": 1}
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(data))
    write_experiment(new, read_experiment(old))
    assert json.loads(new.read_text()) == data
    assert new.read_text().count('\n  {"method"') == len(data["runs"])  # a line each
    packed = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    for path in packed:
        write_experiment(path, read_experiment(old))
        assert read_experiment(path) == read_experiment(old)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    assert len(packed[0].read_bytes()) < len(new.read_bytes()) / 4
    packed[0].write_bytes(packed[1].read_bytes()[:-20])
    with pytest.raises(HierspecError, match=r"a\.json\.gz is damaged"):
        read_experiment(packed[0])


@pytest.mark.parametrize(
    ("break_file", "message"),
    [
        (lambda data: data.update(kind="other"), "kind must be 'hierspec-evidence', not 'other'"),
        (lambda data: data["settings"].pop("looks"), "settings: 'looks' is missing"),
        (
            lambda data: data["runs"][3].update(tokens="48"),
            r"runs\[3\].tokens must be an integer of at least 0, not '48'",
        ),
        (
            lambda data: data["runs"][3]["rounds"][1].append(2),
            r"runs\[3\]\.rounds\[1\]",
        ),
        (
            lambda data: data["runs"][3]["exact"].update(block=None),
            r"runs\[3\].exact.block must be a finite number, not None",
        ),
        (
            lambda data: data["runs"][3].update(prompt=99),
            r"runs\[3\].prompt is 99, beyond the 24 prompts",
        ),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(break_file, message, tmp_path):
    data = content("p4-smollm2-long")
    break_file(data)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(data))
    with pytest.raises(HierspecError, match=rf"damaged\.json is damaged: {message}") as raised:
        read_experiment(path)
    assert "\n" not in str(raised.value)


# --- what the registry says


def test_claims_are_about_what_is_measured():
    names = {item.name for item in ITEMS}
    assert len(names) == len(ITEMS) == 74
    for claim in CLAIMS:
        assert claim.item in names, claim.item
        for name in claim.experiments:
            assert {*claim.methods} <= EXPERIMENTS[name].methods.keys(), (claim.text, name)
        assert claim.smallest_effect > 0
    assert {name for claim in CLAIMS for name in claim.experiments} == EXPERIMENTS.keys()
    files = page.read_results(FOLDER)
    for item in ITEMS:
        claimed = any(claim.item == item.name for claim in CLAIMS)
        judged = page.fixed_verdicts(item) + page.judged_by_files(item, files)
        assert claimed or judged, item.name


def test_never_fewer_than_24_prompts():
    for experiment in EXPERIMENTS.values():
        assert experiment.max_prompts >= 24
        assert 24 % experiment.batch_size == 0


def test_claims_on_stacks_are_on_what_the_formula_chooses():
    """P1 Table 4 compares the formula's choice with the other kind, whichever that is."""
    files = page.read_results(FOLDER)
    ours = {
        name: claim.ours
        for claim in CLAIMS
        if claim.item == "P1 Table 4"
        for name in claim.experiments
    }
    for name in formula.FILES:
        reading = formula.read_formula(files[name])
        assert reading.choice in ours[name]
        chosen_is_stacked = reading.choice.startswith(formula.STACKED)
        for speedups in (reading.predicted, reading.measured):
            assert (reading.stacked_over_single(speedups) > 1) == chosen_is_stacked


def test_the_planners_runs_are_the_files():
    """P1 Table 3 beside the planner's runs."""
    result = json.loads((FOLDER.parent / "reproduce-p1-models.json").read_text())
    tables = {table["name"]: table["rows"] for table in result["tables"]}
    said = next(item.fixed.reason for item in ITEMS if item.name == "P1 Table 3")
    for models in ("early exits", "separate models"):
        for temperature in (0, 1):
            rows = tables[f"Number of models, {models}, temperature {temperature}"]
            single = next(row for row in rows if row["models"].startswith("2"))
            planned = next(row for row in rows if "planned" in row["models"])
            if temperature:
                assert planned is single
                continue
            for key in ("predicted speed-up", "speed-up"):
                assert f"{planned[key] / single[key]:.3f}×" in said


def test_rates_of_coin_flips_are_found_again():
    """Shares kept of n tokens, and rounds of the target, drawn at a known rate."""
    alpha, n = 0.6, 3
    share = sum(alpha**m for m in range(1, n + 1)) / n
    levels = [
        {"name": "s", "calls": 0, "drafted": 3_000_000, "accepted": round(3_000_000 * share)},
        {"name": "t", "calls": 0, "drafted": 0, "accepted": 0},
    ]
    rng = random.Random(1)
    rounds = []
    for _ in range(4000):
        kept = 0
        while kept < 5 and rng.random() < alpha:
            kept += 1
        rounds.append((5, kept))
    file = file_of([run("three 3-5", 0, levels=levels, rounds=rounds)])
    file.methods["three 3-5"] = {"levels": [{"num_speculative_tokens": n}, {}]}
    assert formula.rate_of_shares(file, ["three 3-5"]) == pytest.approx(alpha, abs=1e-6)
    assert formula.rate(file, ["three 3-5"]) == pytest.approx(alpha, abs=0.02)


# --- the page


def test_the_page_is_what_the_files_say():
    """Compare with the stored page; ``python benchmarks/evidence.py page`` writes it again."""
    assert (ROOT / "docs" / "papers" / "evidence.md").read_text() == page.render_page(FOLDER)
