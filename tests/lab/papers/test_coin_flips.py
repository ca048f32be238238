"""P1's Table 5 by coin flips: the rule, what is counted, and what the tables hold."""

from __future__ import annotations

import json
import math
from functools import partial

import paper_cases
import pytest
import torch
from paper_cases import PROMPTS, columns, counters_of, replayed
from tiny_models import save_tiny

from hierspec.core.rng import PhiloxRng
from hierspec.core.rules import Batch, scan
from hierspec.verifiers import registry
from hierspec_lab.bench.methods.base import Run, RunRequest
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.papers import reproduce
from hierspec_lab.papers.measured import tokens_per_call
from hierspec_lab.papers.p1 import coin_flips, levels
from hierspec_lab.papers.p1.coin_flips import build_hierarchy
from hierspec_lab.papers.p1.coins import CoinMethod, Coins
from hierspec_lab.papers.p1.levels import AcceptanceCounts, Levels
from hierspec_lab.papers.terminal import rendered

lab_of = partial(paper_cases.lab_of, tokens=24)


@pytest.fixture(scope="module")
def lab(tiny_family):
    """Return a lab of three levels: small under draft under target."""
    return lab_of(tiny_family["target"], [tiny_family["small"], tiny_family["draft"]])


@pytest.fixture(scope="module")
def found(lab):
    return reproduce(coin_flips.NAME, lab)


# --- the rule


def test_coins_look_at_no_token():
    rule = Coins(0.6, PhiloxRng(0))
    lengths = torch.tensor([3, 1])
    batch = Batch(torch.rand(2, 4, 5), torch.rand(2, 3, 5), torch.zeros(2, 3).long(), lengths)
    h = rule.acceptance(batch).h
    assert h.tolist() == [[0.6, 0.6, 0.6], [0.6, 0.0, 0.0]]
    for seed in range(30):
        uniforms = PhiloxRng(seed).take(4).tolist()
        tau, w = rule.decide((0.0,) * 3, (1.0,) * 3, uniforms, lambda k, w: math.nan)
        whole = scan(rule.order, h[:1], torch.tensor([uniforms[:3]], dtype=torch.float64))
        assert (tau, w) == (int(whole), 1.0)


def test_coins_draw_their_own_random_numbers_where_decoding_is_greedy():
    rule, n = Coins(0.6, PhiloxRng(0)), 4000
    kept = [rule.greedy((1, 2), (9, 9), None) for _ in range(n)]
    for length, chance in ((1, 0.6), (2, 0.36)):
        share = sum(tau >= length for tau in kept) / n
        error = math.sqrt(chance * (1 - chance) / n)
        assert abs(share - chance) < 4 * error  # of this seed, so it never fails by chance


def test_coins_are_for_nobody_else(lab):
    assert "coins" not in registry.names()
    assert (Coins.exact, Coins.exact_as_draft) == (False, False)
    assert Coins(0.5, PhiloxRng(0)) == Coins(0.5, PhiloxRng(1)) != Coins(0.6, PhiloxRng(0))
    with pytest.raises(ValueError, match="no verifier called 'coins'"):
        registry.get("coins")
    hierarchy = build_hierarchy(lab, lab.models.drafts)
    method = CoinMethod("coins", lab, hierarchy, (0.5, 0.5))
    method.configuration["allow_lossy"] = False
    with pytest.raises(ValueError, match=r"'coins' at level .* changes the distribution"):
        method.run(PROMPTS[0], RunRequest(8, 1.0))
    assert method.hierarchy.root.rule.name == "coins"
    assert HierarchyMethod("real", lab.models, **hierarchy).hierarchy.root.rule.name == "tokenwise"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_coins_that_always_fall_alike(lab, temperature):
    hierarchy = build_hierarchy(lab, lab.models.drafts)
    request = RunRequest(24, temperature)
    plain = HierarchyMethod("plain", lab.models).run(PROMPTS[0], request)
    never = CoinMethod("never", lab, hierarchy, (0.0, 0.0)).run(PROMPTS[0], request)
    assert tokens_per_call([never]) == 1.0
    if not temperature:
        assert never.token_ids == plain.token_ids  # each is the target's own choice
    always = CoinMethod("always", lab, hierarchy, (1.0, 1.0)).run(PROMPTS[0], request)
    # Drafts of 2 are handed up with a bonus, so the level of 4 holds 6 after two of its rounds,
    # and the target adds one: 7, 7, 7, and the 2 that are left.
    assert (always.target_calls, always.levels[1].num_accepted_tokens) == (4, 19)


# --- what is counted


def test_tests_by_hand():
    counts = AcceptanceCounts(drafts=2, offered=6, kept=4, failed=1)
    assert counts.rate == 0.8
    assert counts + AcceptanceCounts(1, 3, 0, 1) == AcceptanceCounts(3, 9, 4, 2)
    assert math.isnan(AcceptanceCounts().rate)


def test_costs_by_hand():
    counters = (
        counters_of(num_draft_tokens=20, seconds=0.1),
        counters_of(num_draft_tokens=12, calls=5, seconds=0.2),
    )
    run = Run((1,) * 11, 1.0, 0.8, 4, counters, counters_of(calls=4, seconds=0.3))
    assert levels.level_calls(run) == [20, 5, 4]
    costs = levels.level_costs([run, run])
    assert costs == pytest.approx((5.0, 40.0, 125.0))  # the target's with 0.2 s outside
    three = Levels(("a", "b", "c"), (2, 4), (0.5, 0.5), costs)
    assert three.counted_ms([run]) == pytest.approx(levels.decode_ms([run])) == pytest.approx(80)
    assert three.acceptance == [[None, 0.5, None], [None, None, 0.5], [None] * 3]


def test_the_simulation_is_the_exact_model_on_long_texts(monkeypatch):
    monkeypatch.setattr(levels, "TEXTS", 20)
    four = Levels(("a", "b", "c", "d"), (2, 4, 6), (0.5, 0.7, 0.8), (0.1, 1.0, 4.0, 20.0))
    long = levels.simulate_levels(four, [1000], seed=3)
    assert abs(long.ms - four.exact_ms()) < 4 * long.standard_error < 0.04 * long.ms
    assert long.text_deviation == pytest.approx(long.standard_error * math.sqrt(20))
    spent = sum(n * ms for n, ms in zip(long.calls, four.costs, strict=True))
    assert spent == pytest.approx(long.ms)
    assert four.formula_ms() > four.exact_ms()  # it hands up no overshoot
    assert levels.simulate_levels(four, [5], seed=3).ms > long.ms  # what the end of a text costs


def test_drafters(tiny_family, tmp_path):
    target, small = tiny_family["target"], tiny_family["small"]
    assert coin_flips.drafters(lab_of("zoo:trunk", ["zoo:small"])) == ["ngram", "zoo:small"]
    assert coin_flips.drafters(lab_of(target)) == ["exit:1", "exit:2"]
    # a look-up verifies nothing, so it can only be the smallest
    assert coin_flips.drafters(lab_of(target, ["suffix", small])) == ["suffix", small]
    assert coin_flips.drafters(lab_of(target, [small, "suffix"])) == [small]
    one = lab_of(str(save_tiny("llama", tmp_path, layers=1)))
    with pytest.raises(ValueError, match="needs something that drafts"):
        coin_flips.measure(one)


# --- the tables


def test_tables(lab, found):
    assert len(found.tables) == 3 * len(lab.temperatures)
    for at, temperature in enumerate(lab.temperatures):
        five, others, by_level = found.tables[3 * at : 3 * at + 3]
        assert five.name == f"Table 5, temperature {temperature:g}"
        assert [row.label for row in five.rows] == [
            "real, real", "iid, real", "real, artificial", "iid, artificial",
        ]  # fmt: skip
        assert [row.cells[0].printed for row in five.rows] == [
            "0.0438226", "0.0437504", "0.0439264", "0.0438760",
        ]  # fmt: skip
        assert not five.compared
        got = columns(five)
        seconds = [row.cells[0].computed for row in five.rows]
        assert got["ratio"] == pytest.approx([one / seconds[0] for one in seconds])
        assert got["ratio"][2] == pytest.approx(1.0)  # by construction
        assert got["printed ratio"] == pytest.approx([1, 0.99835, 1.00237, 1.00122], abs=1e-5)
        assert got["low 95"] == ["", None, None, ""]  # too few prompts
        assert five.inputs["budgets"] == [2, 4]
        assert others.rows[1].extra == (pytest.approx(1e3 * seconds[1]), got["ratio"][1], 1.0)
        assert all(row.extra[0] > 0 for row in others.rows)
        parts = columns(by_level)
        assert [row.label for row in by_level.rows] == [*lab.models.drafts, lab.target]
        assert parts["rate"][:2] == [five.inputs["acceptance"][i][i + 1] for i in range(2)]
        assert parts["ms a call, real"] == five.inputs["costs"]
        spent = zip(parts["ms a call, real"], parts["calls, real"], strict=True)
        assert sum(ms * calls for ms, calls in spent) == pytest.approx(1e3 * seconds[0])
    assert len(list(rendered(found))) >= 2 * len(found.tables)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_timed_runs_make_the_tests_that_were_counted(lab, found, temperature):
    """Compare counters: the same seeds give the same texts, so coins get the timed runs' rates."""
    counted = found.record[f"{coin_flips.NAME}: tests at temperature {temperature:g}"]
    name = f"{coin_flips.NAME}, temperature {temperature:g}: runs at temperature {temperature:g}"
    runs = found.record[name]
    assert list(runs) == ["plain", "hierarchy", "coins"]
    for tests, run in zip(counted, runs["hierarchy"], strict=True):
        for one, level in zip(tests, run["levels"], strict=True):
            assert (one["drafts"], one["offered"], one["kept"]) == (
                level["num_drafts"], level["num_draft_tokens"], level["num_accepted_tokens"],
            )  # fmt: skip
    texts = {name: [run["token_ids"] for run in every] for name, every in runs.items()}
    if not temperature:
        assert texts["hierarchy"] == texts["plain"]
    assert texts["coins"] != texts["hierarchy"]


def test_replayed(lab, found):
    data = json.loads(json.dumps(found.to_dict()))
    again = replayed(coin_flips.NAME, lab, data)
    assert json.loads(json.dumps([t.to_dict() for t in again.tables])) == data["tables"]


def test_what_cannot_be_done_says_so(tiny_family):
    target, small = tiny_family["target"], tiny_family["small"]
    with pytest.raises(ValueError, match="needs prompts: give --prompts"):
        coin_flips.measure(lab_of(target, [small], prompts=()))
    with pytest.raises(ValueError, match="needs at least 8 new tokens"):
        coin_flips.measure(lab_of(target, [small], tokens=4))
