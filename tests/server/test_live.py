"""A started server on loopback: OpenAI's own client, and clients that misbehave."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time

import httpx
import openai
import pytest
from server_cases import app_of

from hierspec import HierspecError
from hierspec.engine.pace import Pace
from hierspec.server.process import make_server
from hierspec.server.settings import ServeSettings

CHAT = [{"role": "user", "content": "hello the"}]


@contextlib.contextmanager
def started(family, port=0, **settings):
    """A server in a thread → (its address, its engine, itself)."""
    app = app_of(family, **settings)
    up, urls = threading.Event(), []

    def ready(url):
        urls.append(url)
        up.set()

    server = make_server(app, ServeSettings(port=port, shutdown_grace=20.0), ready)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert up.wait(60)
    try:
        yield urls[0], app.state.service.engine, server
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def live(family):
    with started(family, store_responses=4) as found:
        yield found


@pytest.fixture
def client(live):
    return openai.OpenAI(base_url=f"{live[0]}/v1", api_key="none", max_retries=0, timeout=60)


def idle(engine):
    for _ in range(1000):
        if not (engine.has_work):
            return True
        time.sleep(0.01)
    return False


def test_openais_client_completes_and_chats(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    text = client.completions.create(model="tiny", prompt="hello", max_tokens=5, seed=1)
    assert text.choices[0].finish_reason == "length"
    assert text.usage.completion_tokens == 5
    chat = client.chat.completions.create(
        model="tiny", messages=CHAT, max_completion_tokens=6, n=2, logprobs=True, top_logprobs=1,
        seed=1,
    )  # fmt: skip
    assert len(chat.choices) == 2
    assert len(chat.choices[0].logprobs.content) == 6


def test_openais_client_streams(client):
    stream = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=6, stream=True, seed=2,
        stream_options={"include_usage": True},
    )  # fmt: skip
    events = list(stream)
    assert events[-1].usage.completion_tokens == 6
    text = "".join(event.choices[0].delta.content or "" for event in events[:-1])
    whole = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=6, seed=2)
    assert text == whole.choices[0].message.content


def test_openais_client_gets_responses(client):
    first = client.responses.create(
        model="tiny", input="hello", max_output_tokens=5, extra_body={"seed": 1}
    )
    assert first.output_text is not None
    assert first.usage.output_tokens == 5
    second = client.responses.create(
        model="tiny", input="more", max_output_tokens=5, previous_response_id=first.id
    )
    assert second.usage.input_tokens > first.usage.input_tokens
    with client.responses.stream(model="tiny", input="hello", max_output_tokens=5) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"


def test_openais_client_calls_tools_and_parses(client):
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    found = client.chat.completions.create(
        model="tiny", messages=CHAT, tools=[tool], tool_choice="required", max_tokens=200, seed=1
    )
    (call,) = found.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


def test_openais_client_understands_errors(client):
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=CHAT, temperature=-1)
    assert refused.value.param == "temperature"


def test_a_client_that_runs_out_of_patience_frees_its_place(client, live):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(
            model="tiny", prompt="hello", max_tokens=2000, extra_body={"ignore_eos": True}
        )
    assert idle(live[1])


def test_a_client_that_leaves_a_stream_frees_its_place(client, live):
    stream = client.completions.create(
        model="tiny", prompt="hello", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert idle(live[1])


def test_a_slow_reader_holds_up_nobody(live):
    url, engine, _ = live
    body = {"prompt": "hello", "max_tokens": 60, "stream": True, "seed": 3, "temperature": 0}
    with httpx.Client(base_url=url, timeout=60) as slow:
        fast = slow.post("/v1/completions", json=body).text
        with slow.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            seen = [next(lines)]
            assert idle(engine)  # all is written while hardly anything was read
            for line in lines:
                time.sleep(0.002)
                seen.append(line)

    def texts(raw):
        found = [line[6:] for line in raw if line.startswith("data: {")]
        return [json.loads(one)["choices"][0]["text"] for one in found]

    assert "".join(texts(seen)) == "".join(texts(fast.split("\n")))


ABUSE = {
    "a huge header": b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    b"Content-Length: 5\r\n\r\n{}",
    "a line too much": b"GET /health HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
}


@pytest.mark.parametrize("name", ABUSE)
def test_abuse_of_the_protocol_gets_no_more_than_a_refusal(live, name):
    host, port = live[0].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(ABUSE[name])
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(4096)
            assert not answer or answer.split(b" ")[1][:1] == b"4"
    assert httpx.get(f"{live[0]}/health", timeout=20).status_code == 200


def test_told_to_end_it_finishes_what_runs_and_takes_no_more(family, caplog):
    with started(family) as (url, engine, server), httpx.Client(base_url=url, timeout=60) as one:
        body = {"prompt": "hello", "max_tokens": 1500, "stream": True, "ignore_eos": True}
        with one.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.handle_exit(signal.SIGTERM, None)
            assert "finishing 1 request (at most" in caplog.text
            assert not engine.accepts_requests
            # It listens until what runs has ended: whoever asks is told, and when to come back.
            assert httpx.get(f"{url}/health", timeout=20).status_code == 503
            refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=20)
            assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
            rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    finish = [json.loads(line[6:]) for line in rest if line.startswith("data: {")][-1]
    assert finish["choices"][0]["finish_reason"] == "length"


def test_told_twice_it_ends_at_once(family):
    with started(family) as (url, engine, server), httpx.Client(base_url=url, timeout=60) as one:
        body = {"prompt": "hello", "max_tokens": 1500, "stream": True, "ignore_eos": True}
        with one.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # dropped, it would close the connection
            next(lines)
            (request,) = engine.live
            server.handle_exit(signal.SIGTERM, None)
            server.handle_exit(signal.SIGTERM, None)
            engine.wait(20)
            assert server.should_exit
            assert "shutting down" in str(request.error)


def test_what_the_first_chat_would_wait_for_is_done_before(family, monkeypatch):
    asked = []
    monkeypatch.setattr("hierspec.server.process.template_traits", asked.append)
    with started(family) as (_, _, server):
        assert asked == [server.service.tokenizer]


def test_gone_and_back_on_the_same_port(family):
    with started(family) as (url, _, _):
        assert httpx.get(f"{url}/health", timeout=20).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", timeout=5)
    with started(family, port=int(url.rpartition(":")[2])) as (again, _, _):
        assert again == url
        assert httpx.get(f"{url}/health", timeout=20).status_code == 200


def test_the_world_is_not_served_without_a_key():
    with pytest.raises(HierspecError, match="no API key"):
        ServeSettings(host="0.0.0.0").validate_exposure()
    ServeSettings(host="0.0.0.0", api_key=("k",)).validate_exposure()
    ServeSettings(host="0.0.0.0", allow_without_key=True).validate_exposure()
    ServeSettings(host="::1").validate_exposure()


def test_a_port_in_use_is_told_before_models_are_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            HierspecError, match=f"cannot listen on 127.0.0.1:{port}.*another --por"
        ):
            ServeSettings(port=port).validate_address()
        ServeSettings(port=0).validate_address()
    with pytest.raises(HierspecError, match="another --host"):
        ServeSettings(host="192.0.2.7").validate_address()


@pytest.mark.parametrize("slowdown", [1.31, 1.04, None])
def test_the_line_of_a_request_says_what_was_written(live, caplog, slowdown, monkeypatch):
    monkeypatch.setattr(Pace, "slowdown", slowdown)
    with caplog.at_level("INFO", "hierspec.server"):
        for body in ({}, {"stream": True}, {}):
            body |= {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}
            assert httpx.post(f"{live[0]}/v1/completions", json=body, timeout=60).text
    fields = [record.fields for record in caplog.records if record.msg == "request"]
    assert [f["output_tokens"] for f in fields[:2]] == [4, 4]  # the last may still be written
    for f in fields:
        assert f["prompt_tokens"] > f["cached_tokens"] >= 0
        assert f["tokens_per_second"] > 0
        assert f["finish_reason"] == "length"
        assert isinstance(f["levels"], str)
        assert ("a token took at least 1.31 times" in f.get("drafts", "")) == (slowdown == 1.31)
