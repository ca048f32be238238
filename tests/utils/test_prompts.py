"""Prompt files: every accepted form, and errors that name the line."""

from __future__ import annotations

import hashlib
import io
import json

import pytest
from fakes import bytes_tokenizer

from hierspec.utils.prompts import apply_chat, read_prompt_file, read_prompts, read_stdin


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
        ("p.jsonl", '{"turns": "x"}', "line 1: turns must be a list"),
        ("p.jsonl", '{"turns": [3]}', "line 1: turns must be a text"),
        ("p.jsonl", "[1]", "line 1: the line must be a text"),
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
