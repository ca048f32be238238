"""P1's and P2's experiments on models: plans, tables, and that they are lossless."""

import dataclasses

import pytest
from paper_cases import HEADS, KNOWN, PROMPTS, check_lossless, check_prints, columns, lab_of

from hierspec.profiling.candidates import parse
from hierspec.profiling.profile import from_dict
from hierspec.zoo import registry
from hierspec_lab.papers.p1 import models as p1_models
from hierspec_lab.papers.p1 import trials as p1_trials
from hierspec_lab.papers.p1.tables import FIRST_COSTS, TABLE_6, example
from hierspec_lab.papers.p2 import models as p2_models
from hierspec_lab.papers.p2.formula import horizontal_tokens
from hierspec_lab.planning import thorough

# --- P1


def test_best_of_each_size():
    choices = p1_trials.best_of_each_size(example(FIRST_COSTS, TABLE_6, 6))
    assert [len(choice.chain.models) for choice in choices] == [1, 2, 3, 4, 5, 6]
    assert choices[0].ms == 33.0
    assert round(choices[1].ms, 4) == 14.3659  # P1's first example
    assert choices[2].ms <= 10.7912  # the formula's plan of three models, priced exactly


def test_pieces_of_p1(deep, monkeypatch):
    lab = lab_of(deep, ["zoo:small"], prompts=([1], [2], [3]))
    profiled_on, measured_on = p1_models.split_prompts(lab)
    assert (profiled_on, measured_on.prompts) == ([[2]], ([1], [3]))
    assert p1_models.split_prompts(dataclasses.replace(lab, prompts=([1],)))[0] == [[1]]
    assert p1_trials.candidate_names(lab) == {
        "early exits": [f"exit:{layer}" for layer in range(1, 8)],
        "separate models": ["zoo:small"],
    }
    monkeypatch.setattr(p1_trials, "EVERY_LAYER", 7)  # the target has eight
    assert p1_trials.candidate_names(lab)["early exits"] == ["exit:1", "exit:2", "exit:4"]
    zoo = p1_trials.candidate_names(lab_of("zoo:trunk", ["zoo:small"]))
    assert zoo["separate models"] == ["ngram", "zoo:small"]
    levels = [{"method": "ngram_table"}, {"method": "draft_model", "model": "m"}]
    tempered = p1_trials.with_draft_temperature({"levels": levels, "verify": "block"}, 0.5)
    assert tempered == {"levels": [levels[0], {**levels[1], "temperature": 0.5}], "verify": "block"}


def test_p1(monkeypatch):
    small = dataclasses.replace(
        p1_trials.SETTINGS, max_speculative_tokens=3, places=1, rounds=1, repeats=1
    )
    monkeypatch.setattr(p1_trials, "SETTINGS", small)
    monkeypatch.setattr(p1_trials, "EVERY_LAYER", 0)
    monkeypatch.setattr(p1_trials, "EXITS", (1 / 8, 1 / 2))
    monkeypatch.setattr(thorough, "LONG_CONTEXT", 64)
    monkeypatch.setattr(p1_models, "TAILS", (1,))
    monkeypatch.setattr(p1_models, "TEMPERATURE_RATIOS", (0.5,))
    lab = lab_of("zoo:trunk", ["zoo:small"], tokens=8, dtype="float32")
    found = p1_models.measure(lab)
    tables = {table.name: table for table in found.tables}
    state = 4 * lab.models.plain.root.model.trunk.backend.hidden_size
    table_bytes = registry.table_path("zoo:ngram").stat().st_size
    for pool in ("early exits", "separate models"):
        for temperature in ("0", "1"):
            where = f"{pool}, temperature {temperature}"
            sizes = tables[f"Number of models, {where}"]
            got = columns(sizes)
            assert [row.label.removesuffix(" (planned)") for row in sizes.rows] == ["1", "2", "3"]
            assert sum("planned" in row.label for row in sizes.rows) == 1
            assert got["predicted speed-up"][0] == got["speed-up"][0] == 1.0
            assert got["tokens a call"][0] == 1.0
            assert min(got["predicted ms"] + got["measured ms"] + got["by formula"]) > 0
            if temperature == "0":
                assert set(got["same as plain"]) == {"1 of 1"}
            memory = columns(tables[f"Memory, {where}"])
            assert memory["hierarchy"] == got["hierarchy"]
            assert (memory["weights"][0], memory["caches per token"][0]) == (0, 0)
            if pool == "early exits":
                assert memory["weights"] == [0, 0, 0]
                assert memory["caches per token"] == [0, state, 2 * state]
            else:
                assert all(size >= table_bytes for size in memory["weights"][1:])
            rates = columns(tables[f"Acceptance rates, {where}"])["target"]
            assert all(0 < rate <= 1 for rate in rates[:-1])
            tails = tables[f"Horizontal heuristic, {where}"]
            assert [row.label for row in tails.rows] == ["0", "1"]
            improved = columns(tables[f"Table 4, {where}"])
            printed = p1_models.TABLE_4[float(temperature)]
            assert improved["printed GSM8K"] == [gsm8k for gsm8k, _ in printed.values()]
            assert all(0 < value <= 12 for value in improved["improvement"])
        tempered = tables[f"Drafters' temperature, {pool}, request at 1"]
        assert [row.label for row in tempered.rows] == ["0.5", "1", "0.5", "1"]
    assert f"Drafters' temperature, {pool}, request at 0" not in tables
    check_prints(found)


def test_p1_on_exits_that_have_trained_heads(headed, monkeypatch):
    monkeypatch.setattr(p1_models, "TAILS", (1, 10))
    lab = lab_of(headed, temperatures=(0.0,))
    names = p1_trials.candidate_names(lab)["early exits"]
    assert names == [f"exit:{layer},head={headed}" for layer in HEADS]
    settings = dataclasses.replace(
        p1_trials.SETTINGS, max_speculative_tokens=3, places=1, rounds=1, repeats=1, tokens=8
    )
    prompts = [list(prompt) for prompt in PROMPTS]
    data = thorough.measure(
        lab.models.target, [parse(name) for name in names], prompts, (0.0,), settings,
        loaded=lab.models.loaded,
    )  # fmt: skip
    pool = p1_trials.ProfiledPool("early exits", from_dict(data), headed)
    trials = p1_trials.plan_trials(lab, pool, 0.0)
    *_, deepest = trials
    assert all(level["head"] == headed for level in deepest.hierarchy["levels"])
    size = lab.models.plain.root.model.trunk.backend.hidden_size
    head, rows = 8 * (size + 1) * size, 8 * KNOWN * size
    for count, trial in enumerate(trials):
        assert len(trial.choice.chain.models) == count + 1
        assert headed not in trial.names
        assert trial.memory == (count * head + (rows if count else 0), 8 * size * count)
    assert p1_trials.add_tail(lab, deepest, 10).choice.chain.tail == 10
    tables = p1_models._tables_at(lab, [pool], 0.0)
    check_lossless(tables[1])
    assert f"Exits score with heads trained for them ({headed})." in tables[1].notes
    assert [row.label for row in tables[0].rows] == ["exit:2", "exit:3", "exit:5", "target"]


# --- P2


def test_theorem_and_method():
    given = p2_models.Inputs(0.8, 0.5, 0.1, 0.1)
    for n, speedup in ((0, 2.4011), (1, 1.7094), (4, 1.3074)):
        assert round(p2_models.theorem(given, "interleaved", n, 4)[1], 4) == speedup
    tokens, speedup = p2_models.theorem(given, "horizontal", 3, 4)
    assert (tokens, round(speedup, 4)) == (float(horizontal_tokens(0.8, 0.5, 3, 4)), 2.6014)


def test_p2(tiny_family):
    lab = lab_of(tiny_family["target"], [tiny_family["small"], tiny_family["draft"]], tokens=10)
    found = p2_models.measure(lab)
    for orders, sweep in (found.tables[:2], found.tables[2:]):
        ways = columns(orders)
        assert sorted(row.label for row in orders.rows) == sorted(
            ("horizontal", "mid", "small", "interleaved", "plain")
        )
        assert ways["by formula"] == sorted(ways["by formula"], reverse=True)
        plain = next(row for row in orders.rows if row.label == "plain")
        assert [value for value in plain.extra[:-1] if value is not None] == [0, 0, *[1.0] * 4]
        assert plain.extra.count(None) == 2, "too few prompts for an interval"
        labels = [f"{way} {n}" for n in range(4) for way in ("interleaved", "horizontal")]
        labels.remove("horizontal 0")
        assert [row.label for row in sweep.rows] == labels
        for table in (orders, sweep):
            check_lossless(table)
            assert 0 <= table.inputs["beta"] <= table.inputs["alpha"] <= 1
    labels = [
        f"{way}, {kind}"
        for way in ("interleaved", "horizontal")
        for kind in ("formula", "measured")
    ]
    assert [curve.label for curve in found.figures[0].curves] == labels
    check_prints(found)


def test_p2_inputs_and_shapes(tiny_family):
    """Check that the target as its own drafter is always accepted, and costs as much."""
    target, small = tiny_family["target"], tiny_family["small"]
    lab = lab_of(target, [small, target])
    other_way = lab_of(target, [target, small])
    for temperature in (0.0, 1.0):
        given = p2_models.measure_inputs(lab, temperature)
        assert given.alpha == pytest.approx(1.0)
        assert given.c > 0 < given.c_s
        turned = p2_models.measure_inputs(other_way, temperature)
        assert turned.beta == pytest.approx(1.0)
        assert turned.alpha == pytest.approx(given.beta)  # the same model, on the same texts
        assert 0 <= given.beta < 1
    assert given.beta > 0
    mixed = p2_models.build_method(lab, "interleaved", 2, 3).configuration
    (level,) = mixed["levels"]
    assert (level["repeat"], mixed["verify"]) == (3, "tokenwise")
    assert [part[0]["num_speculative_tokens"] for part in level["parts"]] == [2, 1]
    (level,) = p2_models.build_method(lab, "horizontal", 6, 3).configuration["levels"]
    assert [part[0]["model"] for part in level["parts"]] == [target, small]
    (level,) = p2_models.build_method(lab, "mid", 0, 3).configuration["levels"]
    assert (level["model"], level["num_speculative_tokens"]) == (target, 3)
    assert (
        p2_models.build_method(lab, "interleaved", 0, 4).configuration["levels"][0]["model"]
        == target
    )
