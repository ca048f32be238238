"""P5 reproduced: its systems, σ and η, entropies of kept and rejected tokens, windows in time."""

import dataclasses
import json
import math

import pytest
from paper_cases import columns, counters_of, replayed
from tabular_cases import V, chain, models
from wrong_rules import ReadsOneLate

from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.core.windows import EntropyWindow, FixedWindow
from hierspec.exact.certificate import certify_tree
from hierspec.presets.registry import preset
from hierspec_lab.bench.methods.base import Run, RunRequest
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec_lab.papers import MEASURED, reproduce
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import model_notes
from hierspec_lab.papers.p5 import ablation as p5_ablation
from hierspec_lab.papers.p5 import entropy as p5_entropy
from hierspec_lab.papers.p5 import redundancy as p5_redundancy
from hierspec_lab.papers.p5 import systems
from hierspec_lab.papers.p5 import window as p5_window
from hierspec_lab.papers.p5 import windows_over_time as p5_windows_over_time
from hierspec_lab.papers.p5.entropy import (
    JudgedToken,
    area_under_curve,
    entropies,
    judged_tokens,
    thresholds,
)
from hierspec_lab.papers.p5.readings import READINGS
from hierspec_lab.papers.p5.rounds import Round, run_traced, target_rounds
from hierspec_lab.timeline.events import as_record

PROMPTS = ([5, 9, 3, 14], [7, 7, 21])
MODULES = {
    "p5-ablation": p5_ablation,
    "p5-entropy": p5_entropy,
    "p5-redundancy": p5_redundancy,
    "p5-window": p5_window,
    "p5-windows-over-time": p5_windows_over_time,
}


@pytest.fixture(scope="module")
def tiny(tiny_family):
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    return BenchModels(target, (tiny_family["small"], tiny_family["draft"]))


def lab_of(models, **changes):
    return Lab(models, **{"prompts": PROMPTS, "max_new_tokens": 18, **changes})


@pytest.fixture(scope="module")
def lab(tiny):
    return lab_of(tiny, source={"file": "gsm8k.jsonl"})


@pytest.fixture(scope="module")
def found(lab):
    """Run each reproduction once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(p5_window, "WINDOWS", (2, 5))
        return {name: reproduce(name, lab) for name in MODULES}


def labels(table):
    return [row.label for row in table.rows]


# --- The systems


def test_systems_are_the_presets():
    small, large = "zoo:small", "zoo:trunk"
    levels = systems.levels_by_system(small, large)
    for name, system in (
        ("self-verify", "self-verify M2"),
        ("pre-verify", "pre-verify"),
        ("pre-self-verify", "pre-verify + self-verify"),
        ("dynamic-windows", "full"),
    ):
        ours = HierarchyConfig.from_dict(
            {"target": "zoo:large", "levels": levels[system], "verify": systems.RULE}
        )
        assert ours == preset(name, "zoo:large", (small, large)), name


def test_which_levels_adapt():
    def kinds(levels):
        config = HierarchyConfig.from_dict({"target": "t", "levels": levels, "verify": "block"})
        return [type(level.window) for level in config.levels]  # type: ignore[union-attr]

    levels = systems.levels_by_system("s", "m", 4)
    assert kinds(levels["vanilla M2"]) == [FixedWindow]
    assert kinds(levels["self-verify M2"]) == [EntropyWindow]
    assert kinds(levels["pre-verify"]) == [FixedWindow, FixedWindow]
    assert kinds(levels["pre-verify + self-verify"]) == [EntropyWindow, FixedWindow]
    assert kinds(levels["full"]) == [EntropyWindow, EntropyWindow]
    # K is both levels' where windows are fixed, and M1's alone in the whole system.
    sizes = {name: [level["num_speculative_tokens"] for level in levels[name]] for name in levels}
    assert sizes["pre-verify + self-verify"] == [4, 4]
    assert sizes["full"] == [4, systems.CAP]


def test_the_printed_off_by_one_is_lossy_and_our_reading_is_not():
    """Enumerate both, with windows that adapt as in Algorithm 1."""
    worst = 0.0
    for seed in range(3):
        tables = models("random", 2, seed=seed)
        wrong = chain(tables, [ReadsOneLate()], [2], [EntropyWindow()])
        right = chain(tables, [systems.RULE], [2], [EntropyWindow()])
        worst = max(worst, certify_tree(wrong, V).tv)
        assert certify_tree(right, V).tv < 1e-12
    assert worst > 0.1


@pytest.mark.parametrize("reading", READINGS)
def test_every_reading_of_the_current_output_is_lossless(reading):
    window = READINGS[reading](0.8)
    stopping = {"any token": "AB", "last token": "B", "accepted tokens": "A"}[reading]
    for where, signals in {"A": (0.9, 0.1, 0.2), "B": (0.1, 0.2, 0.9)}.items():
        assert window.stops(signals, ()) == (where in stopping)
    tree = chain(models("random", 3), [systems.RULE] * 2, [2, 3], [EntropyWindow(0.8), window])
    assert certify_tree(tree, V).tv < 1e-12


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("humaneval.jsonl", "HumanEval"),
        ("GSM8K-test.jsonl", "GSM8K"),
        ("spec_bench.jsonl", "neither"),
        ("mine.txt", "neither"),
    ],
)
def test_data_sets_among_those_of_a_table(tiny, name, data):
    found = lab_of(tiny, source={"file": name}).dataset(("GSM8K", "HumanEval"), "neither")
    assert found == data


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("humaneval.jsonl", "HumanEval"),
        ("gsm8k.jsonl", "GSM8K"),
        ("spec_bench.jsonl", "MT-Bench"),
        ("alpaca_150.json", "Alpaca"),
        ("mine.txt", "HumanEval"),
    ],
)
def test_the_column_that_is_compared(tiny, name, data):
    assert systems.dataset(lab_of(tiny, source={"file": name})) == data
    assert systems.dataset(lab_of(tiny)) == "HumanEval"


def test_temperature_of_the_paper():
    assert systems.paper_temperature((0.0, 1.0, 0.5)) == 1.0
    assert systems.paper_temperature((0.0, 0.5)) == 0.5


@pytest.mark.parametrize("name", MODULES)
def test_what_is_missing_is_said_in_a_line(tiny, tiny_family, name):
    one = BenchModels(tiny.target, (tiny_family["draft"],), tiny.loaded)
    with pytest.raises(ValueError, match=f"^{name} needs two draft models: give --draft twice"):
        reproduce(name, lab_of(one))
    with pytest.raises(ValueError, match="needs prompts"):
        reproduce(name, lab_of(tiny, prompts=()))
    with pytest.raises(ValueError, match="at least 2 new tokens"):
        reproduce(name, lab_of(tiny, max_new_tokens=1))
    with pytest.raises(ValueError, match="give a lab"):
        reproduce(name)


# --- What is measured


def test_names():
    assert {name for name in MEASURED if name.startswith("p5-")} == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_the_record_is_plain_json(found, lab, name):
    data = json.loads(json.dumps(found[name].to_dict(), allow_nan=False))
    assert data["what"] == name
    assert data["measured_on"].items() >= json.loads(json.dumps(lab.to_dict())).items()
    assert data["measured_on"]["environment"]["versions"]["torch"]
    # Printed on other models: nothing is held against anything.
    assert data["cells"] == 0
    assert all(table["matching_cells"] is None for table in data["tables"])
    assert all(table["notes"] for table in data["tables"])
    for figure in data["figures"]:
        for curve in figure["curves"]:
            assert len(curve["x"]) == len(curve["y"]) > 0


@pytest.mark.parametrize("name", MODULES)
def test_all_numbers_follow_from_the_file(found, lab, name, monkeypatch):
    """Compute tables and figures again from the file, which has every run, without a model."""
    monkeypatch.setattr(p5_window, "WINDOWS", (2, 5))
    monkeypatch.setattr(HierarchyMethod, "run_batch", None)
    data = json.loads(json.dumps(found[name].to_dict()))
    again = replayed(name, lab, data).to_dict()
    assert {k: again[k] for k in ("tables", "figures")} == {
        k: data[k] for k in ("tables", "figures")
    }
    del data["record"][next(iter(data["record"]))]
    with pytest.raises(TypeError):
        replayed(name, lab, data)


def test_a_synthetic_target_is_called_so():
    lab = Lab(
        BenchModels(TargetConfig(model="zoo:large?eps=0.2"), ("zoo:small", "zoo:trunk")), PROMPTS
    )
    (note,) = model_notes(lab)
    assert "synthetic" in note
    plain = Lab(BenchModels(TargetConfig(model="zoo:trunk"), ("zoo:small", "zoo:mid")), PROMPTS)
    assert model_notes(plain) == ()


def test_ablation(found):
    greedy, sampled, table_2, table_1 = found["p5-ablation"].tables
    names = [
        "plain", "vanilla M1", "vanilla M2", "self-verify M1", "self-verify M2", "pre-verify",
        "pre-verify + self-verify", "full",
    ]  # fmt: skip
    assert labels(greedy) == labels(sampled) == names
    assert columns(greedy)["same as plain"] == ["2 of 2"] * 8
    assert "same as plain" not in sampled.extra
    for table in (greedy, sampled):
        got = columns(table)
        assert (got["speed-up"][0], got["written a call"][0], got["offered a call"][0]) == (1, 1, 0)
        assert all(value >= 1 for value in got["written a call"])
        # A window that adapts offers no more than one that does not, and it starts at one token.
        assert got["offered a call"][4] < got["offered a call"][2]
    assert labels(table_2) == ["vanilla M2", "pre-verify", "self-verify M2",
                               "pre-verify + self-verify", "full"]  # fmt: skip
    # The prompts are called gsm8k, so that is the column beside them.
    assert [row.cells[0].printed for row in table_2.rows] == [
        "2.51", "2.47", "2.68", "2.65", "2.64",
    ]  # fmt: skip
    assert labels(table_1) == ["full, temperature 1", "full, temperature 0"]
    assert [row.cells[0].printed for row in table_1.rows] == ["2.64", "3.36"]
    assert table_1.rows[1].cells[0].computed == columns(greedy)["speed-up"][-1]


def test_ablation_at_another_temperature(tiny):
    tables = p5_ablation.measure(lab_of(tiny, temperatures=(0.6,), max_new_tokens=4)).tables
    assert [table.name for table in tables] == ["Systems at temperature 0.6"]


def test_the_full_system_writes_what_plain_decoding_does(tiny, lab):
    """Compare greedy texts, in which the windows have adapted."""
    plain = systems.method(lab, "plain")
    levels = systems.levels_by_system(*tiny.drafts, 3)
    for name in ("self-verify M1", "pre-verify + self-verify", "full"):
        method = systems.method(lab, name, levels[name])
        for prompt in PROMPTS:
            request = RunRequest(24)
            assert method.run(prompt, request).token_ids == plain.run(prompt, request).token_ids


# --- σ and η


def counters(drafted, kept):
    return counters_of(num_draft_tokens=drafted, num_accepted_tokens=kept)


def run_of(num_tokens, calls, *levels):
    return Run(tuple(range(num_tokens)), 1.0, 1.0, calls, levels)


def test_redundancy_and_utilisation_by_hand():
    runs = [
        run_of(13, 4, counters(30, 9), counters(10, 8)),
        run_of(9, 4, counters(10, 5), counters(6, 4)),
    ]
    assert p5_redundancy.redundancy(runs) == pytest.approx(1 - 12 / 16)
    assert p5_redundancy.redundancy(runs, 0) == pytest.approx(1 - 14 / 40)
    assert p5_redundancy.utilisation(runs) == pytest.approx(8 / (12 + 8))
    # Offered 16 in 8 calls; every call wrote what it kept and one more: 12 + 8 tokens.
    assert p5_redundancy.implied_offered_per_call(1 - 12 / 16, 8 / 20) == pytest.approx(16 / 8)
    assert p5_redundancy.redundancy([run_of(2, 1, counters(0, 0))]) == 0.0


def test_the_print_speaks_of_tokens_offered_to_the_target():
    """Compute tokens offered from the printed σ and η: about K = 10 in every system."""
    implied = {
        name: p5_redundancy.implied_offered_per_call(float(sigma) / 100, float(eta) / 100)
        for name, (sigma, eta, _) in p5_redundancy.TABLE_4.items()
    }
    assert {name: round(value, 2) for name, value in implied.items()} == {
        "vanilla M2": 9.87, "vanilla M1": 9.97, "pre-verify + self-verify": 9.49, "full": 10.63,
    }  # fmt: skip


def test_table_4(found):
    tables = found["p5-redundancy"].tables
    assert len(tables) == 4
    for table, behind in zip(tables[::2], tables[1::2], strict=True):
        assert labels(table) == labels(behind) == list(p5_redundancy.TABLE_4)
        got = columns(behind)
        for row, offered in zip(table.rows, got["offered a call"], strict=True):
            sigma, eta = (cell.computed / 100 for cell in row.cells[:2])
            assert 0 <= sigma <= 1
            # Every call writes what it keeps and one more, as `implied_offered_per_call` has it.
            assert 1 / eta - 1 == pytest.approx(offered * (1 - sigma))
        assert got["M1: σ % at M2"][:2] == ["", ""]
        assert all(value > 0 for value in got["M1: drafted a token"][2:])


# --- Windows of several sizes


def test_variation_by_hand():
    assert p5_window.variation([2.0, 1.0, 1.5]) == 0.5
    assert p5_window.variation([1.5, 1.5]) == 0.0
    # One prompt: every draw is the same. Two that disagree: the interval holds the median's value.
    assert p5_window.variation_interval([[2.0], [1.0]]) == (0.5, 0.5)
    low, high = p5_window.variation_interval([[1.0, 3.0], [1.0, 1.0]])
    assert (low, high) == (0.0, pytest.approx(2 / 3))


def test_windows_of_several_sizes(found):
    (table,), (figure,) = found["p5-window"].tables, found["p5-window"].figures
    assert labels(table) == [curve.label for curve in figure.curves] == list(p5_window.SYSTEMS)
    assert "temperature 1" in table.name
    got = columns(table)
    for at, curve in enumerate(figure.curves):
        assert curve.x == (2.0, 5.0)
        assert len(curve.spread) == 2
        assert (got["speed-up"][at], got["speed-up there"][at]) == (max(curve.y), min(curve.y))
        assert got["variation"][at] == pytest.approx(p5_window.variation(curve.y))
        assert curve.x[curve.y.index(max(curve.y))] == got["best K"][at]


# --- Entropies


def test_area_under_the_curve_by_hand():
    assert area_under_curve([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert area_under_curve([3.0, 4.0], [1.0]) == 0.0
    assert area_under_curve([1.0, 2.0], [1.0, 2.0]) == 0.5
    # Pairs (kept, rejected): 1 < 2, 1 < 3, 2 = 2 (half), 2 < 3.
    assert area_under_curve([1.0, 2.0], [2.0, 3.0]) == 3.5 / 4
    assert math.isnan(area_under_curve([], [1.0]))
    assert math.isnan(area_under_curve([1.0], []))


def test_who_is_judged():
    """Check that kept tokens and the first rejected one of each draft are judged, no others."""
    values = [0.1 * i for i in range(10)]
    seen = judged_tokens([Round(4, 3, 1), Round(6, 2, 2), Round(9, 4, 0)], values, 4)
    assert [(one.position, one.kept) for one in seen] == [
        (4, True), (5, False), (6, True), (7, True), (9, False),
    ]  # fmt: skip
    assert [one.entropy for one in seen] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.5])


def test_the_running_threshold_is_the_windows():
    window = EntropyWindow()
    kept = (True, False, False, True, False, True)
    values = (5.0, 2.0, 4.0, 1.0, 6.0, 3.0)
    tokens = [JudgedToken(i, *one) for i, one in enumerate(zip(values, kept, strict=True))]
    state, expected = window.init(), []
    for token in tokens:
        expected.append(window.threshold_after(state))
        state = window.observe(state, (token.entropy,), int(token.kept))
    assert thresholds(tokens) == expected == [0, 0, 2, 3, 3, 4]


def test_entropies_are_those_the_window_saw(tiny, lab):
    """Compare entropies of a pass over the text with those of the rows at drafting."""
    method = systems.method(lab, "draft", [draft_level(tiny.drafts[1], 4)])
    run, seen = run_traced(lab, method, 1.0, 0)
    text = [*PROMPTS[0], *run.token_ids]
    below = method.hierarchy.root.below
    values = entropies(below.model, text, len(PROMPTS[0]))  # type: ignore[union-attr]
    assert len(values) == len(run.token_ids)
    recorded = {}

    class Records(FixedWindow):
        """A window that never stops, and keeps what it was shown at tokens that were judged."""

        signal = "entropy"

        def init(self):
            return (0.0,)

        def observe(self, state, signals, num_accepted):
            one = seen[int(state[0])]
            for i in range(min(num_accepted + 1, len(signals))):
                recorded[one.at + i] = signals[i]
            return (state[0] + 1,)

    levels = [draft_level(tiny.drafts[1], 4, window=Records())]
    HierarchyMethod("x", tiny, levels, verify=systems.RULE).run(
        PROMPTS[0], RunRequest(lab.max_new_tokens, 1.0, lab.seed)
    )
    tokens = judged_tokens(seen, values, len(PROMPTS[0]))
    assert {one.kept for one in tokens} == {True, False}
    for one in tokens:
        assert one.entropy == pytest.approx(recorded[one.position], abs=1e-9)


def test_entropies_of_a_table():
    (model,) = models("random", 1)
    text = [0, 1, 2, 1]
    values = entropies(model, text, 1)
    rows = [model.distribution([token]).tolist() for token in text[:-1]]
    assert values == pytest.approx([-sum(p * math.log(p) for p in row) for row in rows])


def test_figure_6(found):
    tables = found["p5-entropy"].tables
    assert len(tables) == 4
    for table in tables:
        assert labels(table) == ["M2 for the target", "M1 for the target", "M1 for M2"]
    for table in tables[::2]:
        got = columns(table)
        assert sum(got["kept"]) > 0
        assert min(got["rejected"]) > 0
        for value in got["AUC"]:
            assert value == "none" or 0 <= value <= 1
    names = [figure.name for figure in found["p5-entropy"].figures]
    assert len(names) == len(set(names)) == 14
    for figure in found["p5-entropy"].figures:
        if "tokens:" in figure.name:
            assert all(sum(curve.y) == pytest.approx(1) for curve in figure.curves)


def test_entropies_that_part():
    """Compute the numbers of a constructed pair of texts, one without a rejection."""
    texts = (
        (
            JudgedToken(0, 1.0, True),
            JudgedToken(1, 3.0, False),
            JudgedToken(2, 2.0, True),
            JudgedToken(3, 5.0, False),
        ),
        (JudgedToken(0, 0.5, True),),
    )
    pair = p5_entropy.Pair("x", texts)
    assert p5_entropy._separation_cells(pair) == (3, 2, pytest.approx(3.5 / 3), 4.0, 1.0, "1 of 1")
    # In force: 0, 0, 3, 3 and 0. Kept: 1 > 0, 2 ≤ 3, 0.5 > 0. Rejected: 3 > 0 and 5 > 3.
    assert p5_entropy._threshold_cells(pair) == (4.0, pytest.approx(1 / 3), 1.0, 1.5)
    turned = tuple(tuple(dataclasses.replace(t, kept=not t.kept) for t in text) for text in texts)
    assert p5_entropy._separation_cells(p5_entropy.Pair("x", turned))[4] == 0.0
    nothing = p5_entropy.Pair("x", (texts[1],))
    assert p5_entropy._separation_cells(nothing) == (1, 0, 0.5, "none", "none", "0 of 0")


# --- Windows over time


def event_of(kind, index, base, **fields):
    times = {"began": 0.0, "seconds": 0.0}
    place = {"kind": kind, "sequence": 0, "level": str(index), "index": index, "base_length": base}
    return as_record({**place, **times, **fields})


def check_event(index, base, draft, kept):
    fields = {"draft": draft, "owners": [0] * len(draft), "emitted": [*draft[:kept], 1]}
    return event_of("check", index, base, **fields, num_accepted=kept)


def test_rounds_of_the_target_alone():
    events = [
        check_event(2, 4, [], 0),  # the prompt
        event_of("draft", 0, 5, tokens=[8], leaf=True),
        check_event(1, 5, [8, 8], 1),
        check_event(2, 5, [8, 9, 7], 2),
        check_event(2, 8, [1], 1),
    ]
    assert target_rounds(events) == [Round(5, 3, 2), Round(8, 1, 1)]
    assert [one.rejected for one in target_rounds(events)] == [True, False]


def test_rounds_cut_by_the_end_do_not_count():
    # 20 tokens in all: from 10 on a draft of at most 9 is of use.
    assert p5_windows_over_time.uncut([Round(10, 8, 0), Round(10, 9, 0)], 20) == [Round(10, 8, 0)]


def test_figure_8(found, lab):
    (table,) = found["p5-windows-over-time"].tables
    figures = found["p5-windows-over-time"].figures
    assert "temperature 1" in table.name
    names = ["vanilla M2", "vanilla M1", "pre-verify + self-verify", "full"]
    assert labels(table) == names
    for figure in figures:
        offered, kept = figure.curves
        assert all(0 <= b <= a for a, b in zip(offered.y, kept.y, strict=True))
        # Every round writes what it keeps and one more; the last one may drop its bonus.
        written = sum(kept.y) + len(kept.y)
        assert lab.max_new_tokens - 3 <= written <= lab.max_new_tokens
    assert figures[3].curves[0].y[0] <= 2  # both thresholds begin at 0: one token, and a bonus
    got = columns(table)
    assert got["single"][0] == 0
