"""What the service says of itself: models, health, metrics, its description."""

from __future__ import annotations

import asyncio
import time

import pytest
from server_cases import TEXT, app_of, asking, byte_tokenizer, post

from hierspec import SamplingParams
from hierspec.engine.loop import EngineLoop
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.server.cluster.deployments import Replica
from hierspec.server.metrics import ServerMetrics


def test_what_the_service_is(ask):
    models, health, version, tokens, text, missing = ask(
        ("GET", "/v1/models", None),
        ("GET", "/health", None),
        ("GET", "/version", None),
        post("/tokenize", {"prompt": "hello the"}),
        post("/detokenize", {"tokens": byte_tokenizer()("hello the")["input_ids"]}),
        ("GET", "/v1/models/other", None),
    )
    (card,) = models.json()["data"]
    assert card["id"] == "tiny"
    assert not [name for name in card["levels"]["default"] if "/" in name]  # no folders
    assert health.json() == {"status": "ok"}
    assert version.json()["version"]
    assert tokens.json()["count"] == len(tokens.json()["tokens"])
    assert text.json() == {"prompt": "hello the"}
    assert missing.status_code == 404


def test_metrics_count_levels(family):
    async def work(client):
        await client.post("/v1/completions", json={**TEXT, "temperature": 0})
        until = time.monotonic() + 20
        while True:  # a request is counted when its client has been told, in another thread
            text = (await client.get("/metrics")).text
            if "hierspec_time_to_first_token_seconds_count" in text or time.monotonic() > until:
                return text
            await asyncio.sleep(0.01)

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
    others = {"/tokenize", "/detokenize", "/health", "/health/live", "/metrics", "/version"}
    assert endpoints | others <= set(described["paths"])
    assert ran == dict.fromkeys(ran, 200)
    assert len(ran) >= 3
    assert described["paths"]["/detokenize"]["post"]["summary"] == "Text of tokens"


def health(*paths):
    async def work(client):
        return [(await client.get(path)).status_code for path in paths]

    return work


PATHS = ("/health", "/health/ready", "/health/live")


def test_a_service_that_ends_is_live_and_not_ready(family):
    app = app_of(family)
    assert asking(app, health(*PATHS)) == [200, 200, 200]
    assert asking(app, health(*PATHS)) == [503, 503, 200]  # it is closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_is_neither(family, monkeypatch):
    monkeypatch.setattr(EngineLoop, "_run", lambda self: None)
    app = app_of(family)

    async def work(client):
        asked = asyncio.ensure_future(client.post("/v1/completions", json=TEXT))
        while app.state.service.engine.problem is None:
            await asyncio.sleep(0.01)
        replica = object.__new__(Replica)
        replica.app, replica.started = app, asyncio.ensure_future(asyncio.sleep(0))
        with pytest.raises(RuntimeError, match="thread has ended"):
            await replica.check_health()
        statuses = await health(*PATHS)(client)
        monkeypatch.undo()
        again = await client.post("/v1/completions", json=TEXT)
        await replica.check_health()
        return (
            statuses,
            [(await asked).status_code, again.status_code],
            await health(*PATHS)(client),
        )

    assert asking(app, work) == ([503, 503, 503], [200, 200], [200, 200, 200])


def test_no_failure_of_what_is_recorded_keeps_a_client_waiting(family, monkeypatch):
    class Broken:
        def record(self, ended):
            raise RuntimeError("on purpose")

        def close(self):
            pass

    app = app_of(family)
    monkeypatch.setattr(ServerMetrics, "record", Broken.record)
    app.state.service.tracing = Broken()
    answer = asking(app, lambda client: client.post("/v1/completions", json={**TEXT, "seed": 1}))
    assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_a_closed_event_loop_hurts_nobody_else(family):
    app = app_of(family)
    service, stop = app.state.service, StopConditions(max_new_tokens=200, max_length=500)
    one = Request(prompt=[5, 6], params=SamplingParams(), stop=stop)

    async def leave():
        service.submit([one])

    asyncio.run(leave())
    body = {**TEXT, "ignore_eos": True}
    answer = asking(app, lambda client: client.post("/v1/completions", json=body))
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert not service.engine.live


def test_tokens_are_of_the_model_that_is_served(ask):
    asked = [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
    for answer in ask(*[post(path, {**body, "model": "nope"}) for path, body in asked]):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
