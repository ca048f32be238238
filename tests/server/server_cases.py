"""A tiny model with a tokenizer and a chat template, services on it, and requests to them."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import torch
from tiny_models import add_noise, tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hierspec import Hierarchy
from hierspec.server.app import create_app
from hierspec.server.settings import ServeSettings

TEMPLATE = (
    "{% if enable_thinking is defined and not enable_thinking %}/no_think {% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

# Bodies of requests
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


def byte_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A token a byte, a few merges, and the marks of a chat."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(alphabet)}
    merges = []
    for pair in (("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("Ġ", "the"), ("o", "n")):
        vocab["".join(pair)] = len(vocab)
        merges.append(pair)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = template
    return fast


def save_family(folder: Path, template: str | None = TEMPLATE) -> dict[str, str]:
    """A target and a draft that agrees with it often, float32, each with the tokenizer."""
    tokenizer = byte_tokenizer(template)
    options: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 2048,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    paths = {}
    for name, noise in (("target", 0.0), ("draft", 0.05)):
        model = tiny_model("llama", seed=1, layers=3, dtype=torch.float32, **options)
        paths[name] = str(folder / name)
        add_noise(model, noise).save_pretrained(paths[name])
        tokenizer.save_pretrained(paths[name])
    return paths


@functools.cache
def _shared(target: str, draft: str) -> Hierarchy:
    level = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    return Hierarchy.from_config({"target": {"model": target}, "levels": [level]})


def app_of(paths: dict[str, str], **settings: Any) -> Any:
    """An application on the family; models are loaded once."""
    chosen = ServeSettings(served_model_name="tiny", **settings)
    return create_app(chosen, {"default": _shared(paths["target"], paths["draft"])})


def client_of(app: Any, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://tiny", timeout=60, **options)


def asking(app: Any, work: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """Run ``work`` with a client of ``app``, then end the engine."""

    async def run() -> Any:
        async with client_of(app, **options) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    finally:
        app.state.service.close()


def completions(app: Any, bodies: Sequence[Any], together: bool) -> list[Any]:
    """Answers to requests for completions, at once or one after the other."""

    async def work(client: httpx.AsyncClient) -> list[Any]:
        made = [client.post("/v1/completions", json=body) for body in bodies]
        answers = await asyncio.gather(*made) if together else [await one for one in made]
        assert [answer.status_code for answer in answers] == [200] * len(bodies)
        return [answer.json() for answer in answers]

    return asking(app, work)


def openai_client(client: httpx.AsyncClient) -> openai.AsyncOpenAI:
    """OpenAI's own client of the same application."""
    return openai.AsyncOpenAI(
        base_url="http://tiny/v1", api_key="none", max_retries=0, http_client=client
    )


def chunks(text: str) -> list[Any]:
    """The data of server-sent events; the last one is ``"[DONE]"``."""
    found = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in found]


def post(path: str, body: Any) -> tuple[str, str, Any]:
    """A request for the fixture ``ask``."""
    return ("POST", path, body)
