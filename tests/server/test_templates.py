"""What chat templates are given of tools, calls and results: nothing is left out."""

from __future__ import annotations

import json

import pytest
from layouts import LAYOUTS, tokenizer_of

from hierspec.server.conversation import plain_messages
from hierspec.server.templates import template_traits
from hierspec.server.tools import fit_to_template, plain_tools
from hierspec.server.wire.chat import Function, Message

TOOL = Function(name="get_weather")


def call(id, city):
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return {"id": id, "type": "function", "function": function}


def result(id, text):
    return {"role": "tool", "tool_call_id": id, "content": text}


ASKED = {"role": "user", "content": "Where is it warm?"}
CALLS = [call("call_1", "Rome"), call("call_2", "Oslo")]
TALK = [
    ASKED,
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    result("call_1", "sunny"),
    result("call_2", "snow"),
    {"role": "assistant", "content": "In Rome."},
    {"role": "user", "content": "And Lima?"},
    {"role": "assistant", "content": "Wait.", "tool_calls": [call("call_3", "Lima")]},
    result("call_3", "warm"),
]
OLD = [
    ASKED,
    {"role": "assistant", "function_call": call("", "Rome")["function"]},
    {"role": "function", "name": "get_weather", "content": "sunny"},
]


def written(name, messages, tools=(TOOL,)):
    tokenizer, traits = tokenizer_of(name), template_traits(tokenizer_of(name))
    plain = plain_messages([Message.model_validate(one) for one in messages])
    fitted = fit_to_template(plain, tools, traits)
    listed = plain_tools(tools) if traits.lists_tools else None
    return tokenizer.apply_chat_template(
        fitted, tools=listed, tokenize=False, add_generation_prompt=True
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_of_a_conversation_with_tools_is_left_out(name):
    traits = template_traits(tokenizer_of(name))
    text = written(name, TALK)
    parts = ["Where", "Rome", "Oslo", "sunny", "snow", "In Rome.", "And Lima?", "Lima", "warm"]
    places = [0]
    for part in parts:
        places.append(text.index(part, places[-1]))
    assert "Wait." in text or traits.writes_calls  # what a template makes of calls is its own
    if not traits.lists_tools or LAYOUTS[name].native:
        assert "get_weather" in text[: text.index("Rome")]
    assert all(part in written(name, OLD) for part in ("Rome", "sunny"))
    assert all(part in written(name, TALK, ()) for part in parts)
    followed = [*TALK[:4], {"role": "user", "content": "Thanks, and there?"}]
    assert "there?" in written(name, followed)


def test_a_listing_goes_where_the_template_lets_it():
    said = {"role": "system", "content": "Be brief."}
    fitted = fit_to_template([said, ASKED], [TOOL], template_traits(tokenizer_of("llama-2")))
    assert [one["role"] for one in fitted] == ["system", "user"]
    assert fitted[0]["content"].startswith("Be brief.\n\nYou may call")
    (fitted,) = fit_to_template([ASKED], [TOOL], template_traits(tokenizer_of("gemma")))
    assert fitted["role"] == "user"
    assert fitted["content"].endswith("</tool_call>\n\nWhere is it warm?")


def test_neighbouring_results_are_one_message():
    traits = template_traits(tokenizer_of("gemma"))
    followed = [*TALK[:4], {"role": "user", "content": "Thanks."}]
    fitted = fit_to_template(plain_messages([Message(**one) for one in followed]), [], traits)
    assert [one["role"] for one in fitted] == ["user", "assistant", "user"]
    assert fitted[-1]["content"] == (
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nsnow\n</tool_response>\nThanks."
    )


def test_ids_and_arguments_are_as_a_template_wants_them():
    plain = plain_messages([Message(**one) for one in TALK[:4]])
    fitted = fit_to_template(plain, [TOOL], template_traits(tokenizer_of("mistral-v3")))
    ids = [one["id"] for one in fitted[1]["tool_calls"]]
    assert ids == [one["tool_call_id"] for one in fitted[2:]]
    assert all(len(id) == 9 and id.isalnum() for id in ids)
    assert len(set(ids)) == 2
    fitted = fit_to_template(plain, [TOOL], template_traits(tokenizer_of("deepseek")))
    assert fitted[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'


@pytest.mark.parametrize("name", LAYOUTS)
def test_arguments_that_escape_half_a_character_are_text(name):
    """As an object they would hold one, and no tokenizer could read what a template writes."""
    function = {"name": "get_weather", "arguments": r'{"city": "\ud83d"}'}
    made = {"id": "call_1", "type": "function", "function": function}
    talk = [ASKED, {"role": "assistant", "tool_calls": [made]}, result("call_1", "sunny")]
    text = written(name, talk)
    assert r"\ud83d" in text.replace("\\\\", "\\")
    assert tokenizer_of(name)(text)["input_ids"]
