"""A made-up service behind the real page: levels, rounds, errors and pauses."""

from __future__ import annotations

import asyncio

from aiohttp import web
from fakes import StubServer

from hierspec.server.playground.page import build_page

NAMES = ["ngram", "small", "target"]
TOKENS = [(" once", "ngram"), (" upon", "small"), (" a", "target")]


class LevelsStub(StubServer):
    """Every round: an n-gram's token, the small model's, the target's own; two thrown away."""

    chat = True

    async def models(self, request):
        card = {
            "id": "stub",
            "object": "model",
            "hierarchies": ["first", "other"],
            "levels": {"first": NAMES, "other": NAMES},
            "chat_template": self.chat,
        }
        data = [card]
        return web.json_response({"object": "list", "data": data})

    async def page(self, request):
        made = build_page()
        return web.Response(text=made.html, content_type="text/html", headers=made.headers)

    async def complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        chat = "messages" in body
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        if prompt in self.refuse:
            error = {"message": "prompt <b>too long</b>", "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        plain = body.get("speculative") is False
        self.live += 1
        try:
            for i in range(self.pieces):
                await asyncio.sleep(self.pause * (3 if plain else 1))
                await self._send(response, self._piece(chat, plain, prompt))
                if prompt in self.break_off and i == 1:
                    return response
            last = {
                "index": 0,
                "finish_reason": "stop",
                **({"delta": {}} if chat else {"text": ""}),
            }
            await self._send(response, {"choices": [last]})
            usage = {"prompt_tokens": 5, "completion_tokens": 3 * self.pieces}
            await self._send(response, {"choices": [], "usage": usage})
            await response.write(b"data: [DONE]\n\n")
        except (ConnectionError, asyncio.CancelledError):
            self.cancelled += 1
            raise
        finally:
            self.live -= 1
        return response

    def _piece(self, chat, plain, prompt):
        tokens = [{"text": text, "level": "target" if plain else who} for text, who in TOKENS]
        if prompt == "markup":
            tokens[0]["text"] = "<img src=x onerror=alert(1)>\n"
        text = "".join(token["text"] for token in tokens)
        said = {"delta": {"content": text}} if chat else {"text": text}
        chunk = {"choices": [{"index": 0, "finish_reason": None, **said}]}
        if plain:
            return chunk
        drafts = [
            {"level": name, "num_draft_tokens": 2, "num_accepted_tokens": 1} for name in NAMES[:-1]
        ]
        return {**chunk, "hierspec": {"tokens": tokens, "drafts": drafts}}
