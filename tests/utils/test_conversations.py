"""Conversations: read from files, put into a chat template, answers found in the ids."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import Letters

from hierspec.utils.conversations import (
    Conversation,
    holds_conversations,
    read_conversations,
    tokenize_conversation,
)


def line(*contents: str, **more: Any) -> str:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return json.dumps({"messages": messages, **more}) + "\n"


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line("hi", "ho", domain="chat") + "\n" + line("left open"))
    assert holds_conversations(path)
    (found,) = read_conversations(path)
    assert found == Conversation((("user", "hi"), ("assistant", "ho")), "chat")
    assert found.prompt == "hi"
    with path.open("a") as file:  # somebody is writing
        file.write(line("more", "of it")[:20])
    assert len(read_conversations(path)) == 1


@pytest.mark.parametrize(
    "row", ['{"messages": 3}', '{"messages": [{"role": "user"}]}', "[1]", "no", '{"text": "x"}']
)
def test_a_line_that_is_none_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line("hi", "ho") + row + "\n")
    with pytest.raises(ValueError, match=r"chats\.jsonl, line 2: no conversation; a line is"):
        read_conversations(path)


def test_a_file_without_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line("hi"))
    with pytest.raises(ValueError, match="holds no conversation with an answer"):
        read_conversations(path)
    for name, text in (("a.jsonl", '{"text": "x"}'), ("b.txt", line("a", "b")), ("c.jsonl", "?")):
        (tmp_path / name).write_text(text)
        assert not holds_conversations(tmp_path / name)
    assert not holds_conversations(tmp_path)


def test_answers_are_found_in_the_ids() -> None:
    """A position counts where the token after it is the answer's, its end included."""
    said = ("user", "q"), ("assistant", "one"), ("user", "r"), ("assistant", "up"), ("user", "s")
    found = tokenize_conversation(Conversation(said), Letters())
    text = "".join(map(chr, found.ids))
    assert text == "<u:q>\n<a:one>\n<u:r>\n<a:up>\n"
    assert "".join(text[p + 1] for p in found.answer_positions) == "one>up>"


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        tokenize_conversation(Conversation((("user", "q"), ("assistant", "a"))), None)
