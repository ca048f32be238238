"""Evidence for the papers' claims: the statistics, what is counted, and the page."""

import dataclasses
import json
import math
import random
import statistics
from pathlib import Path

import pytest
import torch
from scipy import stats

from hierspec.errors import HierspecError
from hierspec_papers import prompts
from hierspec_papers.evidence import counting, effects, experiments, measuring, page, recorded
from hierspec_papers.evidence.claims import Claim, Finding, combined, decide, effect_by_prompt
from hierspec_papers.evidence.computed import law_of_tokens
from hierspec_papers.evidence.experiments import EXPERIMENTS, Experiment
from hierspec_papers.evidence.families import FAMILIES
from hierspec_papers.evidence.items import ITEMS
from hierspec_papers.evidence.methods import MethodSpec, hispec
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


# --- counting and measuring, on a small model


def test_counts_are_the_runs(tmp_path):
    """Compare a sequence of a batch with the same one alone, and with the engine's counters."""
    family = FAMILIES["trunk"]
    spec = hispec(family, 1, 2)
    models = family.models()
    method = counting.ObservedMethod("hispec", models, spec.levels, **spec.top)
    texts = [list(range(40, 52)), list(range(90, 99))]
    request = counting.Request(10, 0.0, 3)
    together = counting.records(method, texts, request)
    for text, one in zip(texts, together, strict=True):
        (alone,) = counting.records(method, [text], request)
        assert {k: one[k] for k in ("text", "levels", "rounds", "exact")} == {
            k: alone[k] for k in ("text", "levels", "rounds", "exact")
        }
        run = method.run(text, request)
        low, high, target = one["levels"]
        counters = [*run.levels, run.target]
        assert [p["name"] for p in one["levels"]] == [p["name"] for p in counters]
        for mine, theirs in ((low, run.levels[0]), (high, run.levels[1])):
            assert mine["drafted"] == theirs["num_draft_tokens"]
            assert mine["accepted"] == theirs["num_accepted_tokens"]
        assert target["calls"] == one["target_calls"] == run.target_calls
        assert sum(offered for offered, _ in one["rounds"]) == high["drafted"]
        assert one["exact"]["kept"] == high["accepted"]
        assert one["exact"]["drafts"] == len(one["rounds"])
        longest = one["exact"]["positions"]
        assert 0 < longest["drafts"] <= one["exact"]["drafts"]
        for less, more in (("tokenwise", "block"), ("block", "ideal")):
            for low, high in zip(longest[less], longest[more], strict=True):
                assert low <= high + 1e-6
    prices = counting.prices(method)
    assert sum(prices.values()) == pytest.approx(1.0)  # a shared trunk is paid for once


class FakeModels:
    def tokenizer(self, text, verbose=False):
        return {"input_ids": [ord(letter) for letter in text]}


class FakeFamily:
    name, target = "fake", "fake"

    def models(self):
        return FakeModels()


@pytest.fixture
def experiment(monkeypatch):
    def records(method, ids, request, with_entropies=False):
        return [run(method.name, 0, text=f"{request.seed} {i}") for i, _ in enumerate(ids)]

    monkeypatch.setattr(measuring.counting, "records", records)
    monkeypatch.setattr(measuring.counting, "prices", lambda method: None)

    def make(family):
        return {"a": MethodSpec(), "b": MethodSpec(({"method": "x"},))}

    return Experiment("p3-trunk", "", FakeFamily(), make, 0.0, most=48)  # type: ignore[arg-type]


def texts(count):
    return [prompts.Prompt(f"text {i}", "file", i, "qa") for i in range(count)]


def test_measuring_goes_on_where_it_stopped(experiment, tmp_path):
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    silent = {"say": lambda line: None}
    assert measuring.measure(experiment, texts(48), [], whole, lambda data: False, **silent)
    data = json.loads(whole.read_text())
    assert (len(data["prompts"]), len(data["runs"])) == (48, 96)
    assert data["environment"][0]["versions"]["torch"]

    def interrupt(line):
        raise KeyboardInterrupt

    for _ in range(4):  # groups of 12, each interrupted once it is written
        with pytest.raises(KeyboardInterrupt):
            measuring.measure(experiment, texts(48), [], parts, lambda data: False, say=interrupt)
    assert measuring.measure(experiment, texts(48), [], parts, lambda data: False, say=interrupt)
    late = tmp_path / "late.json"
    assert not measuring.measure(
        experiment, texts(48), [], late, lambda d: False, most=24, **silent
    )
    assert len(json.loads(late.read_text())["prompts"]) == 24
    over = {"until": -math.inf, **silent}
    assert not measuring.measure(experiment, texts(48), [], late, lambda data: False, **over)
    again = json.loads(parts.read_text())
    assert again["runs"] == data["runs"]
    assert again["prompts"] == data["prompts"]


def test_measuring_stops_at_a_look_that_decides(experiment, tmp_path):
    path = tmp_path / "one.json"
    asked = []

    def decided(data):
        asked.append(len(data["prompts"]))
        return len(data["prompts"]) >= 36

    assert measuring.measure(experiment, texts(48), [], path, decided, say=lambda line: None)
    assert asked == [24, 36]
    assert len(json.loads(path.read_text())["prompts"]) == 36


def test_other_prompts_are_refused(experiment, tmp_path):
    path = tmp_path / "one.json"
    silent = {"say": lambda line: None}
    measuring.measure(experiment, texts(48), [{"file": "a"}], path, lambda data: True, **silent)
    with pytest.raises(HierspecError, match="remove it to begin anew"):
        measuring.measure(experiment, texts(48), [{"file": "b"}], path, lambda data: True, **silent)


def test_prompts_take_turns(tmp_path):
    for name, key in (("humaneval", "prompt"), ("gsm8k", "question")):
        lines = [json.dumps({key: f"{name} {i}"}) for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    kinds = ["writing", "qa", "rag", "math", "qa"]
    rows = [json.dumps({"turns": [f"{i}"], "category": kind}) for i, kind in enumerate(kinds)]
    with pytest.raises(HierspecError, match=r"spec_bench\.jsonl"):
        prompts.read(tmp_path, 4)
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(rows))
    found, files = prompts.read(tmp_path, 8)
    domains = [one.domain for one in found]
    assert domains == ["humaneval", "gsm8k", "chat", "qa", "rag", "humaneval", "gsm8k", "chat"]
    assert (found[1].text, found[1].line) == ("gsm8k 0", 1)
    assert [len(one["sha256"]) for one in files] == [64] * 3


def test_second_turns_are_whole_conversations_with_the_first_answered(tmp_path):
    class Tokenizer:
        chat_template = "set"

        def apply_chat_template(self, messages, **options):
            return [len(one["content"]) for one in messages]

    rows = [
        {"question_id": 1, "turns": ["a", "bb"], "category": "writing"},
        {"question_id": 2, "turns": ["alone"], "category": "qa"},
        {"question_id": 3, "turns": ["cccc", "ddddd"], "category": "math"},
    ]
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found, files = prompts.second_turns(tmp_path, 24)
    assert [one.to_dict() for one in found] == [
        {"file": "spec_bench.jsonl", "line": line, "domain": kind, "turn": 2}
        for line, kind in ((1, "writing"), (3, "math"))
    ]
    asked = []

    def answer(ids):
        asked.append(ids)
        return "answered"

    assert found[1].token_ids(Tokenizer(), answer) == [4, len("answered"), 5]
    assert asked == [[4]]
    assert [one["file"] for one in files] == ["spec_bench.jsonl"]


# --- the page


def test_the_page_is_what_the_files_say():
    """Compare with the stored page; ``python benchmarks/evidence.py page`` writes it again."""
    assert (ROOT / "docs" / "papers" / "evidence.md").read_text() == page.page(FOLDER)


def test_the_exact_law_of_several_drafts_is_what_their_rules_keep():
    """Compare with tokens that the runtime's verification keeps, averaged over many seeds."""
    from tabular_cases import models

    from hierspec.core.distributions import DenseDistributions
    from hierspec.core.nodes import Verify
    from hierspec.core.proposals import Proposal
    from hierspec.core.rng import PhiloxRng
    from hierspec.verifiers.multi_draft import verify_drafts
    from hierspec.verifiers.registry import get

    small, target = models("random", 2, seed=4)

    def rows(model, tokens):
        return DenseDistributions(
            torch.stack([model.law((0, *tokens[:i])) for i in range(len(tokens) + 1)])
        )

    every = [
        (Proposal(tokens, rows(small, tokens).rows(0, 2), (0, 0), (0, 0)), rows(target, tokens))
        for tokens in ((0, 1), (0, 2), (1, 1))
    ]
    found = counting.expected_of_drafts(every)
    drafts, p = [draft for draft, _ in every], [own for _, own in every]
    for rule in counting.SEVERAL:
        node = Verify(1, "target", target, 1, get(rule), None)
        rng = PhiloxRng(7)
        kept = [verify_drafts(node, drafts, p, rng).verdict.num_accepted for _ in range(4000)]
        error = statistics.stdev(kept) / math.sqrt(len(kept))
        assert abs(statistics.fmean(kept) - found[rule]) <= 5 * error + 1e-9  # 6e-7 by chance
    assert all(found[rule] >= found["one"] > 0 for rule in counting.SEVERAL if rule != "rrs")
    metric = effects.exact_several("rrs")
    assert metric({"exact": {"drafts": 2, "kept": 3, "rrs": 3.0}}, {}) == 2.5
    assert metric({"exact": {"drafts": 0}}, {}) is None


def test_a_power_of_a_draft_is_another_temperature():
    """Check that of scores z, softmax(z / .6) to the power 1.2 is softmax(z / .5), normalised."""
    from hierspec.core.distributions import DenseDistributions

    generator = torch.Generator().manual_seed(3)
    z = torch.randn(1, 9, generator=generator, dtype=torch.float64)
    p = torch.randn(1, 9, generator=generator, dtype=torch.float64).softmax(-1)
    found = counting.first_token_by_power(
        DenseDistributions((z / 0.6).softmax(-1)), DenseDistributions(p)
    )
    for power, temperature in {"0.75": 0.8, "1": 0.6, "1.2": 0.5, "2": 0.3}.items():
        kept = (z / temperature).softmax(-1).minimum(p).sum()
        assert found[power] == pytest.approx(float(kept), abs=1e-12)
    metric = effects.first_kept(1.2)
    assert metric({"exact": {"drafts": 2, "powers": {"1.2": 1.5}}}, {}) == 0.75
