"""The laboratory's commands are found by entry points, and the product does without them."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from hierspec.cli import root, run
from hierspec.errors import HierspecError
from hierspec.utils import plugins
from hierspec_lab.cli.options import parse_temperatures

ROOT = Path(__file__).resolve().parents[3]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.mark.parametrize("words", DECLARED[root.COMMANDS])
def test_each_has_its_help(words, capsys):
    assert run([*words.split("."), "--help"]) == 0
    assert f"hierspec {words.replace('.', ' ')}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("profile ngram --target zoo:small -o no/p.json --threads 100000", "--threads must lie"),
        ("zoo train no/such/folder --quick --threads 100000", "--threads must lie between 1 and"),
        ("heads train --exits 1", "(see hierspec heads train --help)"),
        ("bench run", "unexpected extra argument(s) (run) (see hierspec bench"),
    ],
)
def test_mistakes_are_one_line_and_status_2(line, says, capsys):
    assert run(line.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


def test_temperatures_are_repeated_or_separated_by_commas():
    assert parse_temperatures(["0,1", "0.5"]) == (0.0, 1.0, 0.5)
    with pytest.raises(HierspecError, match="takes numbers, as in 0,1, not 'hot'"):
        parse_temperatures(["0,hot"])


EARLY = """
import sys
from hierspec.cli import run
status = run(sys.argv[1:])
assert not {"torch", "transformers"} & sys.modules.keys()
sys.exit(status)
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["bench", "--target", "/nowhere/at/all"],
        ["plan", "/nowhere/at/all.json"],
        ["profile", "--target", "/nowhere/at/all", "-o", "p.json"],
        ["timeline", "/nowhere/at/all.jsonl", "-o", "t.svg"],
    ],
    ids=lambda argv: argv[0],
)
def test_a_mistake_is_told_before_torch_is_loaded(argv, tmp_path):
    command = [sys.executable, "-c", EARLY, *argv]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "/nowhere/at/all" in done.stderr


@pytest.mark.parametrize("command", ["bench", "profile"])
def test_help_names_what_drafts(command, capsys):
    assert run([command, "--help"]) == 0
    assert "ngram:TABLE" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "load", "says"),
    [
        ("broken", lambda: 1 / 0, "ZeroDivisionError"),
        ("nowhere.at.all", lambda: print, "KeyError: 'nowhere.at'"),
    ],
)
def test_a_package_that_fails_costs_what_it_adds(words, load, says, monkeypatch, capsys):
    entry = SimpleNamespace(
        load=load, module="json", value="json:f", dist=SimpleNamespace(name="p")
    )
    monkeypatch.setattr(plugins, "entry_point_names", lambda group: {words: entry})
    root._add_commands_of_packages()
    err = capsys.readouterr().err
    assert says in err
    assert err.startswith(f"hierspec: warning: hierspec {words} is left out")


ALONE = """
import json, sys
sys.modules["hierspec_lab"] = None  # as if it were not installed
import hierspec
from hierspec.cli import run
for words in json.loads(sys.argv[1]):
    assert run(words) == 0, words
assert not any(name.startswith("hierspec_lab.") for name in sys.modules)
"""
CASE = {"vocab": 2, "models": [{"order": 0, "table": {"": [0.5, 0.5]}}] * 2}
CASE["levels"] = [{"num_speculative_tokens": 2}, {"verify": "block"}]


def test_the_product_runs_alone(tmp_path):
    (tmp_path / "case.json").write_text(json.dumps(CASE))
    lines = [
        "generate a --target zoo:tiny --max-new-tokens 2 --json",
        "generate a --hierarchy auto --target zoo:tiny --max-new-tokens 2",
        *("certify case.json", "chat --help", "serve --help", "batch --help"),
        "--help",
    ]
    command = [sys.executable, "-c", ALONE, json.dumps([line.split() for line in lines])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    commands = done.stdout.rpartition("\nCommands:\n")[2]
    listed = {line.split()[0] for line in commands.splitlines() if line.startswith("  ")}
    assert {"generate", "chat", "serve", "batch", "certify"} <= listed
    assert listed.isdisjoint({"bench", "plan", "profile", "timeline"})
