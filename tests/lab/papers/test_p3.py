"""P3's experiments on models: what the tables hold, and that they are lossless."""

import dataclasses

import pytest
import torch
from paper_cases import (
    HEADS,
    KNOWN,
    PROMPTS,
    check_lossless,
    check_prints,
    columns,
    counters_of,
    lab_of,
    replayed,
)
from tiny_models import save_tiny, tiny_model

from hierspec.config.schema import TargetConfig
from hierspec.lm.load import load as load_model
from hierspec.profiling.candidates import load, parse
from hierspec_lab.bench.methods.base import Run
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec_lab.papers import MEASURED, measured, reproduce
from hierspec_lab.papers.p1 import models as p1_models
from hierspec_lab.papers.p2 import models as p2_models
from hierspec_lab.papers.p3 import exits as p3_exits
from hierspec_lab.papers.p3 import figure4 as p3_figure4
from hierspec_lab.papers.p3 import lengths as p3_lengths
from hierspec_lab.papers.p3 import systems as p3_systems
from hierspec_lab.papers.p3 import table1 as p3_table1
from hierspec_lab.papers.p3 import wall as p3_wall


def run_of(seconds, tokens=(1, 2, 3), calls=2, drafted=4, kept=1, **more):
    level = counters_of(num_draft_tokens=drafted, num_accepted_tokens=kept, seconds=0.2)
    target = counters_of(calls=calls, seconds=0.1)
    return Run(tokens, seconds, 0.5, calls, (level,), target, **more)


# --- what every reproduction reports


def test_measured_by_hand():
    plain = (run_of(3.0), run_of(6.0))
    one = measured.Measured("one", (run_of(1.5, kept=3), run_of(2.0, (1, 2, 4), 4, 12)), plain)
    assert one.speedup.median == pytest.approx(2.5)  # of 3/1.5 and 6/2
    assert one.speedup_cells == (pytest.approx(2.5), None, None)  # two prompts are too few
    assert one.half_width == 0.0
    runs = (run_of(1.5), run_of(2.0)) * 3
    three_times = measured.Measured("three times", runs, plain * 3)
    assert three_times.speedup_cells == pytest.approx((2.5, 2.0, 3.0))
    assert three_times.half_width == pytest.approx(0.5)
    assert one.speedup_over(one.runs).median == 1.0
    assert one.tokens_per_call == pytest.approx(4 / 6)
    assert one.acceptance() == pytest.approx(4 / 16)
    assert one.decode_ms == pytest.approx(250)  # half a second for two tokens
    assert (one.same_as_plain_cell(0.0), one.same_as_plain_cell(0.5)) == ("1 of 2", "")


def test_a_method_that_cannot_run_is_told_about(deep):
    lab = lab_of(deep)
    wrong = p3_systems.single_exit(lab.models, 9)
    plain, bad = measured.side_by_side(lab, [wrong], 0.0, "trial")
    assert (len(plain.runs), bad.runs) == (2, ())
    assert "exit" in bad.reason
    with pytest.raises(ValueError, match="exit 9 cannot run"):
        measured.require_all([plain, bad])


def test_notes_say_what_is_synthetic(deep):
    assert len(measured.notes(lab_of(deep))) == 1
    for lab in (lab_of("zoo:large?eps=0.2"), lab_of(deep, ["zoo:large"])):
        assert "synthetic cost" in measured.notes(lab)[1]


def test_names_lead_to_modules(deep):
    mine = ["p1-models", "p2-models", *(f"p3-{x}" for x in ("exits", "figure4", "lengths"))]
    assert {*mine, "p3-table1", "p3-wall"} <= MEASURED.keys()
    with pytest.raises(ValueError, match="give a lab"):
        reproduce("p3-wall")
    assert reproduce("p3-figure4", lab_of(deep, tokens=2, temperatures=(0.0,))).tables


# --- P3


def test_lengths_of_prompts_and_answers(deep):
    lab = dataclasses.replace(
        lab_of(deep), domains=["maths", "news"], lengths=[40, 700], texts=[[5, 9, 3], [7, 7]]
    )
    found = reproduce("p3-figure9", lab)
    plain = lab.models.hierarchy()
    written = [plain.generate(ids, max_new_tokens=lab.max_new_tokens) for ids in lab.texts]
    assert [row.extra[:2] for row in found.tables[1].rows] == [(1, r.num_tokens) for r in written]
    assert [row.extra[:2] for row in found.tables[0].rows] == [(1, 40), (1, 700)]
    assert [(c.label, c.x, c.y) for c in found.figures[0].curves] == [
        ("maths", (40.0,), (1.0,)), ("news", (700.0,), (1.0,)),
    ]  # fmt: skip
    again = replayed("p3-figure9", lab, found.to_dict())
    assert again.tables == found.tables


def test_which_exits():
    assert p3_systems.exits_to_try(32) == (2, 4, 8, 12, 16, 24)
    assert p3_systems.exits_to_try(16, 2, 4) == (1, 2, 4, 6, 8, 12)
    assert p3_systems.exits_to_try(3, 1, 2) == (1, 2)
    assert p3_systems.exits_to_try(80, 7) == (5, 7, 10, 20, 30, 40, 60)


def test_exits(deep):
    lab = lab_of(deep)
    found = p3_exits.measure(lab)
    exits = (1, 2, 3, 4, 6)
    pairs = [f"{a}-{b}" for a in exits for b in exits if a < b]
    names = ("Figures 5 and 8", "Intermediate rules")
    titles = [f"{name}, temperature {t}" for t in (0, 1) for name in names]
    *tables, memory = found.tables
    assert [table.name for table in tables] == titles
    for table in tables[::2]:
        labels = [row.label.removesuffix(" (default)") for row in table.rows]
        assert labels == [*map(str, exits), *pairs]
        assert [r.label for r in table.rows if "default" in r.label] == ["1-2 (default)"]
        got = columns(table)
        low, middle, high = (got[name] for name in ("low 95", "speed-up", "high 95"))
        assert all(speedup > 0 for speedup in middle)
        assert {*low, *high} == {None}, "two prompts are too few for an interval"
        assert all(1 <= tokens <= 8 for tokens in got["tokens a call"])
        assert all(0 <= kept <= 1 for kept in got["kept by target"])
        check_lossless(table)
    rules = columns(found.tables[1])
    assert [row.label for row in found.tables[1].rows] == ["leading", "tokenwise", "block"]
    for name in ("tokens a call", "kept by target", "kept by intermediate"):
        assert len(set(rules[name])) == 1  # greedy: one rule
    check_lossless(found.tables[1])
    grid, tradeoff, *_ = found.figures
    assert grid.grid is not None
    assert grid.grid.columns == ("1 (default)", "2", "3", "4")
    assert grid.grid.rows == ("2 (default)", "3", "4", "6")
    shown = [value for row in grid.grid.values for value in row if value is not None]
    assert len(shown) == len(pairs)
    assert grid.grid.values[0][1:] == (None, None, None)
    single, double = tradeoff.curves
    assert (len(single.x), single.kind) == (5, "points")
    assert 1 <= len(double.x) <= 4
    assert len(double.spread) == len(double.y)
    assert [row.label for row in memory.rows] == [row.label for row in tables[0].rows]
    state = 8 * lab.models.plain.root.model.trunk.backend.hidden_size
    assert columns(memory)["caches per token"] == [state] * 5 + [2 * state] * len(pairs)
    assert set(columns(memory)["weights"]) == {0}
    check_prints(found)


def test_exits_that_have_trained_heads(headed):
    lab = lab_of(headed, temperatures=(0.0,))
    assert p3_systems.candidate_exits(lab.models) == HEADS
    assert p3_systems.default_exits(lab.models) == (2, 3)
    method = p3_systems.hispec(lab.models, 2, 4)
    assert [level.get("head") for level in method.configuration["levels"]] == [headed, None]
    found = p3_exits.measure(lab)
    *_, memory = found.tables
    check_lossless(found.tables[0])
    pairs = ["2-3 (default)", "2-5", "3-5"]
    for table in (found.tables[0], memory):
        assert [row.label for row in table.rows] == [*map(str, HEADS), *pairs]
    assert "Exits after layers 2, 3, 5 have heads trained for them" in found.tables[0].notes[2]
    size = lab.models.plain.root.model.trunk.backend.hidden_size
    head, rows = 8 * (size + 1) * size, 8 * KNOWN * size
    assert columns(memory)["weights"] == [head + rows] * 3 + [2 * head + rows] * 3
    check_prints(found)


def test_one_trained_exit_is_too_few_for_a_pair(deep, monkeypatch):
    monkeypatch.setattr(p3_systems, "trained_exits", lambda target: ("heads", (5,)))
    models = lab_of(deep).models
    assert p3_systems.candidate_exits(models) == (1, 2, 3, 4, 6)
    assert p3_systems.single_exit(models, 5).configuration["levels"][0]["head"] == "heads"


@pytest.mark.parametrize("backend", ["lean", "hf"])
def test_caches_of_a_hierarchy(deep, tiny_family, backend):
    """Count keys and values of each model once, and hidden states at each of its exits."""

    def of(target, *levels):
        models = BenchModels(TargetConfig(model=target, dtype="float64", backend=backend))
        return p3_systems.cache_bytes(HierarchyMethod("any", models, levels))

    def edge(model):
        size = load_model(model, backend="hf").hidden_size
        return 8 * size

    plain, exits = of(deep), [p3_systems.exit_level(layer, 2) for layer in (1, 2)]
    assert of(deep, exits[0]) == plain + edge(deep)
    assert of(deep, exits[0], {**exits[1], "verify": "block"}) == plain + 2 * edge(deep)
    assert of(deep, {"method": "prompt_lookup", "num_speculative_tokens": 2}) == plain
    small = {"method": "draft_model", "model": tiny_family["small"], "num_speculative_tokens": 2}
    together = of(tiny_family["target"], {**small, "backend": backend})
    assert together == of(tiny_family["target"]) + of(tiny_family["small"])


def test_lengths(deep):
    found = p3_lengths.measure(lab_of(deep))
    labels = [row.label for row in found.tables[0].rows]
    assert labels == [f"{n} / 4" for n in (1, 2, 3, 4, 6, 8)] + [f"2 / {n}" for n in (2, 6, 8, 12)]
    for table in found.tables:
        check_lossless(table)
    for first, second in (found.figures[:2], found.figures[2:]):
        assert first.curves[0].x == p3_lengths.DRAFTS
        assert second.curves[0].x == p3_lengths.BUFFERS
        assert first.curves[0].y[1] == second.curves[0].y[1]  # N_d = 2, N_i = 4 is in both
    check_prints(found)


def test_figure_4_against_transformers(deep):
    """Compare with equal choices and 1 − TV of exits and the last layer from hidden states."""
    lab, exits = lab_of(deep, tokens=12), (1, 2, 4)
    pool = load(lab.models.target, [parse(f"exit:{n}") for n in exits], lab.models.loaded)
    model = tiny_model("llama", seed=3, layers=8)
    greedy = p3_figure4.measure_acceptance(lab, pool, 0.0)
    for number, prompt in enumerate(PROMPTS):
        text = list(prompt)
        for _ in range(12):
            with torch.no_grad():
                out = model(torch.tensor([text]), output_hidden_states=True)
            text.append(int(out.logits[0, -1].argmax()))
        with torch.no_grad():
            out = model(torch.tensor([text]), output_hidden_states=True)
            wanted = out.logits[0, len(prompt) - 1 : -1].argmax(-1)
            for i, layer in enumerate(exits):
                hidden = out.hidden_states[layer][0, len(prompt) - 1 : -1]
                guess = model.lm_head(model.model.norm(hidden)).argmax(-1)
                share = float((guess == wanted).double().mean())
                assert greedy[i][number] == pytest.approx(share)
    sampled = p3_figure4.measure_acceptance(lab, pool, 1.0)
    assert all(0 < share < 1 for each in sampled for share in each)


def test_figure_4_of_a_model_whose_upper_layers_do_nothing(tmp_path):
    model = tiny_model("llama", seed=3, layers=4)
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    model.save_pretrained(tmp_path)
    found = p3_figure4.measure(lab_of(str(tmp_path)))
    (table,), (figure,) = found.tables, found.figures
    assert [row.label for row in table.rows] == ["0", "1"]
    for row in table.rows:
        assert row.cells[0].printed == "69"
        assert row.cells[0].computed == pytest.approx(100)
        assert row.extra == ("L2 → L4", pytest.approx(0, abs=1e-9))
    assert figure.curves[0].x == (1.0, 2.0, 3.0)
    assert not table.compared
    check_prints(found)


def test_the_wall_by_hand():
    wall = p3_wall.wall([run_of(1.0), run_of(1.0)], drafted=6)
    assert wall.draft_ms == pytest.approx(300)  # 0.4 s for 8 tokens
    assert wall.verify_ms == pytest.approx(50)  # 0.2 s for 4 calls
    assert wall.ratio == pytest.approx(1 / 6)
    assert (wall.drafting, wall.verifying, wall.outside) == pytest.approx((0.4, 0.2, 0.4))
    with pytest.raises(ValueError, match="nothing was drafted"):
        p3_wall.wall([run_of(1.0, drafted=0)])


def test_the_wall(tiny_family):
    lab = lab_of(tiny_family["target"], [tiny_family["small"], tiny_family["draft"]])
    found = p3_wall.measure(lab)
    *tables, printed = found.tables
    for table in tables:
        assert [row.label for row in table.rows] == [*lab.models.drafts, "exit 1", "exit 2"]
        got = columns(table)
        for name in ("T_gen", "T_verif", "ratio", "drafting", "verifying"):
            assert min(got[name]) > 0
        for shares in zip(got["drafting"], got["verifying"], got["outside"], strict=True):
            assert sum(shares) == pytest.approx(1)
            assert min(shares) >= 0  # levels' seconds lie within decoding
    assert [len(figure.curves) for figure in found.figures] == [2, 2]
    assert len(printed.rows) == 9
    check_prints(found)


def test_printed_tables_agree_with_themselves():
    """Check the transcription: ratios follow from latencies, averages are those of the text."""
    for *_, draft_ms, verify_ms, ratio in p3_wall.TABLE_2:
        decimals = len(ratio.partition(".")[2])
        assert f"{float(verify_ms) / float(draft_ms):.{decimals}f}" == ratio
    cells = p3_table1.printed("HiSpec")
    assert (len(cells), round(sum(cells) / len(cells), 1), max(cells)) == (30, 1.7, 2.08)
    rows = [values for rows in p3_table1.TABLE_1.values() for values in rows.values()]
    assert (len(rows), {len(row) for row in rows}) == (22, {5})
    assert p3_table1.printed("AdaDecode", "HumanEval") == [1.36, 1.67]


def test_table_1(deep, monkeypatch):
    monkeypatch.setitem(p3_table1.PRESETS, "AdaDecode", "there-is-none")
    found = p3_table1.measure(lab_of(deep))
    for table in found.tables:
        rows = {row.label: row for row in table.rows}
        assert list(rows) == ["plain", *p3_table1.PRESETS]
        assert rows["AdaDecode"].extra[3:] == ("",) * 5
        assert any("AdaDecode is left out: no preset" in note for note in table.notes)
        assert rows["plain"].extra[3:7] == (1.0, None, None, 1.0)  # too few for an interval
        assert rows["HiSpec"].extra[0] == pytest.approx(1.7047, abs=1e-4)
        assert rows["HiSpec"].extra[3] > 0
        assert "P3's cells give 1.19" in table.notes[0]
    same = columns(found.tables[0])["same as plain"]
    assert {text for text in same if text} == {"2 of 2"}
    assert sum(1 for text in same if text) >= 3  # plain, LayerSkip and HiSpec at least
    check_prints(found)


# --- what cannot be done says so


@pytest.fixture(scope="module")
def shallow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shallow")
    return {n: str(save_tiny("llama", folder / str(n), layers=n)) for n in (1, 2)}


@pytest.mark.parametrize("module", [p3_exits, p3_lengths, p3_figure4, p3_table1])
def test_two_layers_are_too_few_for_two_exits(module, shallow):
    with pytest.raises(ValueError, match=r"hispec needs a target of at least \d layers") as caught:
        module.measure(lab_of(shallow[2]))
    assert "\n" not in str(caught.value)


def test_nothing_to_draft_with(shallow):
    for module in (p3_wall, p1_models):
        with pytest.raises(ValueError, match="needs something that drafts: give --draft"):
            module.measure(lab_of(shallow[1]))
    with pytest.raises(ValueError, match="needs two draft models"):
        p2_models.measure(lab_of(shallow[2], [shallow[1]]))
    with pytest.raises(ValueError, match="no tokenizer beside it"):
        p1_models.measure(lab_of(shallow[2]))


@pytest.mark.parametrize(
    "module", [p1_models, p2_models, p3_exits, p3_lengths, p3_figure4, p3_table1, p3_wall]
)
def test_no_prompts(module, deep):
    with pytest.raises(ValueError, match="needs prompts: give --prompts"):
        module.measure(lab_of(deep, [deep, deep], prompts=()))
