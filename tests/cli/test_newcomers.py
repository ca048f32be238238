"""What a new user types first: help, names that lead nowhere, files of another kind, full disks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from fuzzing import Playground
from installed import needs_lab

from hierspec.cli import run
from hierspec.cli.options import METHODS, SHIPPED_DRAFTS, split_values
from hierspec.config import drafts, methods
from hierspec.drafters.ngram_table import NgramModel
from hierspec.errors import HierspecError
from hierspec.presets.systems import DEFAULT_DRAFTS


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    return Playground(tmp_path_factory.mktemp("front"))


def hierspec(capsys, *argv):
    status = run(list(map(str, argv)))
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("words", [[], ["zoo"], pytest.param(["ngram"], marks=needs_lab)])
def test_a_group_alone_prints_its_help(capsys, words):
    status, out, err = hierspec(capsys, *words)
    assert (status, err) == (0, "")
    assert out.startswith(" ".join(["Usage: hierspec", *words]))
    assert "Commands:" in out


def test_short_help_and_completion(capsys):
    status, out, _ = hierspec(capsys, "-h")
    assert status == 0
    assert "--install-completion" in out
    assert hierspec(capsys, "generate", "-h")[1] == hierspec(capsys, "generate", "--help")[1]


def test_help_names_what_drafts(capsys):
    names = methods.short_forms()
    assert {"ngram", "suffix", "exit:LAYER"} <= {*names}
    assert all(drafts.is_method(name.replace("LAYER", "4")) for name in names)
    for command in ("generate", "chat", "serve", "batch"):
        shown = " ".join(hierspec(capsys, command, "--help")[1].split())
        assert METHODS not in shown
        assert "ngram:TABLE" in shown
        assert "--plugin FILE.py" in shown
    assert all(name in SHIPPED_DRAFTS for name in DEFAULT_DRAFTS)


@pytest.mark.parametrize("option", ["--target", "--draft"])
@pytest.mark.parametrize("preset", ["hierarchy", "speculative", "autoregressive"])
def test_a_folder_that_is_not_there_is_named(capsys, option, preset):
    if (option, preset) == ("--draft", "autoregressive"):
        return
    argv = [
        "generate",
        "x",
        "--target",
        "zoo:tiny-draft",
        "--hierarchy",
        preset,
        option,
        "/nonexistent",
    ]
    status, _, err = hierspec(capsys, *argv)
    assert status == 2
    assert "no directory '/nonexistent'" in err


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("more layers", "lacks a weight that its config.json requires: model.layers.2"),
        ("fewer layers", "which a model with its config.json does not have"),
        ("wider", "model.embed_tokens.weight has shape"),
        ("more heads", "self_attn.q_proj.weight has shape"),
        ("other vocabulary", "but its config.json asks for (99, 8)"),
        ("cut weights", "is damaged"),
        ("pickled weights", "pytorch_model.bin is not a safetensors file"),
        ("cut tokenizer", "the tokenizer in"),
        ("adapter", "names no base model: set base_model_name_or_path"),
    ],
)
def test_what_is_wrong_with_a_folder(capsys, play, folder, said):
    where = play.folder / folder
    status, _, err = hierspec(
        capsys, "generate", "x", "--target", where, "--hierarchy", "autoregressive"
    )
    assert (status, len(err.splitlines())) == (2, 1)
    assert said in err


def test_weights_that_a_library_would_make_up_are_refused(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    from hierspec.lm.load import load

    GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)).save_pretrained(
        tmp_path
    )
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "n_layer": 2}))
    with pytest.raises(HierspecError, match=r"lacks a weight .*transformer\.h\.1\."):
        load(tmp_path)


def test_token_ids_in_and_out(capsys, play):
    argv = ["generate", "--target", play.target, "--hierarchy", "autoregressive", "--ids",
            "--ignore-eos", "--max-new-tokens", "4"]  # fmt: skip
    status, out, _ = hierspec(capsys, *argv, "5, 6 7")
    written = list(map(int, out.split()))
    assert (status, written[:3], len(written)) == (0, [5, 6, 7], 7)
    file = play.folder / "two.jsonl"
    file.write_text('[5, 6, 7]\n{"prompt_token_ids": [5]}\n')
    status, out, _ = hierspec(capsys, *argv, "--prompts", file, "--json")
    assert status == 0
    assert json.loads(out.splitlines()[0])["token_ids"] == written[3:]
    status, _, err = hierspec(capsys, *argv, "5 x")
    assert status == 2
    assert "token ids are numbers, as in 1 2 3; got 'x'" in err


def test_another_models_tokenizer(capsys, play):
    argv = ["generate", "def f", "--target", play.folder / "no tokenizer", "--hierarchy",
            "autoregressive", "--max-new-tokens", "2"]  # fmt: skip
    status, _, err = hierspec(capsys, *argv)
    assert status == 2
    assert "no tokenizer" in err
    status, out, _ = hierspec(capsys, *argv, "--tokenizer", play.target)
    assert status == 0
    assert out.startswith("def f")


@needs_lab
def test_a_table_of_ones_own(capsys, play, tmp_path):
    texts, table = tmp_path / "texts", tmp_path / "table.safetensors"
    (texts / "below").mkdir(parents=True)
    (texts / "one.py").write_text("def f(x):\n    return x\n" * 20)
    (texts / "below" / "empty.txt").write_text("")
    (texts / "below" / "compiled.pyc").write_bytes(bytes(range(256)))
    argv = ["ngram", "build", texts, "--tokenizer", play.target, "-o", table, "--json"]
    status, out, _ = hierspec(capsys, *argv)
    made = json.loads(out)
    assert (status, made["texts"], made["max_order"]) == (0, 1, 3)
    assert NgramModel.load(table).vocabulary
    level = {"method": "ngram_table", "table": str(table), "num_speculative_tokens": 2}
    whole = json.dumps({"target": {"model": play.target}, "levels": [level]})
    generate = ["generate", "def f", "--hierarchy", whole, "--max-new-tokens", "3", "--json"]
    assert hierspec(capsys, *generate)[0] == 0

    other = tmp_path / "other"
    shutil.copytree(play.target, other)
    file = other / "tokenizer.json"
    text = json.loads(file.read_text())
    vocab = text["model"]["vocab"]
    first, second = list(vocab)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(text))
    status, _, err = hierspec(capsys, *generate, "--target", other)
    assert status == 2
    assert "was counted in another vocabulary" in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--trace", "/dev/full"], "cannot write the trace to /dev/full: No space left"),
        (["--trace", "/nonexistent/t"], "cannot write the trace to /nonexistent/t: No such file"),
    ],
)
def test_a_trace_that_cannot_be_written(capsys, play, argv, said):
    status, _, err = hierspec(
        capsys, "generate", "x", "--target", play.target, "--hierarchy", "autoregressive",
        "--max-new-tokens", "4", "--ignore-eos", *argv,
    )  # fmt: skip
    assert status == 2
    assert said in err.splitlines()[-1]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_standard_output(unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hierspec", "doctor", "-h"], stdout=full, stderr=subprocess.PIPE,
            text=True, check=False, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "hierspec: error: cannot write to standard output: No space left on device"
    )


@pytest.mark.parametrize("name", ["deep.json", "deeper.json", "deep.toml", "long.json"])
def test_nested_too_deeply(capsys, play, name):
    for command in (["generate", "x", "--hierarchy"], ["certify"]):
        status, _, err = hierspec(capsys, *command, play.folder / name)
        assert (status, len(err.splitlines())) == (2, 1)
        assert "nested too deeply" in err or "not valid" in err
        assert "recursion" not in err


@pytest.mark.parametrize("key", ["num_speculative_tokens", "prompt_lookup_max"])
def test_counts_that_nobody_could_wait_for(capsys, key):
    level = {"method": "prompt_lookup", "num_speculative_tokens": 2, key: 10**30}
    whole = json.dumps({"target": "zoo:tiny-draft", "levels": [level]})
    status, _, err = hierspec(capsys, "generate", "x", "--hierarchy", whole)
    assert status == 2
    assert f"hierarchy.levels[0].{key}: it must be at most 4096" in err


def test_a_level_without_a_method_is_told_the_methods(capsys):
    whole = json.dumps({"target": "zoo:tiny-draft", "levels": [{"num_speculative_tokens": 2}]})
    status, _, err = hierspec(capsys, "generate", "x", "--hierarchy", whole)
    assert status == 2
    assert "levels[0]: 'method' is missing; there are: " in err
    assert "prompt_lookup, quantized" in err
    assert err.rstrip().endswith("concatenate")


def test_an_empty_hierarchy_is_none(capsys):
    status, _, err = hierspec(capsys, "generate", "x", "--hierarchy", "")
    assert status == 2
    assert "no preset called ''; there are: autoregressive" in err


@needs_lab
def test_why_plain_decoding_stands_alone(capsys, tmp_path):
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({"costs": [9, 10], "acceptance": [[None, 0.1], [None, None]]}))
    assert (
        "No hierarchy is expected to be faster; --top 2"
        in (hierspec(capsys, "plan", problem, "--top", "1")[1])
    )
    assert "--max-models 1 left none" in hierspec(capsys, "plan", problem, "--max-models", "1")[1]
    assert "The best hierarchy" in hierspec(capsys, "plan", problem)[1]


@pytest.mark.parametrize(
    ("draft", "method"),
    [("suffix", "suffix"), ("ngram", "prompt_lookup"), ("exit:1", "early_exit")],
)
def test_what_needs_no_model_is_a_draft_by_its_name(capsys, play, draft, method):
    argv = ["generate", "def f", "--target", play.target, "--draft", draft, "--max-new-tokens", "3"]
    status, _, err = hierspec(capsys, *argv)
    assert status == 0
    assert f"drafts by {method} → the target" in err
    status, _, err = hierspec(capsys, *argv, "--hierarchy", "speculative")
    assert status == 2
    assert "on the command line leave --hierarchy out" in err


@needs_lab
def test_whose_drafts_they_are_where_no_target_is_named(capsys, play):
    argv = ["generate", "x", "--draft", play.draft, "--max-new-tokens", "2"]
    err = hierspec(capsys, *argv)[2]
    assert "no --target is named: it is zoo:large" in err


def test_commas_between_drafts(capsys, play):
    argv = ["generate", "x", "--target", play.target, "--draft", f"ngram,{play.draft}"]
    levels = "drafts by prompt_lookup → draft_model → the target"
    assert levels in hierspec(capsys, *argv, "--max-new-tokens", "2")[2]
    argv = ["generate", "x", "--target", play.target, "--draft", "./a,./b"]
    assert "no directory './a'" in hierspec(capsys, *argv)[2]


def test_one_way_to_give_several_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one,folder").mkdir()
    assert split_values(["a, b", "c" * 5000]) == ["a", "b", "c" * 5000]
    assert split_values(["ngram,zoo:tiny-draft,temperature=0.8,dtype=float32,suffix"]) == [
        "ngram",
        "zoo:tiny-draft,temperature=0.8,dtype=float32",
        "suffix",
    ]
    whole = ["one,folder", '{"method": "suffix", "max_order": 3}', ""]
    assert split_values(whole) == whole


def test_a_draft_larger_than_its_target_is_noticed(capsys):
    argv = ["generate", "x", "--target", "zoo:tiny-draft", "--draft", "zoo:tiny"]
    status, _, err = hierspec(capsys, *argv, "--max-new-tokens", "2")
    assert status == 0
    assert "is larger than its target" in err


def test_a_profile_is_no_hierarchy(capsys, tmp_path):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"kind": "hierspec-profile", "schema_version": 1, "target": {}}))
    status, _, err = hierspec(capsys, "generate", "x", "--hierarchy", file)
    assert (status, len(err.splitlines())) == (2, 1)
    assert "this is a 'hierspec-profile' file, not a hierarchy: hierspec plan reads" in err


def test_a_text_that_the_context_ends(capsys, play):
    argv = ["generate", "x", "--target", play.target, "--max-new-tokens", "500", "--ignore-eos"]
    assert "a text ended because the model's context is full" in hierspec(capsys, *argv)[2]
    few = [*argv[:-2], "3", "--ignore-eos"]
    assert "context" not in hierspec(capsys, *few)[2]


def test_what_a_model_says_of_sampling_is_not_dropped_without_a_word(capsys, play, tmp_path):
    folder = tmp_path / "sampling"
    shutil.copytree(play.target, folder)
    file = folder / "generation_config.json"
    said = json.loads(file.read_text())
    argv = ["generate", "x", "--target", folder, "--max-new-tokens", "2"]
    assert "generation_config" not in hierspec(capsys, *argv)[2]
    file.write_text(json.dumps({**said, "do_sample": True, "repetition_penalty": 1.2}))
    err = hierspec(capsys, *argv)[2]
    assert "generation_config do_sample=True, repetition_penalty=1.2 is not applied" in err


def test_one_token_has_no_speed_and_labels_no_folders(capsys, play):
    argv = ["generate", "x", "--target", play.target, "--draft", play.draft, "--max-new-tokens"]
    one, several = (hierspec(capsys, *argv, number)[2] for number in ("1", "4"))
    assert "tokens/s" not in one
    assert "tokens/s" in several
    rows = [line for line in several.splitlines() if line.startswith(("draft ", "target (target)"))]
    assert len(rows) == 2


def test_a_batch_says_once_how_fast_it_was(capsys, play, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"def f"\n"import"\n')
    argv = ["generate", "--target", play.target, "--prompts", prompts, "--batch-size", "2"]
    _, _, err = hierspec(capsys, *argv, "--max-new-tokens", "4", "--ignore-eos", "--compare")
    assert err.count("tokens per target call") == err.count("plain decoding") == 1
    assert err.count("4 tokens, stopped at the length limit, same text") == 2


def test_advice_where_drafts_do_not_pay_and_where_they_pay_too_easily():
    from types import SimpleNamespace

    from hierspec.cli.rendering.generation import describe_speed

    def of(speed, tokens, control=None, slowdown=None):
        return SimpleNamespace(
            tokens_per_second=speed,
            mean_acceptance_length=1.0,
            time_to_first_token=0.1,
            num_tokens=len(tokens),
            token_ids=tokens,
            levels=[{}],
            control=control,
            batch_size=1,
            slowdown=slowdown,
        )

    plain, varied = of(100.0, list(range(40))), list(range(40))
    adapted = {"rounds": {}, "switches": 0}
    for result, measured in (
        (of(50.0, varied), plain),
        (of(50.0, varied, slowdown=1.31), None),
        (of(50.0, varied, control=adapted), plain),
        (of(50.0, varied, control=adapted, slowdown=1.31), None),
    ):
        says = describe_speed(result, measured).plain
        assert ("at least 1.31 times" in says) == (measured is None)
        assert "--hierarchy autoregressive leaves drafts out" in says
        assert ("--hierarchy auto measures" in says) == (result.control is None)
    assert len(describe_speed(of(50.0, varied, slowdown=1.04), None).plain.splitlines()) == 1
    assert "the text repeats itself" in describe_speed(of(300.0, [1, 2] * 20), plain).plain
    assert len(describe_speed(of(300.0, varied), plain).plain.splitlines()) == 2
