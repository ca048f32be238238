"""Texts and conversations, read from files and folders, and answers found in their ids."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.tokenizers import Letters

from hierspec_lab.training.conversations import Conversation
from hierspec_lab.training.texts import PlainText, from_files, read


def conversation(*contents: str, domain: str = "") -> Conversation:
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return Conversation.from_row({"messages": said, "domain": domain})


def line(*contents: str, **more: Any) -> str:
    return json.dumps({"messages": conversation(*contents).messages, **more}) + "\n"


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(
        line("hi", "ho", domain="chat") + "\n" + line("left open") + line("a", "b") + '"a text"\n'
    )
    expected = [
        conversation("hi", "ho", domain="chat"), conversation("a", "b"), PlainText("a text"),
    ]  # fmt: skip
    assert from_files([path]) == expected
    with path.open("a") as file:  # somebody is writing
        file.write(line("more", "of it")[:20])
    assert from_files([path]) == expected


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('{"messages": 3}', "messages must be a list"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\] must have a content"),
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
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    expected = [PlainText("one text"), PlainText("two"), PlainText("three")]
    assert from_files([tmp_path]) == expected
    assert from_files([tmp_path / "b.jsonl"]) == expected[1:]
    (tmp_path / "empty").mkdir()
    for name in ("empty", "empty.txt", "empty.jsonl"):
        if name != "empty":
            (tmp_path / name).touch()
        with pytest.raises(ValueError, match="holds no text"):
            from_files([tmp_path / name])


def test_what_the_assistant_says_counts(tmp_path: Path) -> None:
    """Up to the end of its turn."""
    path = tmp_path / "a.jsonl"
    path.write_text(line("q", "one", "r", "up", "s") + '{"messages": [{"ro')
    (text,) = read([path], Letters(), (), 100)
    said = "".join(map(chr, text.ids))
    assert said == "<u:q>\n<a:one>\n<u:r>\n<a:up>\n"
    assert [said[low:high] for low, high in text.predicted] == ["one>", "up>"]
    assert not list(read([path], Letters(), {text.key}, 100))
    (cut,) = read([path], Letters(), (), 11)
    assert (cut.ids, cut.predicted) == (text.ids[:11], ((9, 11),))
    with pytest.raises(ValueError, match="need a model with a chat template"):
        list(read([path], None, (), 100))


def test_answers_that_the_template_rewrites_later_do_not_count() -> None:
    class Forgetful(Letters):
        def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> Any:
            """Leave out all answers but one at the end."""
            kept = [m for m in messages if m["role"] == "user" or m is messages[-1]]
            return super().apply_chat_template(kept, **options)

    ids, answers = conversation("q", "one", "r", "up").tokenize(Forgetful())
    said = "".join(map(chr, ids))
    assert [said[low:high] for low, high in answers] == ["up>"]


def test_whatever_has_a_text_or_a_content_is_read(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": []}
    asked = {"role": "user", "content": [{"type": "text", "text": "w1"}]}
    rows = ["w1", "", {"text": "w2", "messages": None, "domain": 3}, {"messages": [asked, call]}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = list(read([path], Letters(), (), 100))
    assert [len(text.ids) > 0 for text in found] == [True, False, True, True]
    assert [text.domain for text in found] == ["", "", "3", ""]


def test_stored_texts_are_known_before_the_first_new_one(tmp_path: Path) -> None:
    """Reading may end early, where there is no room for more."""
    new, stored = tmp_path / "new.jsonl", tmp_path / "stored.jsonl"
    new.write_text('"w1"\n')
    stored.write_text('"w2"\n"w3"\n')
    keys = [text.key for text in read([stored], Letters(), (), 100)]
    groups: dict[str, str] = {}
    next(read([new, stored], Letters(), keys, 100, "mine", groups))
    assert groups == dict.fromkeys(keys, "mine")


def test_a_row_with_a_text_is_that_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "asked", "text": "whole"}\n"cut in \xc3')
    expected = [PlainText("whole")]
    assert from_files([path]) == from_files([tmp_path]) == expected


def test_keys_of_texts_stay(tmp_path: Path) -> None:
    """Stored features are found by them."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"messages": [{"role": "user", "name": "n", "content": "w1"}]}\n"w2"\n')
    assert [text.key for text in read([path], Letters(), (), 100)] == [
        "62f435b4c775d77267f12bc0", "229c0b7aa8a7eb4055f5a3d0",
    ]  # fmt: skip
