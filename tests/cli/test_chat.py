"""`hierspec chat`, and conversations as prompts, on a tiny model with a chat template."""

import io
import json
import shutil

import pytest
from chat_cases import save_chat_model
from transformers import GenerationConfig, PreTrainedTokenizerFast

from hierspec import Hierarchy, HierspecError
from hierspec.cli import run
from hierspec.config import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("chat"))


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
    for half in ("w5 \ud83d", [{"role": "user", "content": "w5 \ud83d"}]):
        with pytest.raises(HierspecError, match="half a character"):
            fast.generate(half)
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
    lines = "\ufeff/help\nw5 w9 w7\nw11\n/reset\nw11\n"
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
    assert "/reset           forget" in err
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


def test_the_template_has_further_variables(folder, monkeypatch, capsys):
    thoughtless = json.dumps({"enable_thinking": False, "nobody_reads_this": [1]})
    argv = ["--target", str(folder), "--max-new-tokens", "3"]
    generate = ["generate", "w5 w9", "--chat", "--json", *argv]
    numbers = []
    for more in ([], ["--chat-template-kwargs", thoughtless]):
        assert run([*generate, *more]) == 0
        numbers.append(json.loads(capsys.readouterr().out)["num_prompt_tokens"])
        monkeypatch.setattr("sys.stdin", io.StringIO("w5 w9\n"))
        assert run(["chat", *argv, *more]) == 0
        numbers.append(int(capsys.readouterr().err.split(" prompt tokens")[0].split()[-1]))
    assert numbers == [4, 4, 5, 5]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--chat", "--chat-template-kwargs", "no JSON"], "takes a JSON object"),
        (["--chat", "--chat-template-kwargs", "[1]"], "takes a JSON object"),
        (["--chat-template-kwargs", '{"a": 1}'], "add --chat"),
        (["--stop-token-id", "4000"], "4000 is not a token"),
    ],
)
def test_wrong_options_of_a_template_and_of_ends_are_one_clear_line(folder, options, says, capsys):
    assert run(["generate", "w5 w9", "--target", str(folder), *options]) == 2
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    assert last.startswith("hierspec: error")
    assert says in last


@pytest.fixture(scope="module")
def turns(folder, tmp_path_factory):
    """The same model, the fourth token of whose answer is special → its folder, the answer."""
    answer = Hierarchy(str(folder)).generate([91, 5, 9, 92], max_new_tokens=6).token_ids
    assert answer[3] not in answer[:3]
    out = tmp_path_factory.mktemp("turns") / "model"
    shutil.copytree(folder, out)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"w{answer[3]}"]})
    tokenizer.save_pretrained(out)
    return out, answer


def test_a_special_token_and_any_token_may_end_the_text(turns, capsys):
    """Inside a draft too: the draft model is the target itself."""
    out, answer = turns
    said = [{"role": "user", "content": "w5 w9"}]
    texts = [f"w{token}" for token in answer]
    special, before, shorter = texts[3], " " + " ".join(texts[:3]), " " + " ".join(texts[:2])
    drafting = Hierarchy(str(out), drafts=[str(out)])
    stops = GenerationConfig(max_new_tokens=6, stop_strings=[special])
    for options, text in (
        ({"stop": special}, before),
        ({"stop": [special + texts[4], special]}, before),
        ({"stop": f"{texts[2]}{special}"}, shorter + " "),
        ({"stop": special, "include_stop_str": True, "ignore_eos": True}, before + special),
        ({"stop_token_ids": answer[3]}, before),
        ({"stop_token_ids": [answer[2]]}, shorter),
        ({"stop_token_ids": answer[2:3], "include_stop_str": True, "ignore_eos": True}, before),
        ({"generation_config": stops}, before),
    ):
        for models in (Hierarchy(str(out)), drafting):
            lengths = {} if "generation_config" in options else {"max_new_tokens": 6}
            found = models.generate(said, **options, **lengths)
            assert (found.text, found.finish_reason) == (text, "stop"), options
            assert found.token_ids == answer[: len(found.token_ids)]
            events = list(models.stream(said, **options, **lengths))
            assert "".join(event.text for event in events) == text
    for more in (["--stop", special], ["--stop-token-id", str(answer[3])]):
        argv = ["generate", "w5 w9", "--chat", "--target", str(out), "--json", *more]
        assert run(argv) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["text"], found["finish_reason"]) == (before, "stop")


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
    real = build.build
    monkeypatch.setattr(build, "build", lambda *a: seen.append(a[0]) or real(*a))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    argv = ["--max-new-tokens", "3", "--target", str(folder)]
    assert run([command, *(["w5 w9"] if command == "generate" else []), *argv]) == 0
    assert seen == [expected]


def test_a_model_without_a_template_cannot_chat(tmp_path, capsys):
    save_chat_model(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert run(["chat", "--target", str(tmp_path)]) == 2
    assert "no chat template" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--hierarchy", "auto"], "chat does not measure"),
        (["--hierarchy", "nope"], "no preset called 'nope'"),
        (["--hierarchy", "suffix", "--draft", "zoo:tiny-draft"], "uses no draft model"),
        (["--target", "./no-such-folder"], "no directory './no-such-folder'"),
    ],
)
def test_wrong_options_of_a_chat_are_one_clear_line(folder, options, says, capsys):
    assert run(["chat", "--target", str(folder), *options]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
