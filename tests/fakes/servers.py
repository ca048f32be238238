"""Stand-ins for servers: over HTTP, as an ASGI application, as replicas of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

from aiohttp import web


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


class Echo:
    """Says the prompt back.

    A body may name its ``status`` and how long it takes (``sleep``), ask to be turned away so many
    times first (``busy``), or to ``crash``.
    """

    def __init__(self):
        self.asked = []
        self.turned_away = {}
        self.live = self.most = 0
        self.phases = []
        self.router = SimpleNamespace(lifespan_context=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app):
        assert app is self
        self.phases.append("startup")
        yield
        self.phases.append("shutdown")

    async def __call__(self, scope, receive, send):
        assert self.phases == ["startup"]
        body = json.loads((await receive())["body"])
        prompt = body["prompt"]
        self.asked.append(prompt)
        if body.get("crash"):
            raise KeyError("out of order")
        if self.turned_away.get(prompt, 0) < body.get("busy", 0):
            self.turned_away[prompt] = self.turned_away.get(prompt, 0) + 1
            return await self._send(send, 429, {"error": {"message": "full"}})
        self.live += 1
        self.most = max(self.most, self.live)
        await asyncio.sleep(body.get("sleep", 0))
        self.live -= 1
        return await self._send(send, body.get("status", 200), {"text": prompt})

    async def _send(self, send, status, body):
        headers = [(b"X-Request-Id", b"req-1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        data = json.dumps(body).encode()
        await send({"type": "http.response.body", "body": data[:3], "more_body": True})
        await send({"type": "http.response.body", "body": data[3:]})


class Replicas:
    """Each call goes to the next script: messages and bodies to send, and exceptions to raise."""

    def __init__(self, *scripts):
        self.scripts, self.asked, self.closed = list(scripts), 0, 0

    async def send(self, request):
        self.asked += 1
        try:
            for part in self.scripts[min(self.asked, len(self.scripts)) - 1]:
                if isinstance(part, Exception):
                    raise part
                is_body = isinstance(part, bytes)
                yield {"type": "http.response.body", "body": part} if is_body else part
        finally:
            self.closed += 1
