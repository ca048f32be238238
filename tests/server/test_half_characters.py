"""Half a character in any text of any request is refused, by a walk over the service's schema."""

from __future__ import annotations

import json

import pytest
from server_cases import CHAT, TEXT, app_of, asking

HALF = "\ud83d"  # the first half of an emoji


def post(client, path, body):
    """Post JSON that is ASCII, as httpx' own is not."""
    headers = {"content-type": "application/json"}
    return client.post(path, content=json.dumps(body), headers=headers)


class Walk:
    """Values of a JSON schema: an example, and variants with half a character somewhere."""

    def __init__(self, openapi):
        self.openapi = openapi

    def resolve(self, schema):
        while "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = self.openapi["components"]["schemas"][name]
        return schema

    def alternatives(self, schema):
        options = schema.get("anyOf", schema.get("oneOf", [schema]))
        return [one for one in map(self.resolve, options) if one.get("type") != "null"]

    def example(self, schema):
        schema = self.alternatives(self.resolve(schema))[0]
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        if schema.get("type") == "array":
            return [self.example(schema["items"])]
        if schema.get("type") == "object":
            required = schema.get("required", ())
            return {name: self.example(schema["properties"][name]) for name in required}
        return {"string": "a", "integer": 1, "number": 0.5, "boolean": False}[schema["type"]]

    def variants(self, schema):
        """Yield a place, and a value with half a character there."""
        for one in self.alternatives(self.resolve(schema)):
            kind = one.get("type")
            if kind in ("string", None) and "anyOf" not in one and "oneOf" not in one:
                yield "", HALF
            elif kind is None:
                yield from self.variants(one)
            elif kind == "array":
                for place, value in self.variants(one["items"]):
                    yield f".0{place}", [value]
            elif kind == "object":
                yield from self.objects(one)

    def objects(self, schema):
        base = self.example(schema)
        for name, inner in schema.get("properties", {}).items():
            for place, value in self.variants(inner):
                yield f".{name}{place}", {**base, name: value}
        inner = schema.get("additionalProperties")
        if inner:
            yield ".KEY", {**base, HALF: 1}
            for place, value in self.variants({} if inner is True else inner):
                yield f".k{place}", {**base, "k": value}


@pytest.fixture(scope="module")
def refused(family):
    """Every body of every path with half a character in it → how it was answered."""

    async def work(client):
        openapi = (await client.get("/openapi.json")).json()
        walk, seen = Walk(openapi), {}
        for path, methods in openapi["paths"].items():
            content = methods.get("post", {}).get("requestBody", {}).get("content", {})
            for media in content.values():
                for place, body in walk.variants(media["schema"]):
                    for stream in (False, True):
                        sent = {**body, "stream": True} if stream else body
                        seen[path, place, stream] = await post(client, path, sent)
        return seen

    return asking(app_of(family, store_responses=2), work)


PLACES = {
    "/v1/chat/completions": {
        "model", "user", "stop", "stop.0", "metadata.k", "metadata.KEY", "messages.0.content",
        "messages.0.content.0.text", "messages.0.tool_calls.0.id", "messages.0.tool_call_id",
        "messages.0.tool_calls.0.function.arguments", "tools.0.function.name",
        "tools.0.function.description", "tools.0.function.parameters.k",
        "tool_choice.function.name", "prediction.content", "chat_template_kwargs.k",
        "response_format.json_schema.name",
    },
    "/v1/completions": {"prompt", "prompt.0", "suffix", "hierarchy", "prediction.content.0.k"},
    "/v1/responses": {
        "input", "input.0.content", "input.0.call_id", "input.0.output", "input.0.output.0.text",
        "instructions", "previous_response_id", "metadata.k", "safety_identifier",
        "text.format.name",
    },
    "/tokenize": {"prompt", "messages.0.content"},
    "/detokenize": {"model"},
}  # fmt: skip


def test_half_a_character_is_refused_in_every_field(refused):
    for path, places in PLACES.items():
        assert {place[1:] for other, place, _ in refused if other == path} >= places
    for (path, place, _), answer in refused.items():
        assert answer.status_code == 400, (path, place, answer.text)
        error = answer.json()["error"]
        assert error["code"] == "invalid_unicode", (path, place, error)
        assert "\n" not in error["message"]
        if "KEY" not in place:
            assert error["param"] == place[1:]
            assert error["message"].startswith(f"{place[1:]} holds half a character")


def test_whole_characters_are_no_halves_however_they_are_written(family):
    bodies = {  # how JSON writes an emoji, and what looks like half of one → status
        b'{"prompt": "\\ud83d\\ude00", "max_tokens": 1}': 200,
        '{"prompt": "😀", "max_tokens": 1}'.encode(): 200,
        b'{"prompt": "\\\\ud83d", "max_tokens": 1}': 200,
        b'{"prompt": "\\ude00\\ud83d", "max_tokens": 1}': 400,
        b'{"prompt": "\xed\xa0\xbd", "max_tokens": 1}': 400,
        '{"prompt": "\\ud83d", "max_tokens": 1}'.encode("utf-16"): 400,
    }

    async def work(client):
        headers = {"content-type": "application/json"}
        return [
            await client.post("/v1/completions", content=body, headers=headers) for body in bodies
        ]

    answers = asking(app_of(family), work)
    assert [answer.status_code for answer in answers] == list(bodies.values())


def test_a_request_beside_one_with_half_a_character_is_answered(family):
    async def work(client):
        broken = {**CHAT, "metadata": {"a": HALF}, "stream": True}
        refused = await post(client, "/v1/chat/completions", broken)
        return refused, await client.post("/v1/completions", json=TEXT)

    refused, healthy = asking(app_of(family), work)
    assert refused.headers["content-type"] == "application/json"
    assert json.loads(refused.content)["error"]["param"] == "metadata.a"
    assert healthy.status_code == 200
