"""What the endpoints answer, in the process: shapes, options, refusals."""

from __future__ import annotations

import asyncio
import json

import pytest
from server_cases import app_of, asking, byte_tokenizer, chunks

from hierspec import Hierarchy
from hierspec.config.build import Built
from hierspec.server.app import create_app
from hierspec.server.settings import ServeSettings

CHAT = {
    "model": "default",
    "messages": [{"role": "user", "content": "hello the"}],
    "max_tokens": 10,
}
RESPONSES = {"model": "default", "input": "hello the"}
TEXT = {"prompt": "hello the", "max_tokens": 10}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "Does it.", "parameters": SCHEMA},
}


@pytest.fixture
def ask(family):
    """Requests to one app: ``ask((method, path, body), …, **settings)`` → their answers."""

    def run(*requests, headers=None, **settings):
        async def work(client):
            made = [client.request(m, p, json=b, headers=headers) for m, p, b in requests]
            return await asyncio.gather(*made)

        return asking(app_of(family, **settings), work)

    return run


def post(path, body):
    return ("POST", path, body)


def test_a_completion_is_what_the_library_writes(ask, family):
    body = {**TEXT, "seed": 5, "temperature": 0.8}
    (found,) = ask(post("/v1/completions", body))
    level = {"method": "draft_model", "model": family["draft"], "num_speculative_tokens": 3}
    models = Hierarchy.from_config({"target": {"model": family["target"]}, "levels": [level]})
    result = models.generate("hello the", max_new_tokens=10, seed=5, temperature=0.8)
    answer = found.json()
    assert answer["choices"][0]["text"] == result.text
    assert answer["choices"][0]["finish_reason"] == result.finish_reason
    assert answer["usage"]["completion_tokens"] == result.num_tokens
    assert answer["model"] == "tiny"
    level = answer["speculative"]["levels"][-1]
    assert level["num_draft_tokens"] >= level["num_accepted_tokens"] >= 0


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


def test_several_prompts_and_choices(ask, family):
    body = {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 4, "seed": 1}
    (found,) = ask(post("/v1/completions", body))
    answer = found.json()
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 4


def test_echo_with_logprobs_as_loglikelihoods_need_it(ask):
    ids = byte_tokenizer()("hello the")["input_ids"]
    body = {"prompt": [ids], "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    whole, nothing, streamed = ask(
        post("/v1/completions", body),
        post("/v1/completions", {**body, "max_tokens": 0}),
        post("/v1/completions", {**body, "stream": True}),
    )
    choice = whole.json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith("hello the")
    assert len(logprobs["token_logprobs"]) == len(ids) + 1
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"][:3] == [0, 1, 2]
    tops = zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
    assert all(max(top.values()) >= value for value, top in tops)
    bare = nothing.json()["choices"][0]
    assert bare["text"] == "hello the"
    assert bare["logprobs"]["token_logprobs"] == logprobs["token_logprobs"][:-1]
    assert nothing.json()["usage"]["completion_tokens"] == 0
    first = chunks(streamed.text)[0]["choices"][0]["logprobs"]
    assert first["token_logprobs"][: len(ids)] == logprobs["token_logprobs"][: len(ids)]


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


def test_a_conversation_with_calls_and_results_is_read(ask):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    body = {**CHAT, "messages": messages, "tools": [TOOL], "max_tokens": 5}
    found, tokens = ask(
        post("/v1/chat/completions", body), post("/tokenize", {"messages": messages})
    )
    assert found.status_code == 200
    text = byte_tokenizer().decode(tokens.json()["tokens"])
    assert '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>' in text
    assert "<tool_response>\ndone\n</tool_response>" in text


def test_predicted_output_is_counted(ask):
    body = {**TEXT, "max_tokens": 24, "temperature": 0}
    (plain,) = ask(post("/v1/completions", body))
    text = plain.json()["choices"][0]["text"]
    chat = {**CHAT, "max_tokens": 24, "temperature": 0}
    (first,) = ask(post("/v1/chat/completions", chat))
    content = first.json()["choices"][0]["message"]["content"]
    guess = {**chat, "prediction": {"type": "content", "content": content + text}}
    (second,) = ask(post("/v1/chat/completions", guess))
    assert second.json()["choices"] == first.json()["choices"]
    details = second.json()["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0


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


def test_a_model_without_a_chat_template_says_so(family):
    tokenizer = byte_tokenizer(template=None)
    shared = app_of(family).state.service.hierarchies["default"]
    models = Hierarchy(Built(shared.root, tokenizer, shared.config))
    app = create_app(ServeSettings(), {"default": models})
    found = asking(app, lambda client: client.post("/v1/chat/completions", json=CHAT))
    assert found.status_code == 400
    assert found.json()["error"]["code"] == "no_chat_template"


def test_what_the_service_is(ask):
    models, health, version, tokens, text, missing = ask(
        ("GET", "/v1/models", None),
        ("GET", "/health", None),
        ("GET", "/version", None),
        post("/tokenize", {"prompt": "hello the"}),
        post("/detokenize", {"tokens": byte_tokenizer()("hello the")["input_ids"]}),
        ("GET", "/v1/models/other", None),
    )
    assert models.json()["data"][0]["id"] == "tiny"
    assert health.json() == {"status": "ok"}
    assert version.json()["version"]
    assert tokens.json()["count"] == len(tokens.json()["tokens"])
    assert text.json() == {"prompt": "hello the"}
    assert missing.status_code == 404


def test_metrics_count_levels(family):
    async def work(client):
        await client.post("/v1/completions", json={**TEXT, "temperature": 0})
        return (await client.get("/metrics")).text

    text = asking(app_of(family), work)
    for name in (
        "time_to_first_token_seconds_count",
        "time_per_output_token_seconds_count",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_hits_total",
        "generation_tokens_total",
    ):
        assert f"hierspec_{name}" in text
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f'hierspec_spec_decode_{name}_total{{hierarchy="default",level="' in text
    assert "hierspec_spec_decode_num_accepted_tokens_per_pos_total{" in text


REFUSED = {
    "unknown": ({**TEXT, "max_token": 3}, "did you mean 'max_tokens'"),
    "other model": ({**TEXT, "model": "gpt-4"}, "no model 'gpt-4'"),
    "other hierarchy": ({**TEXT, "hierarchy": "../../etc/passwd"}, "no hierarchy"),
    "no prompt": ({"max_tokens": 3}, "prompt"),
    "empty prompt": ({**TEXT, "prompt": ""}, "empty"),
    "empty list": ({**TEXT, "prompt": []}, "prompt"),
    "foreign token": ({**TEXT, "prompt": [5, 10**6]}, "vocabulary"),
    "negative token": ({**TEXT, "prompt": [-1]}, "prompt"),
    "too long": ({**TEXT, "prompt": "x" * 3000}, "tokens and at most"),
    "huge n": ({**TEXT, "n": 10**9}, "n:"),
    "many choices": ({"prompt": ["a"] * 100, "n": 100}, "choices"),
    "negative tokens": ({**TEXT, "max_tokens": -5}, "max_tokens"),
    "hot": ({**TEXT, "temperature": 1e9}, "temperature"),
    "top_p": ({**TEXT, "top_p": 0}, "top_p"),
    "bias": ({**TEXT, "logit_bias": {"x": 1}}, "token id"),
    "unicode bias": ({**TEXT, "logit_bias": {"²": 1}}, "token id"),
    "empty stop": ({**TEXT, "stop": ""}, "stop"),
    "bad schema": (
        {
            **TEXT,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}},
        },
        "schema",
    ),
    "no schema": ({**TEXT, "response_format": {"type": "json_schema"}}, "schema"),
    "suffix": ({**TEXT, "suffix": "x"}, "suffix"),
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


def test_bodies_are_bounded_whatever_they_say(family):
    async def endless():
        for _ in range(100):
            yield b'"' + b"x" * 1000

    async def work(client):
        long = await client.post("/v1/completions", json={"prompt": "x" * 5000})
        chunked = await client.post(
            "/v1/completions", content=endless(), headers={"content-type": "application/json"}
        )
        lying = await client.post(
            "/v1/completions", content=b"{}", headers={"content-length": "minus one"}
        )
        return long, chunked, lying

    long, chunked, lying = asking(app_of(family, max_body_bytes=2000), work)
    assert (long.status_code, chunked.status_code, lying.status_code) == (413, 413, 400)


def test_keys(ask):
    paths = [("GET", "/v1/models", None), ("GET", "/health", None), ("GET", "/metrics", None)]
    (models, health, metrics) = ask(*paths, api_key=("sesame", "open"))
    assert (models.status_code, health.status_code, metrics.status_code) == (401, 200, 401)
    assert models.json()["error"]["type"] == "authentication_error"
    for given, status in (("open", 200), ("sesam", 401), ("sesame2", 401), ("", 401), ("é", 401)):
        header = {"Authorization": f"Bearer {given}".encode()}
        (found,) = ask(paths[0], headers=header, api_key=("sesame", "open"))
        assert found.status_code == status, given


def test_pages_elsewhere_may_not_ask_unless_told(ask):
    origin = {"Origin": "http://elsewhere"}
    (closed,) = ask(("GET", "/v1/models", None), headers=origin)
    assert "access-control-allow-origin" not in closed.headers
    (allowed,) = ask(("GET", "/v1/models", None), headers=origin, cors_origin=("http://elsewhere",))
    assert allowed.headers["access-control-allow-origin"] == "http://elsewhere"


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


def test_a_request_may_set_its_own_deadline(ask):
    body = {**TEXT, "max_tokens": 1500, "ignore_eos": True, "timeout": 0.05}
    (found,) = ask(post("/v1/completions", body))
    assert found.status_code == 408
    assert found.json()["error"]["code"] == "timeout"


def test_an_unforeseen_failure_is_told_without_a_trace_of_itself(family, monkeypatch):
    from hierspec.lm.trunk.trunk import Trunk

    def failing(self, *rest):
        raise RuntimeError("secret path")

    app = app_of(family)
    monkeypatch.setattr(Trunk, "score", failing)
    whole, streamed = asking(
        app,
        lambda client: asyncio.gather(
            client.post("/v1/completions", json=TEXT),
            client.post("/v1/completions", json={**TEXT, "stream": True}),
        ),
    )
    assert whole.status_code == 500
    assert "secret" not in whole.text + streamed.text
    assert chunks(streamed.text)[-1]["error"]["code"] == "internal_error"


def test_request_ids_come_back_if_they_are_fine(ask):
    (own,) = ask(("GET", "/version", None), headers={"X-Request-Id": "abc-1"})
    assert own.headers["x-request-id"] == "abc-1"
    (bad,) = ask(("GET", "/version", None), headers={"X-Request-Id": "a b;c"})
    assert bad.headers["x-request-id"].startswith("req-")


def test_the_description_is_complete_and_its_examples_run(family):
    async def work(client):
        described = (await client.get("/openapi.json")).json()
        ran = {}
        for path, methods in described["paths"].items():
            for operation in methods.values():
                content = operation.get("requestBody", {}).get("content", {})
                example = content.get("application/json", {}).get("example")
                if example is not None:
                    ran[path] = (await client.post(path, json=example)).status_code
        return described, ran

    described, ran = asking(app_of(family), work)
    endpoints = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models"}
    others = {"/tokenize", "/detokenize", "/health", "/metrics", "/version"}
    assert endpoints | others <= set(described["paths"])
    assert ran == dict.fromkeys(ran, 200)
    assert len(ran) >= 3


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
        ("/v1/responses", {**RESPONSES, "tool_choice": "required"}, {}, "there are no tools"),
        ("/v1/responses", {"input": "a"}, {}, "model"),
        ("/v1/chat/completions", {"messages": CHAT["messages"]}, {}, "model"),
        ("/v1/completions", {"prompt": "a"}, {"content-type": "text/plain"}, "application/json"),
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
