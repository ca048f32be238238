"""Chats as prompts of a bench: read, drawn evenly, rendered turn by turn; texts that may end."""

import json
from types import SimpleNamespace

import pytest
from chat_models import save_chat
from fakes.tokenizers import Letters, RecordingTemplate

from hierspec.cli import run
from hierspec.errors import HierspecError
from hierspec_lab.bench import chats
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.catalogue import catalogue, label, select
from hierspec_lab.bench.prompt_ids import encode
from hierspec_lab.bench.prompt_split import choose
from hierspec_lab.bench.report import page
from hierspec_lab.bench.results import read


@pytest.fixture
def folder(tmp_path):
    """Prompt files in the forms of GSM8K, HumanEval and Spec-Bench, and one of messages."""
    files = {
        "gsm8k": [{"question": f"sum {i}", "answer": "1"} for i in range(4)],
        "humaneval": [{"prompt": f"def f{i}():", "entry_point": f"f{i}"} for i in range(4)],
        "spec": [
            {"question_id": 1, "category": "writing", "turns": ["a poem", "again"]},
            {"question_id": 2, "category": "writing", "turns": ["an essay", "again"]},
            {"question_id": 3, "category": "math", "turns": ["1 + 1", "and 2?"]},
            {"question_id": 4, "category": "rag", "turns": ["who?"]},
            {"question_id": 5, "category": "rag", "turns": ["when?"]},
        ],
        "own": [
            {
                "domain": "support",
                "messages": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": "it is broken"},
                ],
            }
        ],
    }
    place = tmp_path / "prompts"
    place.mkdir()
    for name, rows in files.items():
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return place


def test_every_domain_gives_as_many(folder):
    found, identity = chats.read(folder)
    assert identity["file"] == "prompts"
    assert len(identity["sha256"]) == 64
    first = [chat.domain for chat in found[:5]]
    assert sorted(first) == ["gsm8k", "humaneval", "mt_bench", "rag", "support"]
    of_bench = [chat.category for chat in found if chat.domain == "mt_bench"]
    assert of_bench == ["writing", "math", "writing"]
    (function, *_) = (chat for chat in found if chat.domain == "humaneval")
    assert function.turns == ("Complete this Python function:\n\ndef f0():",)


def test_what_the_template_reads_besides_is_kept_and_null_is_no_value(tmp_path):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    rows = [
        {"messages": [call, {"role": "user", "content": "so?"}], "prompt": "not this"},
        {"messages": None, "domain": None, "turns": "alone", "entry_point": "f"},
        {"turns": ["one", "two", None], "category": None, "question_id": 3},
    ]
    (tmp_path / "p.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    found = {chat.line: chat for chat in chats.read(tmp_path)[0]}
    assert found[1] == chats.Chat("p", "", (call,), ("so?",), 1)
    assert found[3].turns == (chats.COMPLETE + "alone",)
    assert (found[5].domain, found[5].turns) == ("mt_bench", ("one", "two"))


def test_no_chat_is_both_measured_and_tuned_on(folder):
    prompts = choose("target", folder, 6, 3, chat=True)
    assert len(prompts.measured) == len(prompts.categories) == 6
    measured = {id(turn.chat) for turn in prompts.measured}
    assert len(prompts.tuning) == 3 < len(prompts.profiling) <= 16
    assert prompts.profiling[:3] == prompts.tuning
    assert not measured & {id(turn.chat) for turn in prompts.profiling}
    pair = [turn.number for turn in prompts.measured if turn.chat.domain == "mt_bench"]
    assert pair == [0, 1]
    assert 1 in {turn.number for turn in prompts.profiling}, "turns of the kinds measured"
    with pytest.raises(HierspecError, match="too few"):
        choose("target", folder, 50, 3, chat=True)
    with pytest.raises(HierspecError, match="--prompts FILE"):
        choose("target", None, 4, 1, chat=True)


def test_by_default_chats_make_full_batches(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"chat {i}"}) for i in range(60)))
    for size, measured, tuning in ((1, 16, 4), (3, 15, 6), (20, 20, 20)):
        prompts = choose("target", file, batch_size=size, chat=True)
        assert (len(prompts.measured), len(prompts.tuning)) == (measured, tuning)


def test_a_turn_that_is_too_long_takes_those_after_it_with_it():
    """It is left out or named, and not answered, which no model could."""
    turns = [("short", "next"), ("x" * 90, "next"), ("alone",)]
    prompts = [
        chats.ChatTurn(chats.Chat("d", "", (), texts), number)
        for texts in turns
        for number in range(len(texts))
    ]
    answered = []

    def generate(ids, max_new_tokens):
        assert len(ids) + max_new_tokens <= 80
        answered.append("".join(map(chr, ids)))
        return SimpleNamespace(text="yes")

    model = SimpleNamespace(max_length=80)
    plain = SimpleNamespace(root=SimpleNamespace(model=model), generate=generate)
    models = SimpleNamespace(plain=plain, tokenizer=Letters())
    encoded = encode(models, prompts, 8, skip_too_long=True)
    assert ["".join(map(chr, ids)) for ids in encoded] == [
        "<u:short>\n<a:",
        "<u:short>\n<a:yes>\n<u:next>\n<a:",
        "<u:alone>\n<a:",
    ]
    assert answered == ["<u:short>\n<a:"]
    with pytest.raises(HierspecError, match=r"^prompt 'x{40}' has \d+ tokens; with 8 more"):
        encode(models, prompts, 8)


def test_each_answer_is_fed_into_the_next_turn():
    chat = chats.Chat("d", "", ({"role": "system", "content": "s"},), ("one", "two", "three"))
    turns = [chats.ChatTurn(chat, number) for number in range(3)]
    template, answered = RecordingTemplate(), []

    def answer(ids):
        answered.append(template.asked[ids[0]][-1]["content"])
        return f"answer to {answered[-1]}"

    ids = chats.token_ids(template, turns, answer)
    assert answered == ["one", "two"]
    assert [message["content"] for message in template.asked[ids[2][0]]] == [
        "s", "one", "answer to one", "two", "answer to two", "three",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: not valid JSON"),
        ('{"id": 3}', "needs one of the keys messages, prompt, "),
        ('{"messages": []}', "messages must be a list"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "the last the user's"),
        ('{"messages": [{"role": "user", "content": null}]}', "must have a text as its content"),
        ('{"prompt": ""}', "at least one character"),
        ('{"turns": ["a", 3]}', r"turns\[1\] must be a text"),
        ("3", "the line must be an object, or a text"),
        ("", "holds no prompt"),
    ],
)
def test_lines_that_are_no_chat_are_named(tmp_path, line, says):
    file = tmp_path / "p.jsonl"
    file.write_text(line)
    with pytest.raises(HierspecError, match=says):
        chats.read(file)


def test_a_text_is_whole_at_its_length_or_its_end():
    request = RunRequest(4, eos_token_ids=frozenset({2}))
    assert request.is_complete((5, 2))
    assert request.is_complete((5, 6, 7, 8))
    assert not request.is_complete((5, 6))
    assert not RunRequest(4).is_complete((5, 2))


def test_each_drafter_alone_is_a_method():
    assert [label(name) for name in ("zoo:small", "exit:5,head=a/b", "prompt-lookup", "a/b/c")] == [
        "small", "exit-5", "prompt-lookup", "c",
    ]  # fmt: skip
    assert label('{"method": "suffix", "max_order": 8}') == "suffix"
    assert label("eagle3:models/drafter/") == "drafter"
    assert [label(name) for name in ("quantized", "quantized:4")] == ["quantized", "quantized-4"]
    known = catalogue(["prompt-lookup", "exit:1"])
    names = [entry.name for entry in select(["alone"], known)]
    assert names == ["plain", "alone-prompt-lookup", "alone-exit-1"]
    alike = catalogue(["a/draft", "b/draft", "quantized", "quantized,temperature=0.7"])
    names = {name for name in alike if name.startswith("alone-")}
    assert names == {"alone-draft", "alone-draft-2", "alone-quantized", "alone-quantized-2"}


def test_a_bench_of_chats_that_end(folder, tmp_path, capsys):
    model, file = save_chat(tmp_path / "model"), tmp_path / "r.json"
    argv = ["bench", "--target", model, "--draft", "prompt-lookup", "--chat", "--until-eos"]
    argv += ["--prompts", str(folder), "--num-prompts", "6", "--tune-prompts", "1"]
    argv += ["--tune-tokens", "4", "--max-new-tokens", "12", "--temperature", "0"]
    argv += ["--methods", "alone,transformers", "-o", str(file)]
    assert run(argv) == 0
    shown = capsys.readouterr().out
    assert "by domain" in shown
    data = read(file)
    assert data.settings.chat
    assert data.settings.until_eos
    assert "--chat --until-eos" in page.command(data)
    (cell,) = data.cells
    methods = {method.name: method for method in cell.methods}
    assert set(methods) == {"plain", "alone-prompt-lookup", "transformers"}
    for method in methods.values():
        assert method.skipped is None
        assert method.summary.same_as_plain == 6
        assert set(method.summary.by_category) == {
            "gsm8k", "humaneval", "mt_bench", "rag", "support",
        }  # fmt: skip


def test_engines_that_cannot_end_a_text_sit_out():
    from hierspec_lab.bench.peers.sequential import SequentialMethod

    method = SequentialMethod("s", None, {})
    with pytest.raises(Unavailable, match="end of a text"):
        method.run([1], RunRequest(4, eos_token_ids=frozenset({2})))
