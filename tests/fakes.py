"""Stand-ins for engines, models, tokenizers, streamers, profiles and servers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

from hierspec.bench.methods.base import Run
from hierspec.bench.methods.ours import HierarchyMethod
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.planner.estimates import ideal

# --- engines and methods


class FakeMethod:
    """A method from a function prompt, request → token ids; it remembers what it was asked."""

    def __init__(self, name, write, log=None, ms=1.0):
        self.name, self.write, self.ms = name, write, ms
        self.log = [] if log is None else log
        self.configuration = {"fake": name}

    def run(self, prompt, request):
        self.log.append((self.name, tuple(prompt), request.seed))
        ids = self.write(prompt, request)
        return Run(token_ids=tuple(ids), seconds=self.ms * len(ids) / 1e3)


def fixed(prompt, request):
    """Writes 0, 1, 2, …"""
    return range(request.max_new_tokens)


class Steady(HierarchyMethod):
    """Takes as many seconds as it has tokens to draft, so that tuning always finds the same."""

    def run(self, prompt, request, tracer=None):
        run = super().run(prompt, request, tracer)
        return dataclasses.replace(
            run, seconds=self.configuration["levels"][0]["num_speculative_tokens"]
        )


class FakeVllmEngine:
    """Writes (0, 1, 2, …): the prompt in two bites, then two tokens a step."""

    def __init__(self):
        self.steps, self.left = 0, []

    def add_request(self, name, prompt, params):
        self.written, self.left = 0, [0, 1] + [2] * (params.max_tokens // 2)
        self.prompt, self.params = prompt, params

    def has_unfinished_requests(self):
        return bool(self.left)

    def step(self):
        self.written = min(self.params.max_tokens, self.written + self.left.pop(0))
        if not self.written:
            return []
        tokens = SimpleNamespace(token_ids=list(range(self.written)))
        return [SimpleNamespace(outputs=[tokens])]


# --- models, dice, tokenizers and streamers


class AsTable:
    """A mixin for models that enumeration asks as it asks tables: for what follows a text."""

    order = 1

    def distribution(self, text: Sequence[int]) -> torch.Tensor:
        slot = self.open()
        scores = self.score([Query(slot, Context(list(text)), len(text))])[0]
        self.close(slot)
        return scores.softmax(-1).double()


class Laws(AsTable):
    """A loaded model's distributions after texts, each computed once."""

    def __init__(self, model: Any) -> None:
        self.vocab_size = model.vocab_size
        self.open, self.score, self.close = model.open, model.score, model.close
        self.found: dict[tuple[int, ...], torch.Tensor] = {}

    def distribution(self, text: Sequence[int]) -> torch.Tensor:
        key = tuple(text)
        if key not in self.found:
            self.found[key] = super().distribution(key)
        return self.found[key]


class ToyBackend:
    """A causal float64 backend without attention: a layer mixes in the mean of what it has seen.

    ``fail_at`` counts down over layers; at 0 the layer raises ``error`` half-way.
    """

    name, fast_path = "toy", "toy"
    num_layers, vocab_size, hidden_size, max_length = 6, 7, 5, 4096
    device, dtype, weight_dtype = torch.device("cpu"), torch.float64, torch.float64
    trees = False

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(0)
        size = (self.vocab_size, self.hidden_size)
        self.table = torch.randn(size, generator=g, dtype=torch.float64)
        size = (self.num_layers, self.hidden_size, self.hidden_size)
        self.mix = torch.randn(size, generator=g, dtype=torch.float64)
        self.widest = 0
        self.fail_at = -1
        self.error: type[BaseException] = MemoryError

    def new_cache(self, capacity):
        size = (self.num_layers, capacity, self.hidden_size)
        return torch.full(size, float("nan"), dtype=torch.float64)

    def grow(self, cache, capacity):
        new = self.new_cache(capacity)
        new[:, : cache.shape[1]] = cache
        return new

    def embed(self, ids, spans):
        assert len(ids) == sum(span.n for span in spans)
        return self.table[ids]

    def layers(self, h, lo, hi, spans):
        self.widest = max(self.widest, len(h))
        before = h.clone()
        for i in range(lo, hi):
            out, row = [], 0
            for cache, start, n, _ in spans:
                x = h[row : row + n]
                cache[i, start : start + n] = x
                self.fail_at -= 1
                if self.fail_at == 0:
                    raise self.error("on purpose")
                seen = cache[i, : start + n].cumsum(0)[start:]
                count = torch.arange(start + 1, start + n + 1)[:, None]
                out.append(x + torch.tanh(seen / count @ self.mix[i]))
                row += n
            new = torch.cat(out)
            if i == lo:
                assert torch.equal(h, before), "layers may not write into their input"
            h = new
        return h

    def move(self, cache, places, start):
        raise AssertionError("no tree is asked here")

    def copy(self, source, to, length):
        raise AssertionError("no text is forked here")

    def unembedding(self):
        raise AssertionError("no part of the vocabulary is asked here")

    def head(self, h):
        return h @ self.table.T


class Ledger:
    """How many tokens every segment of a trunk must compute at the least: what it has not seen."""

    def __init__(self, segments: int) -> None:
        self.seen: list[list[int]] = [[] for _ in range(segments)]
        self.work = [0] * segments

    def ask(self, ids: list[int], index: int) -> None:
        for s, seen in enumerate(self.seen):
            same = 0
            while same < min(len(seen), len(ids)) and seen[same] == ids[same]:
                same += 1
            if same < len(ids) and same < len(seen):
                del seen[same:]
            if s <= index:
                self.work[s] += max(0, len(ids) - len(seen))
                if len(ids) > len(seen):
                    self.seen[s] = list(ids)


class FixedDice:
    """Dice that show what they are told to, then 0.5."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def take(self, n: int) -> np.ndarray:
        out, self.values = self.values[:n], self.values[n:]
        return np.array(out + [0.5] * (n - len(out)))


class NoDice:
    """Dice that must not be taken."""

    def take(self, n):
        raise AssertionError("greedy decoding spends no dice")


class Letters:
    """A tokenizer of a letter a token whose template is ``<u:text>`` and ``<a:text>``."""

    chat_template = "yes"
    eos_token_id = ord(">")

    def apply_chat_template(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = False, **_: Any
    ) -> list[int]:
        text = "".join(f"<{one['role'][0]}:{one['content']}>\n" for one in messages)
        return self(text + "<a:" * add_generation_prompt)["input_ids"]

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


def bytes_tokenizer(shift: int = 0) -> PreTrainedTokenizerFast:
    """Return a tokenizer of a byte a token, ids ``shift`` further on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = len(alphabet)
    raw = Tokenizer(models.BPE({c: (i + shift) % size for i, c in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


class FakeFamily:
    """A family of models of which only the tokenizer is asked."""

    name, target = "fake", "fake"

    def models(self):
        return SimpleNamespace(tokenizer=Letters())


class RecordingStreamer(BaseStreamer):
    """A streamer of transformers that keeps what it is given: calls as they are, and their ids."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.ids: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        assert value.dtype == torch.long
        self.calls.append(value.tolist())
        self.ids += value.flatten().tolist()

    def end(self) -> None:
        self.calls.append("end")


# --- profiles


class FakeProfile:
    """What ``hierspec plan`` asks of a profile; it remembers temperatures and largest drafts."""

    NAMES = ("small", "mid", "target")
    RATES = ((None, 0.75, 0.55), (None, None, 0.8))
    COSTS = (0.25, 4, 33)

    def __init__(self, recorded=None, classes=0) -> None:
        self.recorded, self.classes = recorded, classes
        self.asked: list[object] = []
        self.max_measured = 9
        self.data = SimpleNamespace(temperatures={})

    def nearest(self, temperature):
        return float(temperature > 0)

    def records(self, temperature):
        return self.recorded

    def estimates(self, temperature, max_budget=None):
        self.asked.append((temperature, max_budget))
        known = ideal(self.COSTS, self.RATES, self.NAMES, max_budget or 9)
        return dataclasses.replace(known, classes=(known,) * self.classes)

    def hierarchy(self, chain):
        return {"target": {"model": "target"}, "levels": [{"chain": list(chain.models)}]}


# --- servers


@dataclass
class StubServer:
    """Speaks OpenAI's API with made-up words: what it answers, and what it has been asked.

    Attributes:
        pieces: of text in every stream; ``tokens``: how many tokens each holds.
        pause: seconds before every piece.
        refuse: prompts that get status 429; ``break_off``: those whose stream just ends.
        metrics: the text of ``/metrics``; ``None``: there is no such place.
    """

    pieces: int = 4
    tokens: int = 2
    pause: float = 0.0
    usage: bool = True
    refuse: frozenset[str] = frozenset()
    break_off: frozenset[str] = frozenset()
    metrics: str | None = None
    finish_reason: ClassVar[str] = "length"
    refusal_status: ClassVar[int] = 429
    refusal: ClassVar[dict] = {"message": "too many requests:\n wait", "type": "rate_limit_error"}
    pieces_before_breaking_off: ClassVar[int] = 1
    bodies: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    live: int = 0
    most: int = 0
    cancelled: int = 0

    async def models(self, request):
        return web.json_response({"object": "list", "data": [{"id": "stub", "object": "model"}]})

    async def counters(self, request):
        if self.metrics is None:
            return web.Response(status=404)
        return web.Response(text=self.metrics.replace("@", str(len(self.bodies))))

    async def complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        if prompt in self.refuse:
            return web.json_response({"error": self.refusal}, status=self.refusal_status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            for i in range(self.pieces):
                await asyncio.sleep(self.pause_before(body))
                await self._send(response, self.piece(i, body, prompt))
                if prompt in self.break_off and i + 1 == self.pieces_before_breaking_off:
                    return response
            last = {"index": 0, "finish_reason": self.finish_reason, **said("", chat, last=True)}
            await self._send(response, {"choices": [last]})
            if self.usage:
                usage = {"prompt_tokens": 5, "completion_tokens": self.pieces * self.tokens}
                await self._send(response, {"choices": [], "usage": usage})
            await response.write(b"data: [DONE]\n\n")
        except (ConnectionError, asyncio.CancelledError):
            self.cancelled += 1
            raise
        finally:
            self.live -= 1
        return response

    def pause_before(self, body):
        return self.pause

    def piece(self, number, body, prompt):
        return {"choices": [{"index": 0, **said(f"w{number} ", "messages" in body)}]}

    async def _send(self, response, event):
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def said(text, chat, last=False):
    """What a chunk says, in a chat's form or a completion's."""
    if chat:
        return {"delta": {} if last else {"content": text}}
    return {"text": text}


@contextlib.contextmanager
def serving(stub):
    """Run it on a free loopback port; give its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start():
        app = web.Application()
        if hasattr(stub, "page"):
            app.router.add_get("/", stub.page)
        app.router.add_get("/v1/models", stub.models)
        app.router.add_get("/metrics", stub.counters)
        app.router.add_post("/v1/completions", stub.complete)
        app.router.add_post("/v1/chat/completions", stub.complete)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, site._server.sockets[0].getsockname()[1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
