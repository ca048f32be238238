"""``hierspec reproduce`` where models run.

The experiment is a toy that reports what it was given; the models are the shipped ones.
"""

from __future__ import annotations

import json
import sys
import types

import pytest
from fake_methods import SmallModels
from paper_cases import FIGURES
from svg import letters

import hierspec_lab.papers as package
from hierspec.cli import run
from hierspec_lab.bench.methods.base import Unavailable
from hierspec_lab.papers import (
    COMPUTED,
    MEASURED,
    Cell,
    Reproduction,
    Table,
    TableRow,
)

TABLE = Table(
    "Table 2",
    "a measured table",
    "method [a]",
    ("ms",),
    (TableRow("one [b]", (Cell("1.25", 3.5),), ("yes",)),),
    ("same",),
    compared=False,
    notes=("a note [c]",),
)


@pytest.fixture
def toy(monkeypatch):
    """A measured kind named toy; its module's ``lab`` is the one it was measured with."""
    module = types.ModuleType("hierspec_lab.papers.toy_module")
    module.lab = None  # type: ignore[attr-defined]
    module.answer = Reproduction("toy", (TABLE,), FIGURES)  # type: ignore[attr-defined]

    def measure(lab):
        module.lab = lab  # type: ignore[attr-defined]
        lab.report("half of it", 0.5)
        if isinstance(module.answer, BaseException):  # type: ignore[attr-defined]
            raise module.answer  # type: ignore[attr-defined]
        return module.answer  # type: ignore[attr-defined]

    module.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in tuple(MEASURED):
        monkeypatch.delitem(MEASURED, name)
    monkeypatch.setitem(MEASURED, "toy", ("toy_module", "what the toy shows"))
    return module


@pytest.fixture
def hierspec(capsys):
    """Run ``hierspec reproduce``: (status, output, error)."""

    def call(*words):
        status = run(["reproduce", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


SMALL = ("--target", "zoo:small", "--num-prompts", "2", "--max-new-tokens", "8")


def test_the_list_and_the_help_name_everything(hierspec):
    status, out, _ = hierspec("--list")
    assert status == 0
    _, help_, _ = hierspec("--help")
    words = "".join(help_.split())  # names may be cut at a hyphen
    for name, (_, shows) in (COMPUTED | MEASURED).items():
        assert name in out
        assert shows in out
        assert name in words
    _, listed, _ = hierspec("--list", "--json")
    assert [entry["name"] for entry in json.loads(listed)] == [*COMPUTED, *MEASURED]
    assert {entry["kind"] for entry in json.loads(listed)} == (
        {"computed", "measured"} if MEASURED else {"computed"}
    )


def test_what_is_printed(hierspec, toy):
    status, out, err = hierspec("toy", *SMALL)
    assert status == 0
    for part in (
        "measured on zoo:small; drafts none; 2 prompts × 8 tokens",
        "Table 2: a measured table",
        "method [a]",
        "one [b]",
        "a note [c]",
        "compare the shape, not the digits",
        "Figure 7: curves of a figure",
        "share, by n",
        "Figure 8: a long curve",
        "share, over n from 1 to 16",
        "best: 2.5 at r2, c2",
    ):
        assert part in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "one [b] 1.25 3.50 yes" in lines
    assert "first [d] 0.5 0.25 0.125" in lines
    assert "second 0.9 0.8" in lines
    assert "long ▁▁▂▂▃▃▄▄▅▅▆▆▇▇██ 0 7 0 7" in lines
    assert "printed measured" in " ".join(lines)
    for part in ("match", "≠", "computed"):
        assert part not in out
    assert max(map(len, out.splitlines())) <= 100
    assert "half of it" in err
    assert "--figures" in err


def test_a_folder_of_data_sets_takes_turns_by_domain(hierspec, toy, tmp_path):
    status, _, err = hierspec("toy", *SMALL, "--prompts", tmp_path)
    assert status == 2
    assert "there is no humaneval.jsonl" in err
    for name, row in (
        ("humaneval", {"prompt": "def one():\n    pass\n" * 30}),
        ("gsm8k", {"question": "How many?"}),
        ("spec_bench", {"turns": ["Translate", "again"], "category": "translation"}),
    ):
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    words = ("--num-prompts", "4", "--prompts", tmp_path, "--json")
    status, out, _ = hierspec("toy", "--target", "zoo:small", "--max-new-tokens", "8", *words)
    assert status == 0
    found = json.loads(out)["measured_on"]["prompts"]
    assert (found["count"], found["truncated_to"]) == (4, 64)
    assert [one["file"] for one in found["files"]] == [
        "humaneval.jsonl", "gsm8k.jsonl", "spec_bench.jsonl",
    ]  # fmt: skip
    first, second, _, fourth = toy.lab.prompts
    assert first == fourth
    assert len(first) == 64
    assert toy.lab.models.tokenizer.decode(second) == "How many?"
    assert list(toy.lab.domains) == ["humaneval", "gsm8k", "translation", "humaneval"]
    assert (toy.lab.lengths[0] > 64, toy.lab.lengths[1]) == (True, len(second))
    (tmp_path / "gsm8k.jsonl").write_text("{}\n")
    status, _, err = hierspec("toy", *SMALL, "--prompts", tmp_path)
    assert status == 2
    assert "gsm8k.jsonl, line 1" in err


def test_the_experiment_gets_what_was_asked_for(hierspec, toy, tmp_path):
    file = tmp_path / "prompts.jsonl"
    texts = ["def one():", "x = 1\n" * 3000, "never read"]
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    result = tmp_path / "result.json"
    status, out, _ = hierspec(
        "toy", "--target", "zoo:mid", "--draft", "zoo:small", "--draft", "zoo:mid", "--prompts",
        file, "--num-prompts", 2, "--max-new-tokens", 8, "--temperature", 0.5, "--temperature", 0,
        "--dtype", "float32", "--device", "cpu", "--seed", 7, "--json", "--output", result,
    )  # fmt: skip
    assert status == 0
    lab = toy.lab
    tokenizer = lab.models.tokenizer
    assert lab.prompts[0] == tokenizer(texts[0])["input_ids"]
    assert lab.prompts[1] == tokenizer(texts[1], verbose=False)["input_ids"][-512:]
    assert len(lab.prompts) == 2
    assert (lab.max_new_tokens, lab.temperatures, lab.seed) == (8, (0.5, 0.0), 7)
    data = json.loads(out)
    assert data == json.loads(result.read_text())
    found = data["measured_on"]
    assert (found["target"], found["drafts"]) == ("zoo:mid", ["zoo:small", "zoo:mid"])
    assert (found["dtype"], found["seed"], found["temperatures"]) == ("float32", 7, [0.5, 0.0])
    assert found["prompts"]["file"] == "prompts.jsonl"
    assert len(found["prompts"]["sha256"]) == 64
    assert (found["prompts"]["count"], found["prompts"]["truncated_to"]) == (2, 512)
    assert found["environment"]["versions"]["torch"]


def test_defaults(hierspec, toy, monkeypatch):
    monkeypatch.setattr("hierspec_lab.papers.lab.BenchModels", SmallModels)
    assert hierspec("toy", "--max-new-tokens", "8")[0] == 0
    assert toy.lab.models.target.model == "zoo:large?eps=0.2"
    assert toy.lab.models.drafts == ("zoo:small", "zoo:trunk")
    assert (len(toy.lab.prompts), toy.lab.temperatures, toy.lab.seed) == (8, (0.0, 1.0), 0)
    assert toy.lab.source == {"file": "built in"}


def test_what_is_no_number_is_null(hierspec, toy, tmp_path):
    table = Table("T", "", "x", (), (TableRow("one", (), (float("nan"), 1.5)),), ("error", "n"))
    toy.answer = Reproduction("toy", (table,))
    status, out, _ = hierspec("toy", *SMALL, "--json", "--output", tmp_path / "x.json")
    assert status == 0
    for text in (out, (tmp_path / "x.json").read_text()):
        (row,) = json.loads(text, parse_constant=pytest.fail)["tables"][0]["rows"]
        assert (row["error"], row["n"]) == (None, 1.5)


def test_what_a_module_says_of_its_machine_stays(hierspec, toy):
    toy.answer = Reproduction("toy", (TABLE,), measured_on={"target": "another"})
    _, out, _ = hierspec("toy", *SMALL, "--json")
    found = json.loads(out)["measured_on"]
    assert found["target"] == "another"
    assert found["environment"]["cores"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "reproduce --list"),
        (("p1-tables", "--target", "x", "--seed", "1"), "leave --target and --seed out"),
        (("toy", "--target", "/no/such/model"), "no directory"),
        (("toy", "--draft", "/no/such/model", *SMALL), "/no/such/model"),
        (("toy", *SMALL, "--temperature", "-1"), "--temperature must be 0"),
        (("toy", *SMALL[:2], "--max-new-tokens", "9999"), "leaves no room for a prompt"),
        (("toy", *SMALL, "--prompts", "/no/such.jsonl"), "cannot read prompts"),
        (("toy", *SMALL, "--output", "/"), "is a folder"),
        (("toy", *SMALL, "--output", "/no/such/folder/x.json"), "there is no folder"),
        (("all",), "give --output FOLDER"),
        (("toy", *SMALL, "--output", "/proc/x.json"), "no file can be made in /proc"),
        (("toy", *SMALL, "--output", "/dev/null/x.json"), "there is no folder"),
        (("toy", *SMALL, "--threads", "100000"), "--threads must lie between 1 and"),
        (("all", "--output", __file__), "is not a folder; name another folder"),
        (("all", "--output", "/proc/x"), "no file can be made in /proc"),
        (("all", "--output", "x", "--json"), "leave --json out"),
        (("tyo",), "did you mean toy?"),
    ],
)
def test_mistakes_are_one_line_before_any_work(hierspec, toy, words, said, monkeypatch):
    monkeypatch.setattr(package, "NAMES", (*COMPUTED, *MEASURED))
    status, out, err = hierspec(*words)
    assert status == 2
    assert out == ""
    assert said in err
    assert sum("error" in line for line in err.splitlines()) == 1
    assert toy.lab is None


def test_a_target_without_a_tokenizer_is_refused(hierspec, toy, tiny_family):
    status, _, err = hierspec("toy", "--target", tiny_family["target"], "--max-new-tokens", "4")
    assert status == 2
    assert "no tokenizer" in err


def test_too_few_models_are_one_line(hierspec, toy):
    toy.answer = Unavailable("needs two drafts: give --draft twice")
    status, out, err = hierspec("toy", *SMALL)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "hierspec: error: needs two drafts: give --draft twice"


def test_interruption(hierspec, toy, tmp_path):
    toy.answer = KeyboardInterrupt()
    status, out, err = hierspec("toy", *SMALL, "--output", tmp_path / "x.json")
    assert (status, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: nothing was written"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def quick(monkeypatch):
    """Of what is computed, the quickest alone."""
    for name in tuple(COMPUTED):
        if name != "p1-tables":
            monkeypatch.delitem(COMPUTED, name)


def test_all_writes_a_file_each(hierspec, toy, quick, tmp_path):
    folder = tmp_path / "new"
    status, _, err = hierspec("all", *SMALL, "--output", folder)
    assert status == 0
    assert sorted(path.name for path in folder.iterdir()) == ["p1-tables.json", "toy.json"]
    assert json.loads((folder / "toy.json").read_text())["measured_on"]["target"] == "zoo:small"
    assert json.loads((folder / "p1-tables.json").read_text())["cells"] == 114
    assert err.splitlines()[-1] == f"2 of 2 are written in {folder}"


def test_all_goes_on_where_a_kind_cannot_run(hierspec, toy, quick, tmp_path, monkeypatch):
    toy.answer = Unavailable("needs two drafts")
    other = types.ModuleType("hierspec_lab.papers.other_module")
    other.measure = lambda lab: Reproduction("other")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setitem(MEASURED, "other", ("other_module", ""))
    status, _, err = hierspec("all", *SMALL, "--output", tmp_path)
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "p1-tables.json"]
    assert "toy: left out: needs two drafts" in err.splitlines()
    toy.answer = RuntimeError("out of\nsorts")
    status, _, err = hierspec("all", *SMALL, "--output", tmp_path)
    assert status == 0
    assert "toy: left out: RuntimeError: out of sorts" in err.splitlines()
    toy.answer = KeyboardInterrupt()
    status, _, err = hierspec("all", *SMALL, "--output", tmp_path)
    assert status == 130
    assert err.splitlines()[-1] == f"interrupted: 1 of 3 are written in {tmp_path}"


@pytest.mark.usefixtures("matplotlib")
def test_figures_are_drawn(hierspec, toy, tmp_path):
    status, _, err = hierspec("toy", *SMALL, "--figures", tmp_path / "new")
    assert status == 0
    names = ["toy-figure-7.svg", "toy-figure-8.svg", "toy-figure-9.svg"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names
    assert "--figures" not in err
    said = letters((tmp_path / "new" / names[0]).read_bytes())
    for part in ("Figure 7", "curves of a figure", "n", "share", "first [d]", "second"):
        assert part in said
    said = letters((tmp_path / "new" / names[2]).read_bytes())
    for part in ("1.50", "1.25", "2.50", "r1", "c2", "Framed: 2.5 at r2, c2."):
        assert part in said


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("folder", [__file__, "/proc/figures"])
def test_a_folder_that_cannot_be_drawn_into_is_refused_first(hierspec, toy, folder):
    status, out, err = hierspec("toy", *SMALL, "--figures", folder)
    assert (status, out) == (2, "")
    assert "cannot write figures to" in err
    assert "name another folder" in err
    assert err.count("\n") == 1
    assert toy.lab is None
