"""What the service says of itself: models, health, metrics, its description."""

from __future__ import annotations

from server_cases import TEXT, app_of, asking, byte_tokenizer, post


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
