"""Answers held to a JSON schema, calls of tools among them."""

from __future__ import annotations

import json

import pytest
from server_cases import CHAT, SCHEMA, TOOL, chunks, post


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stream", [False, True])
def test_json_of_a_schema(ask, temperature, stream):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {**CHAT, "max_tokens": 100, "temperature": temperature, "stream": stream}
    (found,) = ask(post("/v1/chat/completions", {**body, "response_format": form, "seed": 4}))
    if stream:
        deltas = [e["choices"][0]["delta"] for e in chunks(found.text)[:-1]]
        text = "".join(delta.get("content", "") for delta in deltas)
    else:
        text = found.json()["choices"][0]["message"]["content"]
    data = json.loads(text)
    assert data["a"] in ("x", "yy")
    assert data["b"] in (True, False)


def test_a_constrained_text_is_the_same_with_and_without_drafts(ask):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {**CHAT, "max_tokens": 60, "temperature": 0, "response_format": form}
    plain = {**body, "speculative": False}
    first, second = ask(post("/v1/chat/completions", body), post("/v1/chat/completions", plain))
    assert first.json()["choices"] == second.json()["choices"]
    assert second.json()["speculative"]["plans"].keys() == {"plain"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called_is(ask, choice, stream):
    body = {**CHAT, "max_tokens": 200, "tools": [TOOL], "tool_choice": choice, "stream": stream}
    (found,) = ask(post("/v1/chat/completions", {**body, "seed": 2}))
    if stream:
        events = chunks(found.text)[:-1]
        (call,) = [c for e in events for c in e["choices"][0]["delta"].get("tool_calls", [])]
        assert call["index"] == 0
        finish = events[-1]["choices"][0]["finish_reason"]
        assert not any(e["choices"][0]["delta"].get("content") for e in events)
    else:
        answer = found.json()["choices"][0]
        finish = answer["finish_reason"]
        assert answer["message"]["content"] is None
        (call,) = answer["message"]["tool_calls"]
    assert finish == "tool_calls"
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"])["a"] in ("x", "yy")
