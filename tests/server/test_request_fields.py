"""What a request may say beyond OpenAI's fields, and what it may leave out or add."""

from __future__ import annotations

import json

import openai
import pytest
from server_cases import (
    CHAT,
    RESPONSES,
    SPECIAL,
    TEXT,
    TOOL,
    app_of,
    asking,
    chunks,
    openai_client,
    post,
)  # fmt: skip

from hierspec import Hierarchy
from hierspec.server.app import create_app
from hierspec.server.batch.writer import in_process_client
from hierspec.server.cluster.calls import routing_prompt
from hierspec.server.settings import ServeSettings

SAID = [{"role": "user", "content": "hello the"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
CALLED = [
    *SAID,
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
THOUGHTS = {
    "reasoning_content": "first I think",
    "reasoning": "first I think",
    "reasoning_details": [{"type": "reasoning.text", "text": "first"}],
    "thinking_blocks": [{"type": "thinking", "thinking": "first", "signature": "s"}],
    "provider_specific_fields": {"a": 1},
    "refusal": None,
    "audio": None,
    "annotations": [],
    "function_call": None,
    "parsed": None,
}


def extended(messages):
    """The same conversation as clients of other servers send it."""
    out = []
    for i, message in enumerate(messages):
        cache = {"cache_control": {"type": "ephemeral"}}
        message = {**message, "index": i, "id": f"msg_{i}", **cache}
        if message["role"] == "assistant":
            function = {**message["tool_calls"][0]["function"], "description": None}
            function |= {"parsed_arguments": {"a": "x"}}
            message |= THOUGHTS
            message["tool_calls"] = [{**CALL, "index": 0, "function": function}]
        else:
            message |= {"tool_calls": [] if i else None}
        message["content"] = [{"type": "text", "text": message["content"], **cache}]
        out.append(message)
    return out


def test_fields_that_mean_something_to_other_servers_are_left_out(family):
    tool = {**TOOL, "function": {**TOOL["function"], "strict": None}, "cache_control": {}}

    async def work(client):
        api, found = openai_client(client), []
        for messages, tools in ((CALLED, [TOOL]), (extended(CALLED), [tool])):
            answer = await api.chat.completions.create(
                model="tiny", messages=messages, tools=tools, tool_choice="none", max_tokens=4,
                seed=1,
            )  # fmt: skip
            counted = await client.post("/tokenize", json={"messages": messages})
            message = answer.choices[0].message
            again = await api.chat.completions.create(  # as a client sends back what it got
                model="tiny", messages=[*messages, message, *SAID], max_tokens=4, seed=1
            )
            texts = [one.choices[0].message.content for one in (answer, again)]
            found.append((texts, again.usage.prompt_tokens, counted.json()["count"]))
        return found

    plain, more = asking(app_of(family), work)
    assert more == plain


WITHOUT_EFFECT = {
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "user": "u",
    "safety_identifier": "u",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
}
OF_CHATS = {"reasoning_effort": "low", "verbosity": "low", "store": False, "modalities": ["text"]}
OF_RESPONSES = {"reasoning": {"effort": "low"}, "background": False, "max_output_tokens": 10}
OF_RESPONSES |= {"return_token_ids": True, "return_levels": True}


def test_fields_without_effect_are_accepted_and_answers_name_what_gave_them(ask):
    chat = {**CHAT, "seed": 1}
    plain, more, *others = ask(
        post("/v1/chat/completions", chat),
        post("/v1/chat/completions", {**chat, **WITHOUT_EFFECT, **OF_CHATS}),
        post("/v1/completions", {**TEXT, **WITHOUT_EFFECT}),
        post("/v1/responses", {**RESPONSES, **WITHOUT_EFFECT, **OF_RESPONSES}),
    )
    assert more.json()["choices"] == plain.json()["choices"]
    names = {answer.json()["system_fingerprint"] for answer in (plain, more, *others)}
    assert len(names) == 1


REFUSED = [  # a field of the first message, and what is said of it
    ({"contents": "x"}, "did you mean 'content'?"),
    ({"content": "x", "tool_call": [CALL]}, "tool_call"),
    ({"content": "x", "prefix": True}, "prefix is not supported here"),
    ({"content": "x", "partial": True}, "partial is not supported"),
    ({"content": 3}, "content: must be a text or a list of parts"),
    ({"content": {"type": "text"}}, "content: must be a text or a list of parts"),
    ({"content": [{"type": "text", "text": 3}]}, "content.0.text: Input should be a valid string"),
    ({"content": [{"type": "video"}]}, "content.0.type: Input should be 'text'"),
    ({"content": [{"type": "image_url", "image_url": {}}]}, "image_url parts are not supported"),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/tokenize"])
def test_what_would_be_lost_or_cannot_be_read_is_one_line(ask, path):
    key = "input" if path == "/v1/responses" else "messages"
    bodies = [{key: [{"role": "user", **message}]} for message, _ in REFUSED]
    answers = ask(*[post(path, body) for body in bodies])
    for (message, says), answer in zip(REFUSED, answers, strict=True):
        assert answer.status_code == 400, message
        error = answer.json()["error"]
        assert says in error["message"]
        assert error["message"].startswith(f"{key}.0")
        assert "\n" not in error["message"]
        assert error["param"].startswith(f"{key}.0")


UNIONS = [  # of several forms the one that was meant is spoken of
    ("/v1/completions", {"prompt": 3}, "prompt: must be a text, token ids, or a list of such"),
    ("/v1/completions", {"prompt": ["a", 3]}, "prompt.1: Input should be a valid string"),
    ("/v1/completions", {"prompt": [1, "a"]}, "prompt.1: Input should be a valid integer"),
    ("/v1/completions", {"prompt": [[1], [-1]]}, "prompt.1.0: Input should be greater"),
    ("/v1/completions", {**TEXT, "stop": 3}, "stop: must be a text or a list of texts"),
    ("/v1/completions", {**TEXT, "stop": ["a", 3]}, "stop.1: Input should be a valid string"),
    ("/v1/completions", {**TEXT, "stop_token_ids": [999]}, "stop_token_ids: 999 is not a token id"),
    ("/v1/completions", {**TEXT, "stop_token_ids": 5}, "stop_token_ids: Input should be a valid"),
    ("/v1/completions", {**TEXT, "chat_template_kwargs": {}}, "unknown parameter"),
    (
        "/v1/chat/completions",
        {**CHAT, "options": {"num_predict": 8}},
        "'options': send its entries as fields of the request",
    ),
    ("/v1/completions", CHAT, "unknown parameter: 'messages': /v1/chat/completions takes it"),
    (
        "/v1/chat/completions",
        {**CHAT, "functions": []},
        "unknown parameter: 'functions': send tools",
    ),
    ("/v1/chat/completions", {**CHAT, "instructions": "x"}, "a message of the role system"),
    ("/v1/completions", {**TEXT, "cache_prompt": True}, "the setting prefix_caching decides"),
    ("/v1/completions", {**TEXT, "n_predict": 8}, "'n_predict': send max_tokens"),
    ("/v1/completions", {**TEXT, "max_tokens": -1}, "max_tokens: -1 is no limit here: 1000000"),
    ("/v1/chat/completions", {**CHAT, "max_tokens": -1}, "max_tokens: -1 is no limit here"),
    ("/v1/responses", {"input": "a", "max_output_tokens": -1}, "-1 is no limit here"),
    ("/tokenize", {"content": "a"}, "/tokenize take a prompt"),
    (
        "/v1/completions",
        {**TEXT, "prediction": {"content": 3}},
        "prediction.content: must be a text or a list of parts",
    ),
    ("/v1/chat/completions", {**CHAT, "tool_choice": 3}, "tool_choice: must be"),
    ("/v1/chat/completions", {**CHAT, "tool_choice": "any"}, "tool_choice: Input should be 'none'"),
    (
        "/v1/chat/completions",
        {**CHAT, "tool_choice": {"type": "function", "function": {}}},
        "tool_choice.function.name: Field required",
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "chat_template_kwargs": {"chat_template": "x"}},
        "chat_template_kwargs: 'chat_template' cannot be set",
    ),
    ("/tokenize", {"messages": SAID, "chat_template_kwargs": {"tokenize": False}}, "'tokenize'"),
    ("/v1/responses", {"input": 3}, "input: must be a text or a list of items"),
    ("/v1/responses", {"input": {"role": "user"}}, "input: must be a text or a list of items"),
    ("/v1/responses", {"input": ["a"]}, "input.0: an item of the input must be an object"),
    (
        "/v1/responses",
        {"input": [{"role": "tool", "content": "a"}]},
        "input.0.role: Input should be 'system', 'developer', 'user' or 'assistant'",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": {}}]},
        "input.0.arguments: Input should be a valid string",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "function_call_output", "call_id": "a", "output": {"a": 1}}]},
        "input.0.output: must be a text or a list of parts",
    ),
    (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "function_call_output",
                    "call_id": "a",
                    "output": [{"type": "input_image", "image_url": "u"}],
                }
            ]
        },
        "input.0.output: input_image parts are not supported",
    ),
    ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, "tools.0.type: Input"),
    (
        "/v1/responses",
        {"input": "a", "include": ["message.output_text.logprobs"]},
        "include.0: Input should be",
    ),
]


def test_the_form_that_was_meant_is_spoken_of(ask):
    answers = ask(*[post(path, body) for path, body, _ in UNIONS])
    for (_, body, says), answer in zip(UNIONS, answers, strict=True):
        assert answer.status_code == 400, body
        message = answer.json()["error"]["message"]
        assert says in message
        assert "\n" not in message


def test_variables_of_the_template(family):
    """With every path that has a template; those that it does not read hurt nobody."""
    thoughtless = {"enable_thinking": False, "nobody_reads_this": {"a": [1]}}

    async def work(client):
        api, sizes = openai_client(client), []
        for variables in ({"nobody_reads_this": 1}, thoughtless):
            extra = {"chat_template_kwargs": variables}
            chat = await api.chat.completions.create(
                model="default", messages=SAID, max_tokens=1, extra_body=extra
            )
            response = await api.responses.create(input=SAID, max_output_tokens=1, extra_body=extra)
            counted = await client.post("/tokenize", json={"messages": SAID, **extra})
            sizes.append((chat.usage.prompt_tokens, response.usage.input_tokens))
            sizes[-1] += (counted.json()["count"],)
        return sizes

    plain, shorter = asking(app_of(family), work)
    assert len(set(plain)) == len(set(shorter)) == 1
    assert shorter[0] > plain[0]


PATHS = {  # → a body, and the text, number of tokens and end of its answer
    "/v1/chat/completions": (
        {"messages": SAID, "max_tokens": 60},
        lambda a: (a["choices"][0]["message"]["content"], a["choices"][0]["finish_reason"]),
    ),
    "/v1/completions": (
        {"prompt": "hello the", "max_tokens": 60},
        lambda a: (a["choices"][0]["text"], a["choices"][0]["finish_reason"]),
    ),
    "/v1/responses": (
        {"input": SAID, "max_output_tokens": 60},
        lambda a: (
            a["output"][0]["content"][0]["text"],
            {"completed": "stop", "incomplete": "length"}[a["status"]],
        ),
    ),
}


def num_tokens(answer):
    usage = answer["usage"]
    return usage.get("completion_tokens", usage.get("output_tokens"))


def streamed_text(text):
    out = ""
    for event in chunks(text):
        if event == "[DONE]" or not (event.get("choices") or event.get("delta")):
            continue
        if event.get("type") == "response.output_text.delta":
            out += event["delta"]
        elif "choices" in event:
            choice = event["choices"][0]
            out += choice.get("text", choice.get("delta", {}).get("content", ""))
    return out


@pytest.mark.parametrize("path", PATHS)
def test_special_tokens_and_tokens_by_their_ids_stop(family, path):
    """A sampled text of many special tokens ends where the library's text has the stop string."""
    app = app_of(family)
    models = app.state.service.hierarchies["default"]
    tokenizer, (body, read) = models.tokenizer, PATHS[path]
    special = tokenizer.convert_tokens_to_ids(SPECIAL[1])
    bias = {i: -100.0 for i in range(len(tokenizer)) if not tokenizer.decode([i]).isascii()}
    bias |= {special: 3.5}
    body = {**body, "seed": 3, "logit_bias": {str(i): b for i, b in bias.items()}}

    async def work(client):
        counted = {key: body[key] for key in ("messages", "prompt") if key in body} or {
            "messages": body["input"]
        }
        prompt = (await client.post("/tokenize", json=counted)).json()["tokens"]
        ids = models.generate(
            prompt, max_new_tokens=60, seed=3, temperature=1.0, logit_bias=bias, ignore_eos=True
        ).token_ids
        first = ids.index(special)
        after = next(i for i in range(60) if ids[i] == special != ids[i + 1])
        before = next(i for i in range(1, 60) if ids[i - 1] != special == ids[i])
        ends = [  # what ends the text, the token that it begins with, and the last token
            (SPECIAL[1], first, first),
            (["nowhere", SPECIAL[1], "!" * 9], first, first),
            (SPECIAL[1] + tokenizer.decode([ids[after + 1]]), after, after + 1),
            (tokenizer.decode([ids[before - 1]]) + SPECIAL[1], before - 1, before),
            ([special], first, first),
        ]
        for stop, start, last in ends:
            for include in (False, True):
                sent = {**body, "ignore_eos": True, "include_stop_str_in_output": include}
                sent["stop_token_ids" if stop == [special] else "stop"] = stop
                whole = (await client.post(path, json=sent)).json()
                stream = await client.post(path, json={**sent, "stream": True})
                text = tokenizer.decode(ids[:start], skip_special_tokens=True)
                if include and stop != [special]:
                    text += stop if isinstance(stop, str) else SPECIAL[1]
                assert read(whole) == (text, "stop")
                assert num_tokens(whole) == last + 1
                assert streamed_text(stream.text) == text

    asking(app, work)


def test_the_only_model_needs_no_name(family):
    """On every path, in files of requests, and on the way to a cluster's replicas."""

    async def work(client):
        bodies = {
            "/v1/chat/completions": {"messages": SAID, "max_tokens": 1},
            "/v1/completions": {"prompt": "a", "max_tokens": 1},
            "/v1/responses": {"input": "a", "max_output_tokens": 1},
        }
        for path, body in bodies.items():
            for more in ({}, {"model": None}, {"model": "default"}, {"model": "tiny"}):
                answer = await client.post(path, json={**body, **more})
                assert (answer.status_code, answer.json().get("model")) == (200, "tiny"), path
            assert (await client.post(path, json={**body, "model": "other"})).status_code == 404
            assert routing_prompt(path, json.dumps(body).encode()) != path
        async with in_process_client(app) as client:  # as `hierspec batch` does
            for path, body in bodies.items():
                assert (await client.post(path, json=body)).status_code == 200

    app = app_of(family)
    asking(app, work)


def test_a_model_is_found_by_every_name_that_requests_may_use(family):
    hierarchies = {
        name: Hierarchy(family["target"], drafts=["suffix"]) for name in ("main", "fast")
    }
    app = create_app(ServeSettings(served_model_name="tiny"), hierarchies)

    async def work(client):
        api = openai_client(client)
        for name in ("tiny", "default", "main", "fast"):
            card = await api.models.retrieve(name)
            assert (card.id, card.hierarchies) == ("tiny", ["main", "fast"])
            answer = await api.completions.create(model=name, prompt="a", max_tokens=1)
            assert answer.model == "tiny"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("other")
        both = {"prompt": "a", "max_tokens": 1, "model": "fast", "hierarchy": "fast"}
        assert (await client.post("/v1/completions", json=both)).status_code == 200
        refused = await client.post("/v1/completions", json={**both, "hierarchy": "main"})
        assert "leave one of them out" in refused.json()["error"]["message"]

    asking(app, work)
