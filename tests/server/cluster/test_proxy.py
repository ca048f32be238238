"""What Ray's proxy says to clients by itself: plain text becomes an error object."""

from __future__ import annotations

import asyncio
import json

import pytest

from hierspec.server.cluster.proxy import JsonErrors

PLAIN = [(b"content-type", b"text/plain")]
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


def start(status, headers):
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data, more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


def through(*messages, path="/v1/completions"):
    """Status and body of what a client gets."""
    sent = []

    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    async def send(message):
        sent.append(message)

    asyncio.run(JsonErrors(app)({"type": "http", "path": path}, None, send))
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent), sent


@pytest.mark.parametrize(
    "messages",
    [
        [start(404, PLAIN), body(b"Path not found.")],
        [start(500, PLAIN), body(b"Internal ", more=True), body(b"Server Error")],
        [],
    ],
)
def test_plain_refusals_and_silence_become_an_error_object(messages):
    status, said, sent = through(*messages)
    assert status == 503
    assert json.loads(said)["error"]["type"] == "service_unavailable_error"
    assert dict(sent[0]["headers"])[b"retry-after"] == b"1"
    assert not sent[-1].get("more_body")


def test_a_stream_that_was_cut_is_ended_in_words():
    status, said, sent = through(start(200, EVENTS), body(b"data: {}\n\n", more=True))
    assert status == 200
    assert "interrupted" in json.loads(said.rpartition(b"data: ")[2])["error"]["message"]
    assert not sent[-1].get("more_body")


def test_all_else_passes_as_it_is():
    whole = [start(200, EVENTS), body(b"data: {}\n\n", more=True), body(b"")]
    refused = [start(400, JSON), body(b"{}")]
    for messages in (whole, refused):
        assert through(*messages)[2] == messages
    pages = [start(503, PLAIN), body(b"not healthy")]
    assert through(*pages, path="/-/healthz")[2] == pages
