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


PLACES = """
/v1/chat/completions .model
/v1/chat/completions .user
/v1/chat/completions .metadata.k
/v1/chat/completions .metadata.KEY
/v1/chat/completions .stop
/v1/chat/completions .stop.0
/v1/chat/completions .messages.0.content
/v1/chat/completions .messages.0.content.0.text
/v1/chat/completions .messages.0.tool_calls.0.id
/v1/chat/completions .messages.0.tool_calls.0.function.arguments
/v1/chat/completions .messages.0.tool_call_id
/v1/chat/completions .tools.0.function.name
/v1/chat/completions .tools.0.function.description
/v1/chat/completions .tools.0.function.parameters.k
/v1/chat/completions .tool_choice.function.name
/v1/chat/completions .prediction.content
/v1/chat/completions .chat_template_kwargs.k
/v1/chat/completions .response_format.json_schema.name
/v1/completions .prompt
/v1/completions .prompt.0
/v1/completions .suffix
/v1/completions .hierarchy
/v1/responses .input
/v1/responses .input.0.content
/v1/responses .input.0.call_id
/v1/responses .input.0.output
/v1/responses .input.0.output.0.text
/v1/responses .instructions
/v1/responses .previous_response_id
/v1/responses .metadata.k
/v1/responses .safety_identifier
/v1/responses .text.format.name
/tokenize .prompt
/tokenize .messages.0.content
""".split("\n")[1:-1]


def test_half_a_character_is_refused_in_every_field(refused):
    assert {f"{path} {place}" for path, place, _ in refused} >= set(PLACES)
    assert len(refused) > 200
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
