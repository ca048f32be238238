"""Prompt files: every accepted form, and errors that name the line."""

from __future__ import annotations

import hashlib
import io
import json

import pytest
from fakes.tokenizers import bytes_tokenizer

from hierspec.errors import HierspecError
from hierspec.utils.prompts import (
    apply_chat,
    has_messages,
    is_conversation,
    read_ids,
    read_prompt_file,
    read_prompts,
    read_stdin,
    template_variables,
    validate_messages,
)


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_json_lines(tmp_path):
    rows = [
        {"prompt": "a\nb", "question": "not this"},
        {"category": "x", "turns": ["first", "second"]},
        {"question": "how\u2028many?"},
        {"text": "t"},
        "just a text",
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path = write(tmp_path, "p.jsonl", "\ufeff" + lines[0] + "\r\n\n" + "\n".join(lines[1:]) + "\n")
    got = read_prompt_file(path)
    assert got.prompts == ("a\nb", "first", "how\u2028many?", "t", "just a text")
    assert got.name == "p.jsonl"
    assert got.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_prompts(str(path)) == list(got.prompts)


def test_keys_beside_the_prompt_are_not_looked_at(tmp_path):
    rows = [
        {"prompt": "a", "turns": 3, "text": ["b"], "messages": "c"},
        {"prompt": None, "turns": "b", "question": ""},
        {"turns": ["c", "d", "", None]},
    ]
    path = write(tmp_path, "p.ndjson", "\n".join(map(json.dumps, rows)))
    assert read_prompts(path) == ["a", "b", "c"]


def test_messages_are_handed_on_as_they_are(tmp_path):
    said = [
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]},
        {"role": "assistant", "thinking": "no content at all"},
        {"role": "tool", "content": {"sum": 4}, "name": "add"},
    ]
    rows = [{"messages": said, "prompt": "not this"}, {"messages": None, "prompt": "a"}, "b"]
    path = write(tmp_path, "p.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_prompts(path, conversations=True) == [said, "a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": "w5"}', r"line 1: messages must be a list, not 'w5'; messages are \[{"),
        ('{"messages": []}', "line 1: messages must be a list of at least one"),
        ('{"messages": [{"content": "x"}]}', r"messages\[0\]: 'role' is missing; messages are"),
        ('{"messages": [3]}', r"messages\[0\] must be an object, not 3; messages are"),
        ('{"id": 3}', "line 1: needs one of the keys messages, prompt, turns, .*; found id"),
    ],
)
def test_wrong_messages_are_named(tmp_path, line, message):
    with pytest.raises(ValueError, match=message):
        read_prompts(write(tmp_path, "p.jsonl", line), conversations=True)


def test_ids(tmp_path):
    lines = '[1, 2]\n{"prompt_token_ids": [3]}'
    found = read_ids(file := write(tmp_path, "i.jsonl", lines))
    assert found == {f"{file}, line 1": [1, 2], f"{file}, line 2": [3]}
    assert read_ids(file := write(tmp_path, "i.txt", "1, 2")) == {str(file): [1, 2]}
    for line in ("[]", "[true]", "[1.0]", '"1"', '{"prompt": "x"}'):
        with pytest.raises(ValueError, match="line 1: with --ids a line must be a list of token"):
            read_ids(write(tmp_path, "i.jsonl", line))


def test_any_other_file_is_one_prompt(tmp_path):
    assert read_prompts(write(tmp_path, "p.txt", "two\nlines\n\n")) == ["two\nlines\n"]
    assert read_prompts(write(tmp_path, "p.py", '{"prompt": 1}')) == ['{"prompt": 1}']


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ("def f():\n", ["def f():"]),
        ('{"prompt": "a"}\n{"prompt": "b"}\n', ["a", "b"]),
        ("[1, 2]\n", ["[1, 2]"]),
        ("{x\n", ["{x"]),
    ],
)
def test_standard_input(monkeypatch, text, prompts):
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert read_prompts("-") == prompts
    stdin.seek(0)
    assert read_stdin() == text.removesuffix("\n")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": \n', r"p\.jsonl, line 2: not valid JSON"),
        ("p.jsonl", '\n{"Prompt": "a", "id": 3}', "line 2: needs one of the keys prompt, turns, "),
        ("p.jsonl", '{"Prompt": "a", "id": 3}', "found Prompt, id"),
        ("p.jsonl", '{"prompt": ""}', "line 1: prompt must be a text"),
        ("p.jsonl", '{"prompt": 3}', "line 1: prompt must be a text"),
        ("p.jsonl", '{"turns": []}', "line 1: turns must be a list"),
        ("p.jsonl", '{"turns": ["", null]}', r"line 1: turns\[0\] must be a text"),
        ("p.jsonl", '{"turns": [3]}', r"line 1: turns\[0\] must be a text"),
        ("p.jsonl", '{"turns": null}', "line 1: needs one of the keys .*; found turns"),
        ("p.jsonl", '{"messages": [{"role": "user"}]}', "text; found messages"),
        ("p.jsonl", "[1]", "line 1: the line must be an object, or a text"),
        ("p.jsonl", "\n \n", "holds no prompt"),
        ("p.txt", "\n", "holds no prompt"),
    ],
)
def test_mistakes_name_the_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as error:
        read_prompts(write(tmp_path, name, text))
    assert "\n" not in str(error.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read prompts from .*none\.txt: No such file"):
        read_prompts(tmp_path / "none.txt")
    path = tmp_path / "latin.txt"
    path.write_bytes(b"ok\nok\nna\xefve")
    with pytest.raises(ValueError, match=r"latin\.txt, line 3: not UTF-8"):
        read_prompts(path)


@pytest.fixture
def tokenizer():
    return bytes_tokenizer()


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_chat(tokenizer):
    with pytest.raises(ValueError, match="no chat template: leave --chat"):
        apply_chat(tokenizer, "hi")
    tokenizer.chat_template = TEMPLATE
    ids = apply_chat(tokenizer, "hi")
    assert all(type(i) is int for i in ids)
    assert tokenizer.decode(ids) == "[user]hi[assistant]"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.decode(apply_chat(tokenizer, talk)) == "[user]a[assistant]b[assistant]"
    with pytest.raises(ValueError, match="refuses these messages: no system"):
        apply_chat(tokenizer, [{"role": "system", "content": "x"}])


def test_of_a_long_chat_transformers_says_nothing(tokenizer, monkeypatch):
    from transformers.utils import logging

    said = []
    logger = logging.get_logger("transformers.tokenization_utils_base")
    monkeypatch.setattr(logger, "warning", lambda *a, **k: said.append(a))
    tokenizer.chat_template = TEMPLATE
    monkeypatch.setattr(tokenizer, "model_max_length", 1)
    assert len(apply_chat(tokenizer, "hi")) > 1
    assert not said


@pytest.mark.parametrize("name", ["tokenize", "messages", "add_generation_prompt", "tools", 5])
def test_what_is_no_variable_of_a_template(name):
    with pytest.raises(ValueError, match=f"{name!r} cannot be set: leave it out"):
        template_variables({"documents": [], name: 1})
    with pytest.raises(ValueError, match="must map names to values, not be"):
        template_variables([name])
    assert template_variables({"documents": []}) == {"documents": []}
    assert template_variables(None) == {}


def test_null_counts_as_no_messages():
    assert has_messages({"messages": []})
    assert not any(map(has_messages, ({"messages": None}, {}, "messages", 3, None)))


def test_python_callers_hand_over_lists_of_messages():
    said = ({"role": "user", "content": "hi"},)
    assert is_conversation(said)
    assert not any(map(is_conversation, ([], "hi", [1], [*said, 1], said[0])))
    validate_messages(said)
    with pytest.raises(HierspecError, match=r"messages\[0\]: 'role' is missing; messages are"):
        validate_messages([{"content": "hi"}])
