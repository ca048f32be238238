"""The Responses API, whole and as events."""

from __future__ import annotations

import json
import typing

import openai
import pytest
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from pydantic import TypeAdapter
from server_cases import RESPONSES, TOOL, app_of, asking, chunks, openai_client, post


def test_responses_whole_and_as_events(ask):
    body = {**RESPONSES, "max_output_tokens": 8, "seed": 1}
    whole, streamed = ask(
        post("/v1/responses", body), post("/v1/responses", {**body, "stream": True})
    )
    answer = whole.json()
    text = answer["output"][0]["content"][0]["text"]
    assert answer["status"] == "incomplete"
    assert answer["usage"]["output_tokens"] == 8
    events = chunks(streamed.text)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.incomplete"
    deltas = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text


def test_calls_of_responses_whole_and_as_events(ask):
    tool = {"type": "function", **TOOL["function"]}
    asked = {**RESPONSES, "tools": [tool], "tool_choice": "required", "seed": 1}
    body = {**asked, "max_output_tokens": 300, "parallel_tool_calls": False}
    whole, streamed = ask(
        post("/v1/responses", body), post("/v1/responses", {**body, "stream": True})
    )
    answer = whole.json()
    assert answer["status"] == "completed", answer
    assert answer["parallel_tool_calls"] is False
    (call,) = answer["output"]
    assert (call["type"], call["name"]) == ("function_call", "f")
    assert set(json.loads(call["arguments"])) == {"a", "b"}
    events = chunks(streamed.text)
    kinds = [one["type"].removeprefix("response.") for one in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[4]["arguments"] == call["arguments"]
    assert events[5]["item"]["id"] == events[4]["item_id"]
    after = [
        {"role": "user", "content": "hello the"},
        {key: call[key] for key in ("type", "call_id", "name", "arguments")},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "done"},
        {"role": "assistant", "content": "yes", "phase": "final_answer"},
    ]
    (found,) = ask(post("/v1/responses", {**asked, "tool_choice": "none", "input": after,
                                          "max_output_tokens": 4}))  # fmt: skip
    assert found.status_code == 200
    assert found.json()["output"][0]["type"] == "message"


def test_responses_follow_each_other_only_where_they_are_stored(family, ask):
    async def talk(client):
        first = await client.post("/v1/responses", json={**RESPONSES, "input": "hello"})
        name = first.json()["id"]
        follow = {**RESPONSES, "previous_response_id": name, "max_output_tokens": 4}
        return await client.post("/v1/responses", json=follow)

    refused = asking(app_of(family, max_tokens_default=4), talk)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "previous_response_id"
    followed = asking(app_of(family, max_tokens_default=4, store_responses=2), talk)
    assert followed.status_code == 200
    assert followed.json()["usage"]["input_tokens"] > 40


def test_an_empty_input_only_goes_on_with_what_is_stored(family):
    async def talk(client):
        first = await client.post("/v1/responses", json={**RESPONSES, "input": "hello"})
        body = {**RESPONSES, "input": ""}
        stored = {**RESPONSES, "input": [], "previous_response_id": first.json()["id"]}
        thought = {**body, "input": [THOUGHT]}
        return [await client.post("/v1/responses", json=one) for one in (stored, body, thought)]

    settings = {"max_tokens_default": 4, "store_responses": 2}
    followed, *refused = asking(app_of(family, **settings), talk)
    assert followed.status_code == 200
    for answer in refused:
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("input is empty: give a text")


USER = {"role": "user", "content": "hello the"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "x"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny\nwarm"}
TOP = {"token": "a", "bytes": [97], "logprob": -1.0}
CITED = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "u"}
TEXT_PART = {"type": "output_text", "text": "yes", "annotations": []}
MESSAGE = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
THOUGHT = {"type": "reasoning", "id": "r1", "summary": [], "status": "completed"}

# Items as an answer has them, and what they mean: the same without what is for other servers
SENT_BACK = {
    "annotations": (
        [
            {
                **MESSAGE,
                "phase": "final_answer",
                "content": [
                    {
                        **TEXT_PART,
                        "annotations": [
                            CITED,
                            {"type": "file_citation", "file_id": "f", "filename": "n", "index": 0},
                        ],
                        "logprobs": [{**TOP, "top_logprobs": [TOP]}],
                    }
                ],
            }
        ],
        [{"role": "assistant", "content": "yes"}],
    ),
    "a refusal": (
        [{**MESSAGE, "content": [{"type": "refusal", "refusal": "no"}]}],
        [{"role": "assistant", "content": "no"}],
    ),
    "an empty text": (
        [{**MESSAGE, "content": [{**TEXT_PART, "text": ""}]}],
        [{"role": "assistant", "content": ""}],
    ),
    "no content": ([{**MESSAGE, "content": []}], [{"role": "assistant", "content": ""}]),
    "reasoning": ([THOUGHT, USER], [USER]),
    "reasoning, encrypted": (
        [
            {
                **THOUGHT,
                "summary": [{"type": "summary_text", "text": "so"}],
                "content": [{"type": "reasoning_text", "text": "so and so"}],
                "encrypted_content": "gAAAA" * 100,
            },
            {**CALL, "id": "fc1", "status": "completed", "namespace": "n", "caller": None},
            RESULT,
        ],
        [CALL, RESULT],
    ),
    "parts as the output of a function": (
        [
            CALL,
            {
                **RESULT,
                "id": "fo1",
                "status": "completed",
                "output": [
                    {"type": "input_text", "text": "sunny", "prompt_cache_breakpoint": None},
                    {"type": "input_text", "text": "warm"},
                ],
            },
        ],
        [CALL, RESULT],
    ),
    "no output of a function": ([CALL, {**RESULT, "output": []}], [CALL, {**RESULT, "output": ""}]),
    "a reference to an item beside it": (
        [{**MESSAGE, "content": [TEXT_PART]}, {"type": "item_reference", "id": "m1"}, USER],
        [{"role": "assistant", "content": "yes"}, USER],
    ),
}


@pytest.mark.parametrize("name", SENT_BACK)
def test_items_of_an_output_come_back_as_they_went(family, name):
    """As OpenAI's client reads and sends them; they mean what is in them and nothing else."""
    items, meaning = SENT_BACK[name]
    read = [
        TypeAdapter(ResponseOutputItem).validate_python(item)
        if item.get("type") in ("message", "reasoning", "function_call")
        else item
        for item in items
    ]

    async def work(client):
        api = openai_client(client)
        return [
            await api.responses.create(
                model="default", input=[USER, *sent], max_output_tokens=3, extra_body={"seed": 1}
            )
            for sent in (items, read, meaning)
        ]

    answers = asking(app_of(family), work)
    assert len({answer.usage.input_tokens for answer in answers}) == 1
    assert len({answer.output_text for answer in answers}) == 1


def test_a_conversation_grows_by_its_outputs(family):
    """``input += response.output``, as OpenAI's documentation has it, with calls too."""
    tool = {"type": "function", **TOOL["function"], "strict": None}

    async def work(client):
        api, said, sizes = openai_client(client), [USER], []
        for choice in ("none", "required", "none"):
            answer = await api.responses.create(
                input=said,
                tools=[tool],
                tool_choice=choice,
                max_output_tokens=200 if choice == "required" else 4,
                include=["reasoning.encrypted_content"],
                store=False,
                extra_body={"seed": 1},
            )
            sizes.append(answer.usage.input_tokens)
            said += answer.output
            for item in answer.output:
                if item.type == "function_call":
                    out = [{"type": "input_text", "text": "done"}]
                    said.append({**RESULT, "call_id": item.call_id, "output": out})
            said.append(USER)
        return said, sizes

    said, sizes = asking(app_of(family), work)
    (call,) = [item for item in said if getattr(item, "type", None) == "function_call"]
    assert sizes[2] > sizes[0] + len(call.arguments)  # a token is a byte, or a few


def test_a_reference_stands_for_an_item_that_is_stored(family):
    async def work(client):
        api, asked = openai_client(client), {"max_output_tokens": 4, "extra_body": {"seed": 1}}
        first = await api.responses.create(input=[USER], **asked)
        reference = {"type": "item_reference", "id": first.output[0].id}
        found = []
        for item in (reference, {"id": reference["id"]}, first.output[0]):
            found.append(await api.responses.create(input=[USER, item, USER], **asked))
        for stranger in (api.with_options(api_key="other"), api):
            with pytest.raises(openai.BadRequestError) as refused:
                await stranger.responses.create(input=[reference], **asked)
            assert "send the item itself" in str(refused.value)
            assert refused.value.code == "item_not_found"
            for _ in range(2):  # others take its place
                await api.responses.create(input=[USER], **asked)
        return found

    settings = {"store_responses": 4, "api_key": ("none", "other")}
    found = asking(app_of(family, **settings), work)
    assert len({(one.usage.input_tokens, one.output_text) for one in found}) == 1


def test_a_reference_to_what_is_not_stored_says_so(ask):
    items = [USER, {"type": "item_reference", "id": "msg_1"}]
    (answer,) = ask(post("/v1/responses", {"input": items}))
    assert answer.status_code == 400
    assert "responses are not stored here; send the item" in answer.json()["error"]["message"]


KNOWN = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def test_kinds_of_items_that_mean_something_elsewhere_are_refused_by_name(family):
    """Every kind that OpenAI's client can send is taken, or is refused in a line that names it."""
    params = typing.get_args(ResponseInputItemParam)
    hints = [typing.get_type_hints(param)["type"] for param in params]
    kinds = {kind for hint in hints for kind in _literals(hint)}
    assert kinds > set(KNOWN)

    async def work(client):
        return {
            kind: await client.post(
                "/v1/responses", json={"input": [USER, {"type": kind, "id": "x1"}]}
            )
            for kind in kinds - set(KNOWN)
        }

    for kind, answer in asking(app_of(family), work).items():
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert error["message"] == f"input.1: {kind} items are not supported: leave them out"
        assert error["param"] == "input.1"


def _literals(hint):
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return [kind for inner in typing.get_args(hint) for kind in _literals(inner)]
