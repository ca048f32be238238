"""A gateway between clients and replicas: retries, streams that break, what routers compare."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time

import pytest
from fakes.servers import Replicas
from starlette.responses import StreamingResponse

from hierspec.errors import HierspecError
from hierspec.server.cluster.calls import HttpRequest, forward, routing_prompt
from hierspec.server.cluster.deployments import Replica, build, num_replicas
from hierspec.server.settings import ServeSettings


def start(status, headers):
    return {"type": "http.response.start", "status": status, "headers": headers}


ERRORS = (ConnectionError,), (BlockingIOError,)  # of a lost replica, and of full ones
REQUEST = HttpRequest({"path": "/v1/completions"}, b"{}", "x")
JSON = start(200, [(b"Content-Type", b"application/json"), (b"Content-Length", b"9")])
EVENTS = start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])


def answer(replicas, pieces=None):
    async def go():
        reply = await forward(REQUEST, replicas.send, *ERRORS, pause=0.0)
        if not isinstance(reply, StreamingResponse):
            return reply, [reply.body]
        found = []
        async for piece in reply.body_iterator:
            found.append(piece)
            if len(found) == pieces:
                await reply.body_iterator.aclose()
                break
        return reply, found

    return asyncio.run(go())


def test_a_whole_answer_is_asked_again_wherever_its_replica_died():
    replicas = Replicas(
        [ConnectionError()], [JSON, b"ha", ConnectionError()], [JSON, b"who", b"le"]
    )
    reply, body = answer(replicas)
    assert (reply.status_code, b"".join(body), replicas.asked) == (200, b"whole", 3)
    assert reply.raw_headers == [(b"Content-Type", b"application/json")]  # lengths are made anew


def test_a_stream_is_asked_again_until_something_was_sent():
    replicas = Replicas([EVENTS, ConnectionError()], [EVENTS, b"a", b"b"])
    _, body = answer(replicas)
    assert (body, replicas.asked) == ([b"a", b"b"], 2)


def test_a_stream_that_is_lost_on_its_way_ends_with_an_error_event():
    replicas = Replicas([EVENTS, b"a", ConnectionError()])
    reply, body = answer(replicas)
    assert (reply.status_code, body[0], replicas.asked) == (200, b"a", 1)
    assert body[1].startswith(b"data: ")
    assert body[1].endswith(b"\n\n")
    assert "was lost" in json.loads(body[1][6:])["error"]["message"]


def test_a_client_that_leaves_frees_the_replica():
    replicas = Replicas([EVENTS, b"a", b"b", b"c"])
    _, body = answer(replicas, pieces=1)
    assert (body, replicas.closed) == ([b"a"], 1)


def test_full_and_lost_replicas_are_said_so():
    reply, body = answer(Replicas([BlockingIOError()]))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert "full" in json.loads(body[0])["error"]["message"]
    replicas = Replicas([ConnectionError()])
    reply, body = answer(replicas)
    assert (reply.status_code, replicas.asked) == (503, 5)
    assert "lost" in json.loads(body[0])["error"]["message"]


def test_a_replica_streams_and_ends_what_nobody_reads_on(family):
    settings = ServeSettings(model=family["target"], hierarchy="autoregressive")

    def ask(replica, **body):
        body = json.dumps({"prompt": "hello", "ignore_eos": True, **body}).encode()
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
        scope |= {"headers": [(b"content-type", b"application/json")], "root_path": ""}
        return replica.answer(HttpRequest(scope, body, "hello"))

    async def go():
        replica, ended = Replica(dataclasses.asdict(settings)), []
        service = replica.app.state.service
        service.metrics.record = ended.append
        began, *parts = [one async for one in ask(replica, max_tokens=3)]
        assert (began["status"], parts[-1].get("more_body")) == (200, None)
        whole = json.loads(b"".join(part["body"] for part in parts))
        assert whole["usage"]["completion_tokens"] == 3
        for count, is_stream in enumerate((True, False), 2):
            stream = ask(replica, max_tokens=2000, stream=is_stream)
            if is_stream:
                assert (await anext(stream))["status"] == 200
                assert (await anext(stream))["body"].startswith(b"data: ")
                await stream.aclose()
            else:  # as Ray cancels it
                waiting = asyncio.ensure_future(anext(stream))
                while not service.engine.num_requests:
                    await asyncio.sleep(0.001)
                waiting.cancel()
            until = time.monotonic() + 20
            while len(ended) < count and time.monotonic() < until:
                await asyncio.sleep(0.001)
        service.close()
        return [one.finish_reason for one in ended]

    assert asyncio.run(go()) == ["length", "cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "once"}, "once"),
        ({"prompt": ["once", "twice"]}, "once\ntwice"),
        ({"prompt": [5, 6]}, "5\n6"),
        ({"input": "once"}, "once"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "user: hi"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, None),
        ({"prompt": ""}, "/p"),
        ([], "/p"),
    ],
)
def test_what_routers_compare_is_never_empty(body, said):
    found = routing_prompt("/p", json.dumps(body).encode())
    assert found == said if said is not None else "hi" in found


def test_a_conversation_that_goes_on_begins_as_before():
    first = [{"role": "user", "content": "hi"}]
    later = [*first, {"role": "assistant", "content": "ho"}]
    before, after = (
        routing_prompt("/", json.dumps({"messages": m}).encode()) for m in (first, later)
    )
    assert after.startswith(before)
    for body in (b"", b"\xff", b"[" * 100_000):
        assert routing_prompt("/health", body) == "/health"


def test_how_many():
    assert num_replicas(None, None) == (1, 1)
    assert num_replicas(2, None) == (2, 2)
    assert num_replicas(None, "1:4") == (1, 4)
    for bad in ("4", "0:2", "3:1", "1:99999", "a:b"):
        with pytest.raises(HierspecError, match="--autoscale takes MIN:MAX"):
            num_replicas(None, bad)
    with pytest.raises(HierspecError, match="one of them"):
        num_replicas(2, "1:4")


def test_the_arguments_of_a_serve_config_are_checked():
    with pytest.raises(HierspecError, match="replicas"):
        build({"replcas": 2})
    with pytest.raises(HierspecError, match="is a number"):
        build({"replicas": "2"})
