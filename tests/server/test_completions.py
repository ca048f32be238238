"""Completions of texts and chats: what the library writes, choices, logprobs, conversations."""

from __future__ import annotations

import pytest
from server_cases import CHAT, TEXT, TOOL, app_of, asking, byte_tokenizer, chunks, post

from hierspec import Hierarchy
from hierspec.config.build import Built
from hierspec.server.app import create_app
from hierspec.server.prepare import engine_requests
from hierspec.server.settings import ServeSettings
from hierspec.server.wire.completions import CompletionRequest


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


def test_a_seed_and_a_low_temperature_are_the_librarys(ask, family):
    level = {"method": "draft_model", "model": family["draft"], "num_speculative_tokens": 3}
    models = Hierarchy.from_config({"target": {"model": family["target"]}, "levels": [level]})
    for options in ({"seed": -1}, {"seed": 2**64 - 1}, {"temperature": 1e-6}):
        (found,) = ask(post("/v1/completions", {**TEXT, **options}))
        alone = models.generate("hello the", max_new_tokens=10, **{"temperature": 1.0, **options})
        assert found.json()["choices"][0]["text"] == alone.text


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


def test_offsets_are_those_of_the_tokens_where_a_stop_string_may_begin(ask):
    letters = {str(byte_tokenizer().encode(one)[-1]): 90 for one in "abcdefgh"}
    body = {**TEXT, "max_tokens": 12, "temperature": 0, "logprobs": 0, "logit_bias": letters}
    (plain,) = ask(post("/v1/completions", body))
    text = plain.json()["choices"][0]["text"]
    assert len(text) == 12  # a character is a token
    body["stop"] = f"{text[2:6]}Z"
    whole, streamed = ask(
        post("/v1/completions", body), post("/v1/completions", {**body, "stream": True})
    )
    choice = whole.json()["choices"][0]
    assert (choice["text"], choice["logprobs"]["text_offset"]) == (text, list(range(12)))
    parts = [one["choices"][0] for one in chunks(streamed.text)[:-1]]
    assert [i for part in parts for i in part["logprobs"]["text_offset"]] == list(range(12))


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
    levels = [one.json()["speculative"]["levels"] for one in (first, second)]
    assert ["prediction" in [level["name"] for level in some] for some in levels] == [False, True]
    details = second.json()["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0


def test_no_prediction_is_longer_than_the_longest_text(family):
    body = CompletionRequest(prompt="a", prediction={"content": "x" * 5000})
    app = app_of(family)
    service = app.state.service
    options = {"max_tokens": 1, "logprobs": None, "tenant": "", "constraint": None}
    (request,) = engine_requests(service, body, [[1]], **options)
    service.close()
    assert len(request.prediction) == service.max_length


def test_predicted_tokens_behind_a_stop_are_not_accepted(ask):
    letters = {str(byte_tokenizer().encode(one)[-1]): 80 for one in "abcdefghijklmnop"}
    chat = {**CHAT, "max_tokens": 24, "temperature": 0, "logit_bias": letters}
    (whole,) = ask(post("/v1/chat/completions", chat))
    content = whole.json()["choices"][0]["message"]["content"]
    guess = {**chat, "prediction": {"type": "content", "content": content}, "stop": content[6:9]}
    (found,) = ask(post("/v1/chat/completions", guess), adapt_to_load=False)
    usage = found.json()["usage"]
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] < usage["completion_tokens"] < 20
    assert details["rejected_prediction_tokens"] > 0


@pytest.mark.parametrize("lacking", ["no tokenizer", "no chat template"])
def test_a_model_without_a_chat_template_says_so(family, lacking):
    tokenizer = None if lacking == "no tokenizer" else byte_tokenizer(template=None)
    shared = app_of(family).state.service.hierarchies["default"]
    models = Hierarchy(Built(shared.root, tokenizer, shared.config))
    app = create_app(ServeSettings(), {"default": models})
    found = asking(app, lambda client: client.post("/v1/chat/completions", json=CHAT))
    assert found.status_code == 400
    assert found.json()["error"]["code"] == "no_chat_template"
    assert lacking in found.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_token_ids_are_returned_where_they_are_asked_for(path, stream, ask):
    given = {"prompt": "ab"} if "chat" not in path else CHAT
    body = {**given, "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
    (found,) = ask(post(path, {**body, "stream": stream}))
    answers = chunks(found.text)[:-1] if stream else [found.json()]
    ids = [i for answer in answers for c in answer["choices"] for i in c["token_ids"]]
    assert len(ids) == 4
