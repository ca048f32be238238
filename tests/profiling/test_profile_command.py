"""``hierspec profile``: from the command to a running hierarchy, and what it refuses."""

from __future__ import annotations

import json

import pytest
from fakes.tokenizers import bytes_tokenizer
from installed import needs_lab
from profiling_cases import PROMPTS, V, save_model
from tiny_models import tiny_model

from hierspec import cli
from hierspec.planner.estimates import Chain
from hierspec.profiling import agreement, costs
from hierspec.profiling.profile import from_dict, save
from hierspec.utils.files import locked

pytestmark = needs_lab


@pytest.fixture
def command(capsys, tmp_path, family):
    """Run ``hierspec profile`` on the tiny target: (status, output, error)."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, PROMPTS)))
    quick = ["--max-speculative-tokens", "3", "--tokens", "8", "--places", "1", "--repeats", "1",
             "--num-prompts", "2", "--prompts", str(prompts)]  # fmt: skip

    def run(*argv, target=family["target"], output=tmp_path / "out" / "profile.json"):
        capsys.readouterr()
        status = cli.run(["profile", "--target", target, "-o", str(output), *quick, *argv])
        return status, *capsys.readouterr()

    return run


def test_a_file_of_another_kind_stays(command, tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"kind": "hierspec-bench"}')
    status, _, error = command(output=path)
    assert (status, path.read_text()) == (2, '{"kind": "hierspec-bench"}')
    assert "is no profile, and would be replaced" in error


def test_from_the_command_to_a_running_hierarchy(command, family, tmp_path, capsys):
    path = tmp_path / "out" / "profile.json"
    draft = f"{family['draft']},temperature=0.8"
    status, out, err = command("--candidates", "exit:1", draft, "--temperature", "0")
    assert status == 0
    lines = err.splitlines()
    assert next(line for line in lines if "loading" in line).startswith("profiling ")
    assert any("drafts of exit:1" in line for line in lines)
    assert lines[-1] == f"written to {path}; next: hierspec plan {path}"
    assert "temperature 0" in out
    assert "exit:1" in out
    data = json.loads(path.read_text())
    assert data["prompts"]["name"] == "prompts.jsonl"
    assert len(data["prompts"]["sha256"]) == 64
    assert data["settings"]["max_speculative_tokens"] == 3
    assert cli.run(["plan", str(path), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {"levels", "num_speculative_tokens", "latency", "speedup", "lower_bound",
            "search_seconds", "hierarchy"} <= set(planned)  # fmt: skip
    chain = tmp_path / "hierarchy.json"
    runnable = from_dict(data).hierarchy(Chain((0, 2), (2,)))
    for hierarchy in (planned["hierarchy"], runnable):
        chain.write_text(json.dumps(hierarchy))
        argv = ["generate", "hello", "--hierarchy", str(chain), "--max-new-tokens", "4",
                "--json", "--ignore-eos"]  # fmt: skip
        assert cli.run(argv) == 0
        assert json.loads(capsys.readouterr().out)["num_tokens"] == 4


def test_names_with_brackets_are_shown_as_they_are(command, tmp_path):
    draft = save_model(tmp_path / "[bold]draft", noise=0.05)
    output = tmp_path / "[red]" / "p.json"
    status, out, err = command("--candidates", draft, "--temperature", "0", output=output)
    assert status == 0
    assert "[bold]draft" in out
    assert f"drafts of {draft}\n" in err
    assert f"written to {output};" in err


def test_the_profile_as_json(command):
    argv = ["--temperature", "1", "--temperature", "1.0", "--json"]
    status, out, _ = command("--candidates", "exit:1", *argv)
    assert status == 0
    data = json.loads(out)
    assert (data["kind"], list(data["temperatures"])) == ("hierspec-profile", ["1.0"])
    from_dict(data)


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        (["exit:9"], "between 1 and 3"),
        (["exit:x"], "exit:LAYER"),
        (["no/such-model"], "no/such-model"),
        (["ngram:none.safetensors"], "no n-gram table"),
        (["exit:1", "exit:1"], "given twice"),
        (['{"method": "concatenate"}'], "a concatenation cannot be one"),
    ],
)
def test_bad_candidates_of_the_command(command, tmp_path, candidates, words):
    status, out, err = command("--candidates", *candidates)
    assert (status, out) == (2, "")
    assert words in err.splitlines()[-1]
    assert sum(line.startswith("hierspec: error: ") for line in err.splitlines()) == 1
    assert not (tmp_path / "out" / "profile.json").exists()


def test_bad_targets_of_the_command(command, tmp_path, family):
    bare = tmp_path / "bare"
    tiny_model("llama", seed=1, vocab_size=V).save_pretrained(bare)
    for target, words in ((str(bare), "no tokenizer beside it"), ("no/such-model", "no/such")):
        status, _, err = command("--candidates", "exit:1", target=target)
        assert status == 2
        assert words in err.splitlines()[-1]
    stranger = save_model(tmp_path / "stranger", tokenizer=bytes_tokenizer(shift=1))
    status, _, err = command("--candidates", stranger)
    assert status == 2
    assert "stranger" in err.splitlines()[-1]
    assert family["target"] in err.splitlines()[-1]


def test_bad_options_of_the_command(command, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    for argv, words in (
        (["--prompts", str(empty)], "holds no prompt"),
        (["--temperature", "-1"], "--temperature must be 0"),
        (["--max-speculative-tokens", "33"], "max-speculative-tokens"),
    ):
        status, _, err = command("--candidates", "exit:1", *argv)
        assert status == 2
        assert words in err.splitlines()[-1]


def test_a_path_that_cannot_be_written_is_found_out_at_once(command, tmp_path, monkeypatch):
    def unwanted(*_, **__):
        raise AssertionError("no model should be loaded before")

    monkeypatch.setattr("hierspec.profiling.measure.load", unwanted)
    (tmp_path / "file").write_text("")
    for output in (tmp_path, tmp_path / "file" / "profile.json"):
        status, _, err = command("--candidates", "exit:1", output=output)
        assert status == 2
        assert "cannot write the profile to" in err


def test_an_interrupt_says_how_to_go_on(command, tmp_path, monkeypatch):
    timed = costs.time_calls

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(agreement, "agreements", interrupted)
    status, out, err = command("--candidates", "exit:1", "--temperature", "0")
    assert (status, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: the same command continues where it stopped"
    assert "Traceback" not in err
    monkeypatch.undo()
    path = tmp_path / "out" / "profile.json"
    assert cli.run(["plan", str(path)]) == 2
    assert "0.0 texts" in json.loads(path.read_text())["stages"]
    assert costs.time_calls is timed
    status, _, _ = command("--candidates", "exit:1", "--temperature", "0")
    assert status == 0
    assert cli.run(["plan", str(path)]) == 0


def test_a_second_process_is_told_of_the_first(command, family, tmp_path):
    output = tmp_path / "profile.json"
    with locked(output, "the profile", "not free"):
        status, _, error = command("--candidates", "exit:1", output=output)
    assert status == 2
    assert "another process is measuring into" in error


@pytest.fixture
def load_valid_profile():
    """What ``hierspec plan`` reads profiles with."""
    from hierspec_lab.planning import profiles

    return profiles.load_valid_profile


@pytest.mark.parametrize(
    ("key", "words"),
    [("processor", "processor was 'abacus'"), ("torch", "torch was 'abacus'"),
     ("hierspec", "hierspec was 'abacus'"), ("device", "device was 'abacus'")],
)  # fmt: skip
def test_profiles_of_other_machines(whole, file, load_valid_profile, key, words):
    save({**whole, "hardware": {**whole["hardware"], key: "abacus"}}, file)
    with pytest.raises(ValueError, match=r"add --force") as error:
        load_valid_profile(file)
    assert words in str(error.value)
    assert load_valid_profile(file, force=True).measured_at == [0.0, 1.0]


def test_profiles_of_other_weights(whole, file, load_valid_profile):
    others = [{**model, "weights": "0" * 16 if model["weights"] else None}
              for model in whole["models"]]  # fmt: skip
    save({**whole, "models": others}, file)
    with pytest.raises(ValueError, match=r"the weights of .* have changed"):
        load_valid_profile(file)
    load_valid_profile(file, force=True)


def test_models_are_found_by_their_names_not_their_owners(whole, file, load_valid_profile):
    def saved(**changes):
        named = [model["level"] and "model" in model["level"] for model in whole["models"]]
        models = [{**model, **changes} if name else model
                  for model, name in zip(whole["models"], named, strict=True)]  # fmt: skip
        save({**whole, "models": models}, file)

    saved(owner="draft (float32)")
    load_valid_profile(file)
    saved(level={"method": "draft_model", "model": "models/none"})
    with pytest.raises(ValueError, match="'models/none' not found from here: run from the folder"):
        load_valid_profile(file)


def test_threads_are_a_choice(whole, file, load_valid_profile):
    save({**whole, "hardware": {**whole["hardware"], "threads": 1000}}, file)
    load_valid_profile(file)
