"""The Responses API, whole and as events."""

from __future__ import annotations

import json

from server_cases import RESPONSES, TOOL, app_of, asking, chunks, post


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
    body = {**asked, "max_output_tokens": 300}
    whole, streamed = ask(
        post("/v1/responses", body), post("/v1/responses", {**body, "stream": True})
    )
    answer = whole.json()
    assert answer["status"] == "completed", answer
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
