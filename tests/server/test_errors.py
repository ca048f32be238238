"""What is refused, in OpenAI's form, and what hurts nobody."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from pydantic import ValidationError
from server_cases import RESPONSES, TEXT, app_of, asking, chunks, post

from hierspec.engine.request import DeadlineError
from hierspec.engine.waiting import QueueFullError
from hierspec.lm.trunk.trunk import ExitModel
from hierspec.server.routes.info import DetokenizeRequest
from hierspec.server.wire import common
from hierspec.server.wire.chat import ChatRequest, Message
from hierspec.server.wire.completions import CompletionRequest
from hierspec.server.wire.responses import ResponsesRequest

REFUSED = {
    "unknown": ({**TEXT, "max_token": 3}, "did you mean 'max_tokens'"),
    "other model": ({**TEXT, "model": "gpt-4"}, "no model 'gpt-4'"),
    "other hierarchy": ({**TEXT, "hierarchy": "../../etc/passwd"}, "no hierarchy"),
    "no prompt": ({"max_tokens": 3}, "prompt"),
    "empty prompt": ({**TEXT, "prompt": ""}, "empty"),
    "empty list": ({**TEXT, "prompt": []}, "prompt"),
    "foreign token": ({**TEXT, "prompt": [5, 10**6]}, "vocabulary"),
    "negative token": ({**TEXT, "prompt": [-1]}, "prompt"),
    "too long": ({**TEXT, "prompt": "x" * 3000}, "are allowed: shorten it"),
    "huge n": ({**TEXT, "n": 10**9}, "n:"),
    "many choices": ({"prompt": ["a"] * 100, "n": 100}, "choices"),
    "negative tokens": ({**TEXT, "max_tokens": -5}, "max_tokens"),
    "hot": ({**TEXT, "temperature": 1e9}, "temperature"),
    "true for 1": ({**TEXT, "max_tokens": True}, "max_tokens: must be a number, not true or"),
    "false for 0": ({**TEXT, "temperature": False}, "temperature: must be a number, not true or"),
    "true for a token": ({**TEXT, "prompt": [1, True]}, "prompt.1: must be a number"),
    "true for a bias": ({**TEXT, "logit_bias": {"1": True}}, "logit_bias.1: must be a number"),
    "top_p": ({**TEXT, "top_p": 0}, "top_p"),
    "bias": ({**TEXT, "logit_bias": {"x": 1}}, "token id"),
    "unicode bias": ({**TEXT, "logit_bias": {"²": 1}}, "token id"),
    "endless bias": ({**TEXT, "logit_bias": {"0" * 5000: 1}}, "token id"),
    "empty stop": ({**TEXT, "stop": ""}, "stop"),
    "bad schema": (
        {
            **TEXT,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}},
        },
        "schema",
    ),
    "no schema": ({**TEXT, "response_format": {"type": "json_schema"}}, "schema"),
    "other format": (
        {**TEXT, "response_format": {"type": "regex", "pattern": "a"}},
        'send "type" as',
    ),
    "no search": ({**TEXT, "web_search_options": {}}, "nothing is searched here"),
    "of another server": ({**TEXT, "guided_json": {}}, "send response_format"),
    "a choice": ({**TEXT, "guided_choice": ["a"]}, "with an enum in its schema"),
    "suffix": ({**TEXT, "suffix": "x"}, "suffix"),
    "long stop": ({**TEXT, "stop": ["x" * 5000]}, "at most 4096 characters"),
    "many biases": ({**TEXT, "logit_bias": dict.fromkeys(map(str, range(2000)))}, "at most 1024"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_in_openais_form(ask, name):
    body, words = REFUSED[name]
    (found,) = ask(post("/v1/completions", body))
    assert 400 <= found.status_code < 500, found.text
    error = found.json()["error"]
    assert words in error["message"]
    assert error["type"] in ("invalid_request_error", "not_found_error")
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "said"),
    [
        (
            "/v1/chat/completions",
            {
                "model": "default",
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            },
            {},
            "image_url parts are not supported",
        ),
        (
            "/v1/responses",
            {"model": "x", "input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            {},
            "input_image parts are not supported",
        ),
        ("/v1/responses", {**RESPONSES, "tools": [{"type": "web_search"}]}, {}, "tools"),
        (
            "/v1/responses",
            {**RESPONSES, "tools": [{"type": "function", "function": {"name": "f"}}]},
            {},
            'belong beside "type"',
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "a"}],
                "tools": [{"type": "function", "name": "f"}],
            },
            {},
            'belong inside its "function"',
        ),
        ("/v1/responses", {**RESPONSES, "tool_choice": "required"}, {}, "there are no tools"),
        ("/v1/completions", {"prompt": "a"}, {"content-type": "text/plain"}, "application/json"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": None}]},
            {},
            "a message of the role user needs content",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": None}]},
            {},
            "a message of the role user needs content",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(family, path, body, headers, said):
    async def ask(client):
        content = json.dumps(body).encode()
        return await client.post(
            path, content=content, headers={"content-type": "application/json", **headers}
        )

    answer = asking(app_of(family), ask)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


HOSTILE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe{}",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "x", "temperature": NaN}',
    b'{"prompt": "x", "temperature": Infinity}',
    b'{"prompt": "x", "max_tokens": 1e400}',
    b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    *(
        b'{"model": "default", "input": %b, "messages": %b, "prompt": %b}' % (3 * (items,))
        for items in (
            b"[null]",
            b"[3]",
            b"[[]]",
            b'[{"type": 7}]',
            b'[{"type": null}]',
            b'[{"type": []}]',
            b'[{"role": "user", "content": [null]}]',
            b'[{"role": "user", "content": [{"type": null}]}]',
            b'[{"role": null, "content": "x"}]',
            b'[{"type": "function_call"}]',
        )
    ),
    b'{"model": "default", "input": "x", "messages": [], "prompt": "x", "tools": [null]}',
    b'{"model": "default", "input": "x", "messages": [], "prompt": "x", "text": {"format": null}}',
    b'{"prompt": "x", "response_format": ' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}",
]


def test_hostile_bodies_hurt_nobody(family):
    async def work(client):
        seen = []
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize"):
            for body in HOSTILE:
                found = await client.post(
                    path, content=body, headers={"content-type": "application/json"}
                )
                seen.append((path, body[:40], found.status_code, found.text[:80]))
        healthy = await client.post("/v1/completions", json=TEXT)
        return seen, healthy

    seen, healthy = asking(app_of(family), work)
    assert [one for one in seen if not 400 <= one[2] < 500] == []
    assert healthy.status_code == 200


def test_a_full_queue_says_when_to_come_back(family):
    async def work(client):
        made = [client.post("/v1/completions", json={**TEXT, "max_tokens": 60}) for _ in range(12)]
        return await asyncio.gather(*made)

    found = asking(app_of(family, max_num_seqs=1, max_queue=2), work)
    codes = [one.status_code for one in found]
    assert set(codes) == {200, 429}
    refused = found[codes.index(429)]
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"


def test_what_can_never_wait_is_no_full_queue(family):
    async def work(client):
        return await client.post("/v1/completions", json={**TEXT, "max_tokens": 2, "n": 3})

    found = asking(app_of(family, max_queue=2), work)
    assert found.status_code == 400
    assert "ask for fewer, or raise max_queue" in found.text


def test_a_request_may_set_its_own_deadline(ask):
    body = {**TEXT, "max_tokens": 1500, "ignore_eos": True, "timeout": 0.05}
    (found,) = ask(post("/v1/completions", body))
    assert found.status_code == 408
    assert found.json()["error"]["code"] == "timeout"


def test_requests_that_are_being_prepared_wait_too(family):
    app, gate = app_of(family, max_num_seqs=1, max_queue=1), threading.Event()
    service = app.state.service

    async def work(client):
        held = asyncio.ensure_future(service.in_background(gate.wait, 20))
        body = {**TEXT, "max_tokens": 2}
        late = asyncio.ensure_future(client.post("/v1/completions", json={**body, "timeout": 0.05}))
        late = await late  # on time, although it has not been prepared
        refused = await client.post("/v1/completions", json=body)
        gate.set()
        await held
        return refused, late, await client.post("/v1/completions", json=body)

    refused, late, after = asking(app, work)
    assert (refused.status_code, late.status_code, after.status_code) == (429, 408, 200)
    assert int(refused.headers["retry-after"]) >= 1


def test_requests_that_run_count_with_those_being_prepared(family):
    app, gate = app_of(family, max_num_seqs=1, max_queue=1), threading.Event()
    service = app.state.service

    async def work(client):
        body = {**TEXT, "max_tokens": 1500, "ignore_eos": True}
        running = asyncio.ensure_future(client.post("/v1/completions", json=body))
        while not service.engine.live:
            await asyncio.sleep(0.001)
        held = asyncio.ensure_future(service.in_background(gate.wait, 20))
        await asyncio.sleep(0)
        refused = await client.post("/v1/completions", json={**TEXT, "timeout": 0.5})
        gate.set()
        await held
        service.engine.abort(service.engine.live)
        await running
        return refused

    refused = asking(app, work)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")


def test_work_counts_until_its_thread_has_done_with_it(family):
    app, gate, done = app_of(family, max_num_seqs=1, max_queue=2), threading.Event(), []
    service = app.state.service

    async def work(client):
        held = [asyncio.ensure_future(service.in_background(gate.wait, 20)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(DeadlineError):
            await service.in_background(done.append, 1, deadline=time.monotonic() + 0.05)
        held[0].cancel()  # as if its client had left
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await service.in_background(done.append, 2)
        gate.set()
        await held[1]
        await service.in_background(done.append, 3)

    asking(app, work)
    assert done == [3]


def test_a_timeout_inside_the_work_is_not_the_requests(family):
    async def fail(client):
        def times_out() -> None:
            raise TimeoutError("a lock")

        with pytest.raises(TimeoutError, match="a lock"):
            await service.in_background(times_out, deadline=time.monotonic() + 60)

    app = app_of(family)
    service = app.state.service
    asking(app, fail)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": [0, *[None] * 5000]}),
        (DetokenizeRequest, {"tokens": [None] * 5000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [0] * 1000}] * 50}),
        (ResponsesRequest, {"input": [{"role": "user", "content": [0] * 1000}] * 50}),
        (CompletionRequest, {**TEXT, "metadata": dict.fromkeys(map(str, range(5000)))}),
        (CompletionRequest, {**TEXT, "prediction": {"content": [0] * 5000}}),
    ],
)
def test_a_body_of_many_mistakes_is_one_error(kind, body):
    """Each would take memory, and time of the thread that serves all requests."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() == 1


def test_of_many_unknown_fields_few_are_compared(monkeypatch):
    compared = []
    monkeypatch.setattr(common, "nearest_key", lambda key, *_, **__: compared.append(key))
    message = {"role": "user", "content": "x"} | {f"field {i}": 1 for i in range(5000)}
    Message.model_validate(message)
    assert len(compared) <= 16
    with pytest.raises(ValidationError, match="prefix is not supported"):
        Message.model_validate(message | {"prefix": True})


def test_an_unforeseen_failure_is_told_without_a_trace_of_itself(family, monkeypatch):
    def failing(self, *rest):
        raise RuntimeError("secret path")

    app = app_of(family)
    monkeypatch.setattr(ExitModel, "score", failing)
    whole, streamed = asking(
        app,
        lambda client: asyncio.gather(
            client.post("/v1/completions", json=TEXT),
            client.post("/v1/completions", json={**TEXT, "stream": True}),
        ),
    )
    assert whole.status_code == 500
    assert whole.headers["X-Request-Id"].startswith("req-")
    assert "secret" not in whole.text + streamed.text
    assert chunks(streamed.text)[-1]["error"]["code"] == "internal_error"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "; did you mean /v1/chat/completions?"),
        ("/v1/v1/completions", "; did you mean /v1/completions?"),
        ("/api/generate", "; did you mean /v1/completions?"),
        ("/completion", "; did you mean /v1/completions?"),
        ("/v1/embeddings", ""),
    ],
)
def test_a_path_with_another_beginning_is_named(ask, path, hint):
    (found,) = ask(post(path, TEXT))
    assert found.status_code == 404
    assert found.json()["error"]["message"] == f"there is no POST {path}{hint}"


def test_a_wrong_method_and_a_missing_body_are_told_what_is_taken(ask):
    wrong, empty = ask(("GET", "/v1/completions", None), ("POST", "/v1/completions", None))
    assert (wrong.status_code, empty.status_code) == (405, 400)
    assert wrong.json()["error"]["message"] == "/v1/completions takes POST, not GET"
    assert empty.json()["error"]["message"].startswith("the body must be a JSON object")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 3000}]},
            "messages",
        ),
        ("/v1/completions", {"prompt": "x" * 3000}, "prompt"),
        ("/v1/completions", REFUSED["bad schema"][0], "response_format"),
    ],
)
def test_late_errors_name_the_field(path, body, param, ask):
    (found,) = ask(post(path, body))
    assert found.json()["error"]["param"] == param
