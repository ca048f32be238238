"""`hierspec chat`, and conversations as prompts, on a tiny model with a chat template."""

import io
import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hierspec import Hierarchy, HierspecError
from hierspec.cli import run
from hierspec.utils.testing import save_tiny

TEMPLATE = (
    "{% if tools %}w90 {{ tools | length }} {% endif %}"
    "{% for m in messages %}{{ 'w91' if m.role == 'user' else 'w92' }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}w92{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    save_tiny("llama", folder, seed=1, dtype=torch.float32)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(96)}, unk_token="w3"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    return folder


def test_messages_a_text_and_tools_go_through_the_template(folder):
    fast = Hierarchy(str(folder))
    options = {"max_new_tokens": 4, "ignore_eos": True}
    said = [{"role": "user", "content": "w5 w9"}]
    whole = fast.generate([91, 5, 9, 92], **options)
    assert fast.generate(said, **options).token_ids == whole.token_ids
    assert fast.generate("w5 w9", chat=True, **options).token_ids == whole.token_ids
    turns = [{"role": "system", "content": "w7"}, *said, {"role": "assistant", "content": "w8"}]
    assert fast.generate(turns, **options).num_prompt_tokens == 8
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert fast.generate(said, tools=[tool], **options).num_prompt_tokens == 6
    with pytest.raises(HierspecError, match=r"messages\[0\]: 'role' is missing"):
        fast.generate([{"content": "w5"}])
    with pytest.raises(HierspecError, match=r"\[message\]"):
        fast.generate_batch(said)


def test_a_file_may_hold_conversations(folder, tmp_path, capsys):
    file = tmp_path / "prompts.jsonl"
    rows = [{"messages": [{"role": "user", "content": "w5 w9"}]}, {"prompt": "w5"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    argv = ["generate", "--prompts", str(file), "--target", str(folder), "--json"]
    assert run([*argv, "--hierarchy", "prompt-lookup", "--max-new-tokens", "3"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["num_prompt_tokens"] for line in lines] == [4, 1]
    file.write_text(json.dumps({"messages": "w5"}))
    assert run([*argv, "--hierarchy", "prompt-lookup"]) == 2
    assert "messages must be a list" in capsys.readouterr().err


def test_a_conversation_keeps_its_caches(folder, monkeypatch, capsys):
    lines = "w5 w9 w7\n/help\nw11\n/reset\nw11\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    argv = ["chat", "--target", str(folder), "--max-new-tokens", "6", "--dtype", "float32"]
    assert run(argv) == 0
    out, err = capsys.readouterr()
    notes = [line for line in err.splitlines() if "prompt tokens were in the cache" in line]
    assert len(notes) == 3
    assert "0 of 5 prompt tokens" in notes[0]
    kept = int(notes[1].split("; ")[-1].split(" of ")[0])
    assert kept >= 5
    assert "tokens/s" in notes[0]
    assert "/reset   forget" in err
    assert len(out.splitlines()) == 3


def test_a_stop_string_ends_an_answer_and_is_left_out(folder, monkeypatch, capsys):
    argv = ["chat", "--target", str(folder), "--max-new-tokens", "6", "--dtype", "float32"]
    answers = []
    for more in ([], ["--stop", "w"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("w5 w9 w7\n"))
        assert run([*argv, *more]) == 0
        answers.append(capsys.readouterr().out.strip())
    assert answers[0].startswith("w")
    assert answers[1] == ""


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "Python"])
def test_a_target_alone_gets_the_same_drafter_from_every_command(folder, command, monkeypatch):
    """One rule in one place: an own model gets a drafter without more words."""
    from hierspec.config.schema import TargetConfig
    from hierspec.presets import defaults
    from hierspec.server.loading import load
    from hierspec.server.settings import ServeSettings

    expected = defaults.best_unmeasured(TargetConfig(model=str(folder)))
    assert expected.levels
    seen = []
    if command == "Python":
        assert Hierarchy(str(folder)).config == expected
        return
    if command == "serve":
        settings = ServeSettings(model=str(folder))
        assert load(settings)["default"].config == expected
        return
    real = Hierarchy.from_config
    monkeypatch.setattr(Hierarchy, "from_config", lambda *a: seen.append(a[0]) or real(*a))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    argv = ["--max-new-tokens", "3", "--target", str(folder)]
    assert run([command, *(["w5 w9"] if command == "generate" else []), *argv]) == 0
    assert seen == [expected]


def test_a_model_without_a_template_cannot_chat(tmp_path, capsys):
    save_tiny("llama", tmp_path, dtype=torch.float32)
    assert run(["chat", "--target", str(tmp_path)]) == 2
    assert "no chat template" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--hierarchy", "auto"], "chat does not measure"),
        (["--hierarchy", "nope"], "no preset called 'nope'"),
        (["--hierarchy", "suffix", "--draft", "zoo:small"], "uses no draft model"),
        (["--target", "./no-such-folder"], "no directory './no-such-folder'"),
    ],
)
def test_wrong_options_of_a_chat_are_one_clear_line(folder, options, says, capsys):
    assert run(["chat", "--target", str(folder), *options]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
