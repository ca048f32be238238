"""Answers, calls and constraints with the tokenizers and chat templates that people use.

A scripted model writes what such a model would: with drafts and without, whole and streamed.
"""

from __future__ import annotations

import asyncio
import functools
import json

import pytest
from fakes.models import ScriptedModel
from layouts import LAYOUTS, script_ids, tokenizer_of
from server_cases import app_of, asking, chunks

from hierspec import Hierarchy
from hierspec.config.build import Built
from hierspec.core.nodes import Draft, replace_fields
from hierspec.server.app import create_app
from hierspec.server.conversation import chat_ids, plain_messages
from hierspec.server.settings import ServeSettings
from hierspec.server.templates import template_traits
from hierspec.server.wire.chat import ChatRequest

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    for name in ("get_time", "get_weather")
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FORCED = "One, two <tool_call> or <think>"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"const": FORCED}},
    "required": ["city"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "One"}]


class Scene:
    """A service on one layout, whose model writes what it is told."""

    def __init__(self, family, name):
        self.name, self.layout, self.tokenizer = name, LAYOUTS[name], tokenizer_of(name)
        size = len(self.tokenizer) + 2  # as many models, more ids than tokens
        self.target, draft = ScriptedModel(size), ScriptedModel(size, wrong_every=5)
        self.models = (self.target, draft)
        shared = app_of(family).state.service.hierarchies["default"]
        root = replace_fields(
            shared.root, lambda node: {"model": draft if isinstance(node, Draft) else self.target}
        )
        models = Hierarchy(Built(root, self.tokenizer, shared.config))
        self.app = create_app(ServeSettings(served_model_name="tiny"), {"default": models})
        self.service = self.app.state.service

    async def say(self, client, text, plain=False, **fields):
        """(content, calls, why it ends) of a text, the same whole, streamed and without drafts."""
        body = {"model": "default", "messages": MESSAGES, "temperature": 0, "max_tokens": 200}
        body |= fields
        asked = ChatRequest.model_validate(body)
        functions = [tool.function for tool in asked.tools or ()]
        offered = [] if asked.tool_choice == "none" else functions
        prompt = chat_ids(self.service, plain_messages(asked.messages), offered)
        for model in self.models:
            model.script, model.prompt_length = script_ids(self.name, text), len(prompt)
        posts = [
            client.post("/v1/chat/completions", json=one)
            for one in (body, {**body, "stream": True}, {**body, "speculative": False})[: 2 + plain]
        ]
        whole, streamed, *undrafted = await asyncio.gather(*posts)
        assert whole.status_code == 200, whole.text
        choice = whole.json()["choices"][0]
        found = read(choice["message"]), choice["finish_reason"]
        for other in (answer.json()["choices"][0] for answer in undrafted):
            assert (read(other["message"]), other["finish_reason"]) == found
        assert read_stream(streamed.text) == found
        (content, calls), reason = found
        return content, calls, reason


def read(message):
    calls = message.get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    named = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return message["content"] or "", named


def read_stream(text):
    choices = [one["choices"][0] for one in chunks(text)[:-1]]
    calls = [call for one in choices for call in one["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == list(range(len(calls)))
    content = "".join(one["delta"].get("content", "") for one in choices)
    return read({"content": content, "tool_calls": calls}), choices[-1]["finish_reason"]


def called(*cities):
    return [("get_weather", json.dumps({"city": city}, ensure_ascii=False)) for city in cities]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout(family, name):
    scene = Scene(family, name)
    layout = scene.layout

    async def work(client):
        say = functools.partial(scene.say, client)

        def shown(text):
            before = scene.tokenizer("\1", add_special_tokens=False)["input_ids"]
            ids = [*before, *script_ids(name, text)]  # a decoder may leave out a first blank
            return scene.tokenizer.decode(ids, skip_special_tokens=True).removeprefix("\1")

        # Text, with what looks like a call of tools in it.
        text = "One, two <b>words</b>.\n\nUse <tool_call> or <think> tags.\n"
        assert await say(text) == (shown(text), [], "stop")
        assert await say(text, tools=TOOLS, plain=True) == (shown(text), [], "stop")
        one = layout.calls("Paris")
        assert await say(one, tools=TOOLS, tool_choice="none") == (shown(one), [], "stop")
        mark = template_traits(scene.tokenizer).calls.begin
        marked = f"One. {mark}words and more."
        assert await say(marked, tools=TOOLS, plain=True) == (shown(marked), [], "stop")
        # Calls.
        cities = ["Paris", 'Rome "}] </tool_call> é'] if layout.between is not None else ["Paris"]
        calls = layout.calls(*cities)
        assert await say(calls, tools=TOOLS, plain=True) == ("", called(*cities), "tool_calls")
        if one.startswith("{"):  # calls are all of the text
            assert await say("Yes. " + calls, tools=TOOLS) == ("Yes. " + calls, [], "stop")
        else:
            thought = "<think>\none\n</think>\n\n"
            found = await say(thought + "One.\n" + calls, tools=TOOLS)
            assert found == (shown(thought) + "One.", called(*cities), "tool_calls")
        for choice in ("required", NAMED):
            found = await say(one, tools=TOOLS, tool_choice=choice)
            assert found == ("", called("Paris"), "tool_calls")
        # Whatever the model wants to write, a call that must be made is made.
        content, found, reason = await say(text, tools=TOOLS, tool_choice=NAMED, max_tokens=40)
        assert content == ""
        assert (reason == "tool_calls") == bool(found)
        # A call that is cut is none.
        length = len(script_ids(name, one)) - 1
        is_marked = not one.startswith("{")  # else it may yet be any other JSON
        for cut in (1, 2, length // 2, length - 1)[0 if is_marked else 2 :]:
            found = await say(one, tools=TOOLS, max_tokens=cut)
            assert found == ("", [], "length"), cut
        found = await say(one, tools=TOOLS, max_tokens=length)
        assert found == ("", called("Paris"), "tool_calls")
        # Constraints and ends.
        assert await say(text, stop=["two <b>w"]) == ("One, ", [], "stop")
        answer = json.dumps({"city": FORCED}, separators=(",", ":"))
        assert await say(answer, response_format=FORM, plain=True) == (answer, [], "stop")
        assert await say(answer, response_format=FORM, tools=TOOLS) == (answer, [], "stop")
        found = await say(one, response_format=FORM, tools=TOOLS)
        assert found == ("", called("Paris"), "tool_calls")

    asking(scene.app, work)


@pytest.mark.parametrize("name", ["llama-3", "llama-2"])
def test_offsets_are_those_of_the_text(family, name):
    """Of prompts with tokens that the text does not show, and characters of several tokens."""
    scene = Scene(family, name)
    special = scene.tokenizer.eos_token
    sent = f"é {special} two"
    ids = scene.tokenizer(sent)["input_ids"]
    assert ids[0] == scene.tokenizer.bos_token_id

    async def work(client):
        for prompt in (sent, ids):
            for model in scene.models:
                model.script = script_ids(name, "One é€ <b>words</b> 😀.")
                model.prompt_length = len(ids)
            body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 60}
            body["temperature"] = 0
            whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]
            streamed = await client.post("/v1/completions", json={**body, "stream": True})
            parts = [one["choices"][0] for one in chunks(streamed.text)[:-1]]
            text, offsets = whole["text"], whole["logprobs"]["text_offset"]
            assert offsets == [i for part in parts for i in part["logprobs"]["text_offset"]]
            ends = [*offsets[1:], len(text)]
            shown = [text[start:end] for start, end in zip(offsets, ends, strict=True)]
            assert "".join(shown) == text
            tokens = whole["logprobs"]["tokens"]
            assert special in shown
            assert len([one for one in shown if one]) > 8
            for one, token in zip(shown, tokens, strict=True):
                assert one in ("", token, f" {token}") or "\ufffd" in token or not token

    asking(scene.app, work)
