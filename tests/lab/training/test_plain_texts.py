"""Texts and conversations, read from files and folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from hierspec_lab.training.conversations import Conversation
from hierspec_lab.training.plain_texts import from_files


def conversation(*contents: str, domain: str = "other") -> Conversation:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return Conversation.from_row({"messages": said, "domain": domain})


def line(*contents: str, **more: Any) -> str:
    return json.dumps({"messages": conversation(*contents).messages, **more}) + "\n"


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    further = {"role": "assistant", "content": "ho", "tool_calls": []}
    row = {"messages": [*conversation("hi").messages, further], "domain": "chat"}
    path.write_text(json.dumps(row) + "\n\n" + line("left open") + line("a", "b") + '"a text"\n')
    expected = [conversation("hi", "ho", domain="chat"), conversation("a", "b"), "a text"]
    assert from_files([path]) == expected
    with path.open("a") as file:  # somebody is writing
        file.write(line("more", "of it")[:20])
    assert from_files([path]) == expected


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"messages": 3}', "messages must be a list"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\] must have a text as its content"),
        ('{"id": 3}', "needs one of the keys messages, prompt, "),
        ("[1]", "the line must be an object, or a text"),
        ("no", "not valid JSON"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line("hi", "ho") + row + "\n")
    with pytest.raises(ValueError, match=rf"chats\.jsonl, line 2: {says}"):
        from_files([path])


def test_a_file_without_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line("hi"))
    with pytest.raises(ValueError, match="holds no text, and no conversation with an answer"):
        from_files([path])


def test_texts_come_from_files_lines_and_folders(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("one text\n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "two"}\n"three"\n')
    (tmp_path / ".hidden").write_text("not this")
    assert from_files([tmp_path]) == ["one text", "two", "three"]
    assert from_files([tmp_path / "b.jsonl"]) == ["two", "three"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no texts"):
        from_files([tmp_path / "empty"])
    for name in ("empty.txt", "empty.jsonl"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match="holds no text"):
            from_files([tmp_path / name])
