"""Streams: what a whole answer says, in chunks."""

from __future__ import annotations

import asyncio
import json

import pytest
from server_cases import CHAT, TEXT, app_of, asking, chunks, post
from starlette.requests import ClientDisconnect


def test_sixty_four_streams_at_once_are_each_what_they_are_alone(family):
    bodies = [
        {
            "prompt": f"{'the ' * (i % 5)}number {i}",
            "max_tokens": 6 + i % 7,
            "seed": i,
            "temperature": (i % 3) / 2,
            "stream": True,
        }
        for i in range(64)
    ]

    def texts(answers):
        return [
            "".join(one["choices"][0]["text"] for one in chunks(answer.text)[:-1])
            for answer in answers
        ]

    async def together(client):
        made = [client.post("/v1/completions", json=body) for body in bodies]
        return texts(await asyncio.gather(*made))

    async def one_by_one(client):
        return texts([await client.post("/v1/completions", json=body) for body in bodies])

    many = asking(app_of(family, max_num_seqs=48), together)
    assert many == asking(app_of(family, prefix_caching=False), one_by_one)
    assert len(set(many)) > 40


def assert_same_up_to_rounding(found, expected):
    """Tokens, bytes and their order exactly, log-probabilities within 1e-5."""
    assert logprobs_left_out(found) == logprobs_left_out(expected)
    for one, other in zip(found, expected, strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-5)
        for a, b in zip(one["top_logprobs"], other["top_logprobs"], strict=True):
            assert a["logprob"] == pytest.approx(b["logprob"], abs=1e-5)


def logprobs_left_out(tokens):
    keys = ("token", "bytes")
    return [
        (
            [part[key] for key in keys],
            [[best[key] for key in keys] for best in part["top_logprobs"]],
        )
        for part in tokens
    ]


def test_a_chat_streams_what_it_answers_whole(ask):
    body = {**CHAT, "seed": 3, "logprobs": True, "top_logprobs": 2}
    whole, streamed, counted = ask(
        post("/v1/chat/completions", body),
        post("/v1/chat/completions", {**body, "stream": True}),
        post(
            "/v1/chat/completions",
            {**body, "stream": True, "stream_options": {"include_usage": True}},
        ),
    )
    message = whole.json()["choices"][0]["message"]
    assert message["role"] == "assistant"
    events = chunks(streamed.text)
    assert events.pop() == "[DONE]"
    assert streamed.headers["content-type"].startswith("text/event-stream")
    deltas = [e["choices"][0]["delta"] for e in events]
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert not any("usage" in event for event in events)
    assert [e["choices"][0]["finish_reason"] for e in events][-1] == "length"
    parts = [part for e in events for part in e["choices"][0]["logprobs"]["content"]]
    assert all(len(part["top_logprobs"]) == 2 for part in parts)
    # Two requests may be checked in blocks of other lengths, and float32 rounds as they are summed.
    assert_same_up_to_rounding(parts, whole.json()["choices"][0]["logprobs"]["content"])
    *most, last, done = chunks(counted.text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 10
    assert all(event["usage"] is None for event in most)


def test_levels_of_tokens_on_request(ask):
    body = {**CHAT, "stream": True, "return_levels": True, "ignore_eos": True}
    (found,) = ask(post("/v1/chat/completions", body))
    events = chunks(found.text)[:-1]
    assert sum(len(event["hierspec"]["tokens"]) for event in events) == 10
    assert {part["level"] for e in events for part in e["hierspec"]["tokens"]} <= {
        "target",
        "draft",
    }  # no folders
    assert any(event["hierspec"]["drafts"] for event in events)
    assert {"plain", "draft 3"} <= {event["hierspec"]["plan"] for event in events}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]
)
def test_usage_in_every_chunk_where_it_is_asked_for(ask, path, body):
    options = {"include_usage": True, "continuous_usage_stats": True}
    whole = {"ignore_eos": True, "stream": True, "stream_options": options}
    (found,) = ask(post(path, {**body, **whole}))
    counted = [one["usage"]["completion_tokens"] for one in chunks(found.text)[:-1]]
    assert counted == sorted(counted)
    assert counted[0] < counted[-1] == 10


def test_streams_of_several_prompts_count_each_prompt_once(ask):
    """Whichever choice ends first."""
    body = {**TEXT, "prompt": ["a longer prompt than the other", "b"], "n": 2, "max_tokens": 60}
    for seed in range(4):
        one = {**body, "seed": seed, "temperature": 1.0, "stop": ["e", " "]}
        counted = {**one, "stream": True, "stream_options": {"include_usage": True}}
        whole, streamed = ask(post("/v1/completions", one), post("/v1/completions", counted))
        found, wanted = chunks(streamed.text)[-2]["usage"], whole.json()["usage"]
        assert found["prompt_tokens"] == wanted["prompt_tokens"]
        assert found["completion_tokens"] == wanted["completion_tokens"]


def test_an_echo_alone_counts_no_token(ask):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**TEXT, "max_tokens": 0, "echo": True, "stream": True, "stream_options": options}
    (found,) = ask(post("/v1/completions", body))
    counts = {one["usage"]["completion_tokens"] for one in chunks(found.text)[:-1]}
    assert counts == {0}


def test_a_stream_whose_client_has_left_before_it_begins_is_cancelled(family):
    app = app_of(family)
    engine = app.state.service.engine
    content = json.dumps({**TEXT, "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
    messages = [{"type": "http.request", "body": content}]

    async def receive():
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message):
        raise OSError("the client has left")  # as servers do since ASGI 2.4

    async def work(client):
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        with pytest.raises(ClientDisconnect):
            await app(scope, receive, send)
        assert all(request.cancelled for request in engine.live + engine.waiting.items)

    asking(app, work)
