"""An ASGI application that answers batch requests with what they ask for."""

from __future__ import annotations

import asyncio
import json


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

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            for _ in range(2):
                phase = (await receive())["type"]
                self.phases.append(phase)
                scope["state"]["ready"] = True
                await send({"type": f"{phase}.complete"})
            return None
        assert scope["state"]["ready"]
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


def request(name, prompt, **body):
    """A line of a batch file."""
    body = {"model": "m", "prompt": prompt, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
