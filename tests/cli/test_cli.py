"""The command line as its users meet it: output, exit status, and one line per mistake."""

import json
import os
import signal
import subprocess
import sys

import pytest
from installed import needs_lab
from tiny_zoo import FOLDER

from hierspec.cli import run

SMALL = ["--target", "zoo:tiny-draft", "--draft", "zoo:tiny-draft", "--hierarchy", "speculative"]


def hierspec(capsys, *argv):
    status = run(list(argv))
    out, err = capsys.readouterr()
    return status, out, err


def test_json_has_the_documented_fields(capsys):
    status, out, _ = hierspec(
        capsys, "generate", "def f(x):", *SMALL, "--max-new-tokens", "12", "--json", "--ignore-eos"
    )
    data = json.loads(out)
    assert status == 0
    assert set(data) >= {
        "schema_version", "text", "token_ids", "finish_reason", "seed", "num_prompt_tokens",
        "num_tokens", "time_to_first_token", "decode_seconds", "tokens_per_second",
        "target_calls", "mean_acceptance_length", "levels",
    }  # fmt: skip
    assert data["num_tokens"] == 12 == len(data["token_ids"])
    (level,) = data["levels"]
    assert set(level) >= {
        "name", "calls", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate", "seconds",
    }  # fmt: skip


def test_streams_text_and_ends_with_a_summary(capsys):
    status, out, err = hierspec(
        capsys, "generate", "def f(x):", *SMALL, "--max-new-tokens", "12", "--compare",
        "--ignore-eos",
    )  # fmt: skip
    assert status == 0
    assert out.startswith("def f(x):")
    assert "tokens/s" in err
    assert "plain decoding" in err
    assert "same text" in err


def test_a_text_without_a_tokenizer_is_refused_before_loading(tmp_path, capsys, monkeypatch):
    from tiny_models import save_tiny

    from hierspec.config.checkpoints import Loaded

    monkeypatch.delattr(Loaded, "backend")
    status, _, err = hierspec(capsys, "generate", "-m", str(save_tiny("llama", tmp_path)), "hello")
    assert status == 2
    assert "the target has no tokenizer beside it" in err


def test_a_single_token_has_no_table(capsys):
    err = hierspec(capsys, "generate", "def f(x):", *SMALL, "-n", "1")[2]
    assert "1 token" in err
    assert "acceptance" not in err


def test_a_text_that_differs_is_explained(capsys, monkeypatch):
    monkeypatch.setattr(
        "hierspec.cli.rendering.generation._texts_differ", lambda results, references: True
    )
    argv = ["generate", "x", *SMALL, "--max-new-tokens", "2", "--compare"]
    lean = ["--dtype", "float64"]
    assert "the target runs outside the compiled kernels" in hierspec(capsys, *argv, *lean)[2]
    bug = "in the compiled kernels both texts are equal: this is a bug, report it"
    assert bug in hierspec(capsys, *argv)[2]
    assert "note" not in hierspec(capsys, *argv, "--json")[2]


def test_options_that_greedy_text_does_not_look_at_are_noted(capsys):
    argv = ["generate", "x", *SMALL, "--max-new-tokens", "2", "--top-p", "0.9", "--top-k", "5"]
    assert "--top-p, --top-k: no effect" in hierspec(capsys, *argv)[2]
    assert "no effect" not in hierspec(capsys, *argv, "--temperature", "1")[2]


def test_prompts_in_batches_are_json_lines(capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p}) for p in ("import os", "x = 1", "def")))
    status, out, _ = hierspec(
        capsys, "generate", "--prompts", str(file), "--batch-size", "2", *SMALL,
        "--max-new-tokens", "5", "--json", "--ignore-eos",
    )  # fmt: skip
    assert status == 0
    assert [json.loads(line)["num_tokens"] for line in out.splitlines()] == [5, 5, 5]


def test_a_prompts_seed_and_text_do_not_depend_on_the_batch_size(capsys, tmp_path):
    file, prompts = tmp_path / "prompts.jsonl", ("import os", "import os", "x = 1")
    file.write_text("\n".join(map(json.dumps, prompts)))
    options = [*SMALL, "--max-new-tokens", "6", "--temperature", "1", "--json", "--ignore-eos"]
    texts = [
        [
            (result["seed"], result["text"])
            for line in hierspec(
                capsys, "generate", "--prompts", str(file), "--batch-size", size, "--seed", "-1",
                *options,
            )[1].splitlines()
            for result in [json.loads(line)]
        ]
        for size in ("1", "2", "3")
    ]  # fmt: skip
    assert texts[0] == texts[1] == texts[2]
    assert [seed for seed, _ in texts[0]] == [-1, 0, 1]
    assert texts[0][0] != texts[0][1]
    alone = json.loads(hierspec(capsys, "generate", prompts[2], "--seed", "1", *options)[1])
    assert alone["text"] == texts[0][2][1]
    last = hierspec(capsys, "generate", "--prompts", str(file), "--seed", str(2**64 - 1), *options)
    assert [json.loads(line)["seed"] for line in last[1].splitlines()] == [2**64 - 1, 0, 1]


def test_trace_is_json_lines(capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    status, _, _ = hierspec(
        capsys, "generate", "import os", *SMALL, "--max-new-tokens", "9", "--trace", str(trace),
        "--json", "--ignore-eos",
    )  # fmt: skip
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert status == 0
    assert {event["kind"] for event in events} == {"draft", "check"}
    emitted = sum(len(event["emitted"]) for event in events if event["kind"] == "check")
    assert emitted == 9


def test_stop_strings_and_seeds(capsys):
    argv = ["generate", "def f(x):", *SMALL, "--max-new-tokens", "40", "--temperature", "1",
            "--seed", "11", "--json", "--ignore-eos"]  # fmt: skip
    whole = json.loads(hierspec(capsys, *argv)[1])
    assert json.loads(hierspec(capsys, *argv)[1])["token_ids"] == whole["token_ids"]
    needle = whole["text"][10:13]
    cut = json.loads(hierspec(capsys, *argv, "--stop", needle)[1])
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(needle)]
    kept = json.loads(hierspec(capsys, *argv, "--stop", needle, "--include-stop")[1])
    assert kept["text"] == cut["text"] + needle


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["generate"], "give a prompt"),
        (["generate", ""], "prompt is empty"),
        (["generate", "x", "--hierarchy", "turbo"], "there are: autoregressive"),
        (["generate", "x", "--hierarchy", "missing.json"], "cannot read the hierarchy file"),
        (["generate", "x", "--hierarchy", '{"target": {"model": "zoo:tiny-draft"}, "level": []}'],
         "did you mean 'levels'"),
        (["generate", "x", "--hierarchy", '{"target": {"model": "zoo:tiny-draft"}, "levels": '
          '[{"method": "early_exit", "exit_layer": 9, "num_speculative_tokens": 2}]}'],
         "exit layer"),
        (["generate", "x", "--target", "zoo:nope", "--hierarchy", "autoregressive"],
         "no model called"),
        (["generate", "x", "--target", "no/such/dir/at/all", "--hierarchy", "autoregressive"],
         "no/such/dir/at/all"),
        (["generate", "x", "--temperature", "-1", *SMALL], "temperature"),
        (["generate", "x", "--temperature", "inf", *SMALL], "a finite number of at least 0"),
        (["generate", "x", "--temperature", "nan", *SMALL], "a finite number of at least 0"),
        (["generate", "x", "--top-p", "2", *SMALL], "top_p"),
        (["generate", "x", "--dtype", "int3", *SMALL], "int3"),
        (["generate", "x", "--device", "abacus", *SMALL], "abacus"),
        (["generate", "x", "--chat", *SMALL], "chat template"),
        (["generate", "x", "--max-new-tokens", "0"], "max-new-tokens"),
        (["generate", "x", "--no-such-option"], "no-such-option"),
        (["generate", "x" * 20000, *SMALL], "context holds 2048"),
        (["generate", "--prompts", "nowhere.jsonl", *SMALL], "nowhere.jsonl"),
        (["certify", "nowhere.json"], "nowhere.json"),
        (["generate", "x", "--dtype", "float8_e4m3fn", *SMALL], "float8_e4m3fn"),
        (["generate", "x", "--device", "meta", *SMALL], "meta"),
        (["generate", "x", "--seed", str(2**64), *SMALL], "at most 64 bits"),
        (["generate", "x", "--logprobs", *SMALL], "--json"),
        (["generate", "x", "--json", "--trace", "-", *SMALL], "trace to a file"),
        (["generate", "x", "--draft", "zoo:tiny-draft", "--hierarchy", "autoregressive"],
         "uses no draft model"),
        (["generate", "x", "--draft", "zoo:tiny-draft", "--hierarchy", "prompt-lookup"],
         "uses no draft model"),
        (["generate", "x", "--draft", "zoo:tiny-draft", *SMALL], "uses one draft model"),
        (["generate", "x", "--threads", "100000", *SMALL], "--threads must lie between 1 and"),
        (["generate", "x", "--batch-size", "0"], "(see hierspec generate --help)"),
        (["frobnicate"], "(see hierspec --help)"),
        (["frobnicate"], "frobnicate"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_status_2(capsys, argv, says):
    status, out, err = hierspec(capsys, *argv)
    assert status == 2
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_hierarchy_file_by_another_name_is_told_its_endings(capsys, tmp_path):
    file = tmp_path / "h.conf"
    file.write_text('{"target": "zoo:tiny-draft"}')
    status, _, err = hierspec(capsys, "generate", "x", "--hierarchy", str(file))
    assert status == 2
    assert ".json or .toml" in err


def test_streams_that_are_closed_from_the_start(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    status, _, err = hierspec(capsys, "generate", "-", *SMALL)
    assert (status, err) == (2, "hierspec: error: standard input holds no prompt\n")
    monkeypatch.setattr(sys, "stderr", None)
    assert hierspec(capsys, "generate", "import os", *SMALL, "-n", "4")[0] == 0


def test_a_batch_shows_one_table(capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": p}) for p in ("import os", "x = 1")))
    argv = ["generate", "--prompts", str(file), "--batch-size", "2", "--ignore-eos", *SMALL,
            "--max-new-tokens", "4", "--presence-penalty", "0.5"]  # fmt: skip
    status, _, err = hierspec(capsys, *argv)
    assert status == 0
    assert err.count("acceptance") == 1
    assert "all 2 sequences together" in err
    lines = hierspec(capsys, *argv, "--json")[1].splitlines()
    assert [json.loads(line)["batch_size"] for line in lines] == [2, 2]


CASE = {
    "vocab": 2,
    "models": [{"table": {"": [0.5, 0.5]}}, {"table": {"": [0.25, 0.75]}}],
    "levels": [{"num_speculative_tokens": 2}, {"verify": "tokenwise"}],
}


@pytest.mark.parametrize(
    ("case", "read"), [("help", 0), ("lossless", 1), pytest.param("lossy", 0, marks=needs_lab)]
)
def test_a_reader_that_leaves_is_no_error(tmp_path, case, read):
    file = tmp_path / "case.json"
    lossy = {"levels": [CASE["levels"][0], {"verify": "uncapped"}]} if case == "lossy" else {}
    file.write_text(json.dumps({**CASE, **lossy}))
    argv = ["zoo", "--help"] if case == "help" else ["certify", "--law", str(file)]
    command = [sys.executable, "-c", "from hierspec.cli import main; main()", *argv]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read(read)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == (case == "lossy")


def test_an_empty_part_of_a_case_is_refused(capsys, tmp_path):
    file = tmp_path / "case.json"
    levels = [{"method": "concatenate", "parts": [[]]}, {"verify": "tokenwise"}]
    file.write_text(json.dumps({**CASE, "levels": levels}))
    status, _, err = hierspec(capsys, "certify", str(file))
    assert status == 2
    assert "none of them empty" in err


def test_a_vocabulary_in_doubt_is_a_note(capsys, tmp_path):
    from tiny_models import save_tiny

    target, draft = (
        str(save_tiny("llama", tmp_path / name, vocab_size=size))
        for name, size in (("target", 4096), ("draft", 96))
    )

    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "target" / name).write_bytes((FOLDER / "tiny" / name).read_bytes())
    status, _, err = hierspec(
        capsys, "generate", "x", "--target", target, "--draft", draft, "--hierarchy",
        "speculative", "--max-new-tokens", "3",
    )  # fmt: skip
    assert status == 0
    assert "hierspec: note: " in err
    assert "scores 96 tokens" in err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"model_type": "hal9000"}'),
        ("config.json", '{"model_type": "llama", "hidden_size": "big"}'),
        ("config.json", '{"model_type": "llama", "num_attention_heads": 0}'),
        ("model.safetensors.index.json", "[]"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}'),
    ],
)
@pytest.mark.parametrize("preset", ["autoregressive", "layerskip"])
def test_what_libraries_say_of_a_broken_model_is_one_line(capsys, tmp_path, name, content, preset):
    from tiny_models import save_tiny

    folder = save_tiny("llama", tmp_path / "model")
    if name != "config.json":
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(content)
    capsys.readouterr()
    argv = ["generate", "--ids", "5", "--target", str(folder), "--hierarchy", preset]
    status, _, err = hierspec(capsys, *argv)
    assert status == 2
    assert str(folder) in err
    assert err.count("\n") == 1


def test_ids_outside_the_vocabulary_are_refused_before_any_is_answered(capsys, tmp_path):
    from tiny_models import save_tiny

    folder, file = save_tiny("llama", tmp_path / "model"), tmp_path / "p.jsonl"
    file.write_text("[1]\n\n[5, 96]\n")
    capsys.readouterr()
    argv = ["generate", "--ids", "--target", str(folder), "--hierarchy", "autoregressive"]
    status, out, err = hierspec(capsys, *argv, "--prompts", str(file), "--json")
    assert (status, out) == (2, "")
    assert err == (
        f"hierspec: error: {file}, line 3: the prompt has token 96, outside the target's "
        "vocabulary of 96\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        ValueError("shapes (3,) and (4,) differ"),
        KeyError("shapes"),
        RuntimeError("shapes (3,) and (4,) differ"),
        ValueError("out of memory cells"),
        OSError("a library's own words"),  # those of the system have a number
        UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)"),
    ],
    ids=lambda error: f"{type(error).__name__}-{len(str(error))}",
)
def test_what_is_no_mistake_of_the_user_asks_for_a_report(capsys, monkeypatch, error):
    def fails(*args, **options):
        raise error

    monkeypatch.setattr("hierspec.exact.certificate.certify_tree", fails)
    monkeypatch.setattr("hierspec.exact.certificate.load_case", lambda path: CASE)
    status, out, err = hierspec(capsys, "certify", __file__)
    assert (status, out) == (1, "")
    assert f"{type(error).__name__}: " in err
    assert "this is a bug, please report it" in err
    assert "--debug shows where" in err
    assert err.count("\n") == 1
    with pytest.raises(type(error)):
        hierspec(capsys, "certify", __file__, "--debug")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "out of memory: try a smaller --batch-size"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory: try"),
        (PermissionError(13, "Permission denied", "case.json"), "Permission denied: 'case.json'"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), "is not UTF-8"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_machine_refuses_is_one_line(capsys, monkeypatch, error, line):
    def fails(path):
        raise error

    monkeypatch.setattr("hierspec.exact.certificate.load_case", fails)
    status, out, err = hierspec(capsys, "certify", __file__)
    assert (status, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1


def test_different_tokenizers_are_refused_naming_both(capsys, tmp_path):
    from tiny_models import save_tiny
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    folder = save_tiny("llama", tmp_path / "stranger", vocab_size=4096)
    words = {f"w{i}": i for i in range(4096)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    status, _, err = hierspec(
        capsys, "generate", "x", "--target", "zoo:tiny-draft", "--draft", str(folder),
        "--hierarchy", "speculative",
    )  # fmt: skip
    assert status == 2
    assert "zoo:tiny-draft" in err
    assert "stranger" in err


def test_help_is_there_without_loading_torch():
    code = """
import sys
from hierspec.cli import run
for command in ([], ["generate"], ["certify"], ["zoo"], ["doctor"]):
    assert run([*command, "--help"]) == 0, command
    assert "torch" not in sys.modules, (command, "help should be quick")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == 5


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "hierspec", "zoo", "list"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "zoo:smollm2" in done.stdout


def test_doctor_json(capsys, monkeypatch):
    monkeypatch.setenv("HIERSPEC_CACHE", "/" + 300 * "x")  # what the system refuses to look into
    status, out, _ = hierspec(capsys, "doctor", "--json")
    data = json.loads(out)
    assert status == 0
    assert set(data) >= {"versions", "devices", "threads", "fast_paths", "caches"}


def test_interrupt_keeps_the_text_so_far():
    command = [sys.executable, "-u", "-c", "from hierspec.cli import main; main()", "generate",
               "import os", "--target", "zoo:tiny", "--hierarchy", "autoregressive",
               "--max-new-tokens", "1900", "--ignore-eos"]  # fmt: skip
    process = subprocess.Popen(
        command,
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background jobs inherit an ignored SIGINT; whoever presses Ctrl-C has it not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    some = b""
    while len(some) < 30:  # unbuffered: text is here long before the end, for it streams
        some += os.read(process.stdout.fileno(), 30)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert some.startswith(b"import os")
    assert len(some + rest) < 6000
    assert b"Traceback" not in err
    assert b", cancelled," in err


def test_an_interrupt_while_the_command_is_imported_is_quiet(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("hierspec.cli._command", interrupted)
    assert hierspec(capsys, "doctor") == (130, "", "")


def test_a_trace_is_written_over_an_earlier_one_only(capsys, tmp_path):
    mine, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.jsonl"
    mine.write_text('\n{"prompt": "x"}\n')
    asked = ["generate", "import os", *SMALL, "--max-new-tokens", "4", "--trace"]
    status, _, err = hierspec(capsys, *asked, str(mine))
    assert status == 2
    assert "is not a trace" in err
    assert mine.read_text() == '\n{"prompt": "x"}\n'
    for _ in range(2):
        assert hierspec(capsys, *asked, str(trace))[0] == 0
