"""A server that speaks OpenAI's API with made-up words: what a client does can be counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Stub:
    """What it answers, and what it has been asked.

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
            error = {"message": "too many requests:\n wait", "type": "rate_limit_error"}
            return web.json_response({"error": error}, status=429)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            for i in range(self.pieces):
                await asyncio.sleep(self.pause)
                piece = {"delta": {"content": f"w{i} "}} if chat else {"text": f"w{i} "}
                await self._send(response, {"choices": [{"index": 0, **piece}]})
                if prompt in self.break_off:
                    return response
            last = {"delta": {}} if chat else {"text": ""}
            await self._send(response, {"choices": [{**last, "finish_reason": "length"}]})
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

    async def _send(self, response, event):
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


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
