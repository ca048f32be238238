"""Conversations: what a line may hold, and what is asked of it for which purpose."""

from typing import Any

import pytest

from hierspec.errors import HierspecError
from hierspec_lab.training.conversations import Conversation, text_in

CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}


def test_messages_are_kept_as_they_are():
    said: list[Any] = [{"name": "me", "role": "user", "content": "hi"}, CALL, {"role": "tool"}]
    found = Conversation.from_row({"messages": said, "domain": 7, "temperature": 0.5})
    assert found.messages == said
    assert found.domain == "7"
    assert Conversation.from_row({"messages": [], "domain": None}).domain == ""


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": 3}, "messages must be a list, not 3"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\]: 'role' is missing"),
        ({"messages": [CALL, {"role": 1}]}, r"messages\[1\]\.role must be a string, not 1"),
        ({"messages": [CALL, "hi"]}, r"messages\[1\] must be an object, not 'hi'"),
        ({}, "'messages' is missing"),
        ("hi", "it must be an object, not 'hi'"),
    ],
)
def test_mistakes_are_named_with_the_form(row, says):
    with pytest.raises(HierspecError, match=rf'^{says}; messages are \[{{"role": "user", '):
        Conversation.from_row(row)
    assert "\n" not in says


def test_contents_may_be_required():
    said = Conversation.from_row({"messages": [{"role": "user", "content": "hi"}, CALL]})
    assert said.require_content() is said
    with pytest.raises(HierspecError, match=r"^messages\[1\] must have a text as its content"):
        said.require_content(text=True)
    without = Conversation.from_row({"messages": [{"role": "user", "contents": "hi"}]})
    with pytest.raises(HierspecError, match=r"^messages\[0\] must have a content, not {'role'"):
        without.require_content()


def test_the_prompt_is_what_comes_before_the_first_answer():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    roles = [("system", "s"), ("user", parts), ("assistant", "x"), ("user", "y")]
    messages = [{"role": role, "content": content} for role, content in roles]
    assert Conversation.from_row({"messages": messages}).prompt == "s\na\nb"
    assert text_in({"role": "assistant", "content": None}) == text_in({"role": "tool"}) == ""
