"""Answers held to a JSON schema, calls of tools among them."""

from __future__ import annotations

import json

import pytest
import torch
from layouts import script_ids, tokenizer_of
from server_cases import CHAT, RESPONSES, SCHEMA, TOOL, chunks, post

from hierspec.engine.detokenize import detokenizer
from hierspec.server.grammar import Grammars, calls_constraint, schema_constraint
from hierspec.server.templates import template_traits


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


@pytest.mark.parametrize("named", [False, True])
def test_a_response_names_its_format_however_it_was_asked_for(ask, named):
    nested = {"name": "x", "schema": SCHEMA, "strict": True}
    form = {"type": "json_schema", **nested}
    chats = {"type": "json_schema", "json_schema": nested}
    asked = {"text": {"format": form}} if named else {"response_format": chats}
    (found,) = ask(post("/v1/responses", {**RESPONSES, "max_output_tokens": 100, **asked}))
    assert found.json()["text"]["format"] == {**form, "description": None}
    assert json.loads(found.json()["output"][0]["content"][0]["text"])["a"] in ("x", "yy")


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
        assert all(e["choices"][0]["delta"] for e in events[:-1])
        assert events[-1]["choices"][0]["delta"] == {}  # as OpenAI's client expects
        assert not any(e["choices"][0]["delta"].get("content") for e in events)
    else:
        answer = found.json()["choices"][0]
        finish = answer["finish_reason"]
        assert answer["message"]["content"] is None
        (call,) = answer["message"]["tool_calls"]
    assert finish == "tool_calls"
    assert call["function"]["name"] == "f"
    assert json.loads(call["function"]["arguments"])["a"] in ("x", "yy")


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x", "b": true}}\n</tool_call>'


def allowed(processor, token_ids, size):
    """Which tokens a processor lets follow."""
    ids = torch.tensor([token_ids], dtype=torch.long).reshape(1, -1)
    return (processor(ids, torch.zeros(1, size))[0] == 0).tolist()


@pytest.mark.parametrize("name", ["chatml", "llama-2", "qwen3", "hermes"])
@pytest.mark.parametrize("word", ["<tool_call>", "<think>", "<|im_start|>", "</s>", "é \ud7ff"])
def test_text_that_a_schema_forces_may_be_that_of_a_token(name, word):
    """A special token that no text shows is spelled; any other may be written as the token."""
    tokenizer, size = tokenizer_of(name), len(tokenizer_of(name))
    grammars = Grammars(tokenizer, size, frozenset([tokenizer.eos_token_id]))
    processor = grammars.processor(schema_constraint({"const": word}), 0)
    generator, written = torch.Generator().manual_seed(1), []
    while tokenizer.eos_token_id not in written:
        rights = torch.tensor(allowed(processor, written, size), dtype=torch.float)
        assert rights.any(), tokenizer.decode(written)
        written.append(int(torch.multinomial(rights, 1, generator=generator)))
    text = detokenizer(tokenizer, (), template_traits(tokenizer).shown_ids)
    found = "".join(text.add(token) for token in written[:-1]) + text.flush()
    assert json.loads(found) == word


@pytest.mark.parametrize("name", ["chatml", "llama-2", "qwen3", "hermes"])
def test_the_mask_of_calls_is_a_function_of_the_history(name):
    """Drafts ask for histories in any order; text outside calls is free."""
    tokenizer, size = tokenizer_of(name), len(tokenizer_of(name))
    grammars = Grammars(tokenizer, size, frozenset([tokenizer.eos_token_id]))
    constraint = calls_constraint(template_traits(tokenizer).calls, [("f", SCHEMA)])
    texts = [f"One.\n{CALL}\n{CALL}\nDone.", f"<think>{CALL.replace('x', 'yy')}", CALL + CALL]
    histories = [
        ids[:end] for ids in (script_ids(name, text) for text in texts) for end in range(len(ids))
    ]
    alone = [allowed(grammars.processor(constraint, 0), one, size) for one in histories]
    shared = grammars.processor(constraint, 0)
    for i in torch.randperm(len(histories), generator=torch.Generator().manual_seed(2)).tolist():
        assert allowed(shared, histories[i], size) == alone[i], tokenizer.decode(histories[i])
    assert all(alone[0])  # nothing is written yet
    assert not all(all(one) for one in alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": [{**TOOL, "function": {"name": "f", "parameters": {"type": "array"}}}]}, "'f'"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "no tool 'g'"),
        ({"tools": None, "tool_choice": "required"}, "there are no tools"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(ask, change, message):
    (found,) = ask(post("/v1/chat/completions", {**CHAT, "tools": [TOOL], **change}))
    assert found.status_code == 400
    assert message in found.json()["error"]["message"]


def test_a_call_ends_the_text_where_calls_are_not_parallel():
    tokenizer, size = tokenizer_of("qwen3"), len(tokenizer_of("qwen3"))
    grammars = Grammars(tokenizer, size, frozenset([tokenizer.eos_token_id]))
    form = template_traits(tokenizer).calls
    constraint = calls_constraint(form, [("f", SCHEMA)], several=False)
    after = allowed(grammars.processor(constraint, 0), script_ids("qwen3", CALL)[:-1], size)
    assert [i for i, is_allowed in enumerate(after) if is_allowed] == [tokenizer.eos_token_id]
