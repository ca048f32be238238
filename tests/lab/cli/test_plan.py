"""``hierspec plan``: the contract's keys, what it says to people, and its refusals."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from fakes.profiles import FakeProfile

from hierspec import cli
from hierspec.planner.estimates import ideal
from hierspec_lab.cli.options import parse_size
from hierspec_lab.planning.problem import parse_problem

PROBLEM = {
    "costs": [0.25, 4, 33],
    "acceptance": [[None, 0.75, 0.55], [None, None, 0.8]],
    "names": ["small", "[mid]", "target"],
}
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def hierspec(capsys, tmp_path):
    """Run ``hierspec plan`` on an object or a text: (status, output, error)."""

    def run(problem, *options):
        path = tmp_path / "problem.json"
        path.write_text(problem if isinstance(problem, str) else json.dumps(problem))
        status = cli.run(["plan", str(path), *options])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def answer(hierspec, problem, *options):
    status, out, _ = hierspec(problem, "--json", *options)
    assert status == 0
    return json.loads(out)


def test_the_contract(hierspec):
    got = answer(hierspec, PROBLEM)
    assert got["levels"] == [0, 1, 2]
    assert len(got["num_speculative_tokens"]) == 2
    assert got["names"] == ["small", "[mid]", "target"]
    assert got["speedup"] == pytest.approx(33 / got["latency"])
    assert 0 < got["lower_bound"] <= got["latency"]
    assert got["search_seconds"] > 0
    assert got["speculate"] is True
    assert (got["order"], got["tail"], got["dropped_bonus"]) == ("chain", 0, [])
    assert got["latency_model"] == "exact"
    assert got["warnings"] == []
    assert "hierarchy" not in got
    latencies = [got["latency"], *(other["latency"] for other in got["runners_up"])]
    assert latencies == sorted(latencies)
    assert [0, 2] in [other["levels"] for other in got["runners_up"]]
    assert sum(got["share_of_time"]) == pytest.approx(1)


def test_options_change_what_the_file_says(hierspec):
    exact, formula = (
        answer(hierspec, PROBLEM),
        answer(hierspec, PROBLEM | {"latency_model": "corollary"}),
    )
    assert exact["latency"] < formula["latency"]
    assert (
        answer(hierspec, PROBLEM, "--latency-model", "corollary")["latency"] == formula["latency"]
    )
    assert len(answer(hierspec, PROBLEM, "--max-models", "2")["levels"]) == 2
    assert (
        max(answer(hierspec, PROBLEM, "--max-speculative-tokens", "2")["num_speculative_tokens"])
        <= 2
    )
    assert len(answer(hierspec, PROBLEM, "--top", "2")["runners_up"]) == 1
    sized = PROBLEM | {"memory_bytes": [2**20, 2**30, 2**33]}
    got = answer(hierspec, sized, "--memory-budget", "8.5GiB")
    assert got["levels"] == [0, 2]
    assert got["memory_bytes"] == 2**20 + 2**33
    assert answer(hierspec, sized)["levels"] == [0, 1, 2]


def test_for_people(hierspec):
    status, out, err = hierspec(PROBLEM | {"memory_bytes": [2**20, 2**30, 2**33]})
    assert (status, err) == (0, "")
    for words in ("[mid]", "drafts", "share", "1 GiB", "9.001 GiB", "▲", "█", "plain decoding",
                  "lower bound", "small (", "× plain", "until it holds"):  # fmt: skip
        assert words in out
    assert "formula" not in out
    _, out, _ = hierspec(PROBLEM, "--latency-model", "corollary")
    assert "P1's formula" in out


def test_when_speculation_does_not_pay(hierspec):
    problem = {"costs": [10, 12], "acceptance": [[None, 0.3]]}
    got = answer(hierspec, problem)
    assert (got["levels"], got["num_speculative_tokens"]) == ([1], [])
    assert (got["speculate"], got["latency"], got["speedup"]) == (False, 12, 1)
    status, out, _ = hierspec(problem)
    assert status == 0
    assert "plain decoding is the fastest: 12 a token" in out
    assert "model 0 (1) → model 1, is 41.0 % slower" in out
    _, out, _ = hierspec({"costs": [1, 12], "acceptance": [[None, None]]})
    assert "No model here can draft for the target" in out


@pytest.mark.parametrize("acceptance", [{}, {"acceptance": []}, {"acceptance": [[None]]}])
def test_one_model_decodes_plainly(hierspec, acceptance):
    got = answer(hierspec, {"costs": [5]} | acceptance)
    assert (got["levels"], got["latency"], got["lower_bound"]) == ([0], 5, 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cost": [1, 2]}, "did you mean 'costs'?"),
        ({"costs": []}, "costs must be a list of at least 1"),
        ({"costs": "3"}, "costs must be a list, not '3'"),
        ({"costs": [0.25, 0, 33]}, "costs[1]"),
        ({"costs": [0.25, -4, 33]}, "costs[1]"),
        ({"costs": [0.25, True, 33]}, "costs[1]"),
        ({"costs": [NAN, 4, 33]}, "costs[0]"),
        ({"costs": [0.25, 4, INFINITY]}, "costs[2] must be a finite number"),
        ({"costs": [0.25, 4]}, "names must be a list of 2 strings"),
        ({"costs": [0.25], "names": ["a"]}, "acceptance must be a list of 1 rows"),
        ({"acceptance": None}, "acceptance must be a list of 3 rows"),
        ({"acceptance": [[None, 0.5, 0.5], [None, 0.5]]}, "acceptance[1] must be a row of 3"),
        ({"acceptance": [[None, 0.5, 0.5], 0.5]}, "acceptance[1] must be a list, not 0.5"),
        ({"acceptance": [[0, 0.5, 0.5]]}, "acceptance must be a list of 3 rows"),
        ({"acceptance": [[0, 1.2, 0.5], [0, 0, 0.5]]}, "acceptance[0][1] (small by [mid])"),
        ({"acceptance": [[0, 0.5, -0.1], [0, 0, 0.5]]}, "acceptance[0][2]"),
        ({"acceptance": [[0, 0.5, NAN], [0, 0, 0.5]]}, "acceptance[0][2] (small by target)"),
        ({"acceptance": [[0, 0.5, "x"], [0, 0, 0.5]]}, "acceptance[0][2]"),
        ({"acceptance": [[0, 0.5, True], [0, 0, 0.5]]}, "acceptance[0][2]"),
        ({"names": ["a", "b"]}, "names must be a list of 3 strings"),
        ({"names": ["a", "b", 3]}, "names[2]"),
        ({"names": ["a", "b", "a"]}, "names[2]: 'a' is the name of another"),
        ({"max_speculative_tokens": 0}, "at least 1"),
        ({"max_speculative_tokens": 2.5}, "max_speculative_tokens must be an integer"),
        ({"max_speculative_tokens": 1000}, "at most 100"),
        ({"latency_model": "wald"}, "'exact' or 'corollary'"),
        ({"latency_model": ["exact"]}, "'exact' or 'corollary'"),
        ({"memory_bytes": [1, 2]}, "list of 3 sizes"),
        ({"memory_bytes": [1, 2, -3]}, "memory_bytes[2]"),
    ],
)
def test_bad_problems(hierspec, change, words):
    status, out, err = hierspec(PROBLEM | change)
    assert (status, out) == (2, "")
    assert err.startswith("hierspec: error: ")
    assert "problem.json: " in err
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "3", '{"kind": "other"}', "\ud800".encode("utf-16", "surrogatepass").hex()],
)
def test_files_that_are_no_problems(hierspec, text):
    status, out, err = hierspec(text)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_a_hierarchy_is_told_from_a_problem(hierspec):
    assert "is a hierarchy already" in hierspec({"target": "zoo:small", "levels": []})[2]
    case = {"vocab": 2, "models": [], "levels": []}  # of certify
    assert "unknown key 'vocab'; keys: costs" in hierspec(case)[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--latency-model", "wald"], "'exact' or 'corollary'"),
        (["--max-models", "0"], "max-models"),
        (["--top", "0"], "top"),
        (["--max-speculative-tokens", "101"], "at most 100"),
        (["--memory-budget", "2GiB"], "memory_bytes"),
        (["--memory-budget", "much"], "2GiB or 500MB"),
        (["--temperature", "1"], "for profiles"),
        (["--force"], "for profiles"),
    ],
)
def test_bad_options(hierspec, options, words):
    status, out, err = hierspec(PROBLEM, *options)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err


def test_a_missing_file_and_too_little_memory(hierspec, capsys):
    assert cli.run(["plan", "no-such-file.json"]) == 2
    assert "cannot read 'no-such-file.json'" in capsys.readouterr().err
    status, _, err = hierspec(PROBLEM | {"memory_bytes": [1, 2, 300]}, "--memory-budget", "200B")
    assert status == 2
    assert "the target alone needs 300 bytes" in err


def test_warnings(hierspec):
    rates = [[None, 0.9, 0.3], [None, None, 0.9]]
    status, _, err = hierspec(PROBLEM | {"acceptance": rates})
    assert status == 0
    assert err.count("\n") == 1
    assert "warning: acceptance of small by target is 0.3, but at least 0.8" in err
    assert "with [mid]" in err
    got = answer(hierspec, PROBLEM | {"acceptance": rates, "costs": [4, 1, 33]})
    assert ["costs should rise" in text for text in got["warnings"]] == [True, False]
    # also the other way round: two models near a third are near each other
    odd = parse_problem(PROBLEM | {"acceptance": [[None, 0.2, 0.9], [None, None, 0.9]]}).warnings
    assert len(odd) == 1
    assert "acceptance of small by [mid] is 0.2, but at least 0.8" in odd[0]
    rounded = PROBLEM | {"acceptance": [[None, 0.9, 0.79], [None, None, 0.9]]}
    assert parse_problem(rounded).warnings == ()


def test_limits_hold_for_other_engines_too(hierspec, monkeypatch):
    profile = FakeProfile()
    levels = [*({"method": "draft_model", "model": name} for name in profile.NAMES[:2]), None]
    profile.models = [SimpleNamespace(level=level) for level in levels]
    profile.target = {"model": "target"}
    known = ideal(profile.COSTS, profile.RATES, profile.NAMES, 9, memory=[1, 20, 100])
    profile.estimates = lambda *_, **__: known
    monkeypatch.setattr(
        "hierspec_lab.planning.profiles.load_valid_profile", lambda *_, **__: profile
    )
    data = {"kind": "hierspec-profile"}

    def exported(*options):
        return answer(hierspec, data, "--to", "vllm", *options)["export"]["levels"]

    assert exported() == [1, 2]
    assert exported("--memory-budget", "119B") == [0, 2]
    assert exported("--max-models", "1") == [2]


def test_sizes():
    assert parse_size("2GiB") == 2**31
    assert parse_size("500MB") == 500_000_000
    assert parse_size(" 1.5 kib ") == 1536
    assert parse_size("12") == parse_size("12B") == 12
    for text in ("", "GiB", "-1GB", "1XB", "1e3", "0"):
        with pytest.raises(ValueError, match="2GiB or 500MB"):
            parse_size(text)


def test_a_profile(hierspec, monkeypatch, tmp_path):
    profile, calls = FakeProfile(), []

    def load_profile(path, force=False):
        calls.append(force)
        return profile

    monkeypatch.setattr("hierspec_lab.planning.profiles.load_valid_profile", load_profile)
    data = {"kind": "hierspec-profile"}
    got = answer(hierspec, data, "--force")
    assert got["hierarchy"] == {"target": {"model": "target"}, "levels": [{"chain": got["levels"]}]}
    assert got["lower_bound"] <= got["latency"]
    plain_chains = answer(hierspec, data, "--temperature", "0.8", "--latency-model", "corollary")
    assert plain_chains["order"] == "chain"
    assert "temperature 1" in plain_chains["warnings"][0]
    status, out, _ = hierspec(data, "--max-speculative-tokens", "5")
    assert status == 0
    assert " ms a token" in out
    assert calls == [True, False, False]
    assert profile.asked == [(0.0, None), (0.8, None), (0.0, 5)]
    status, _, err = hierspec(data, "--temperature", "-1")
    assert status == 2
    assert "--temperature must be 0" in err
    status, _, err = hierspec(data, "-o", str(tmp_path / "best.json"))
    assert (status, json.loads((tmp_path / "best.json").read_text())) == (0, got["hierarchy"])
    assert f"hierspec generate --hierarchy {tmp_path / 'best.json'} runs it" in err
    assert "-o writes a .json file" in hierspec(data, "-o", "best.txt")[2]
    own = tmp_path / "problem.json"
    assert "-o would replace the profile" in hierspec(data, "-o", str(own))[2]
    assert json.loads(own.read_text()) == data
    assert "-o is for profiles" in hierspec(PROBLEM, "-o", "best.json")[2]
