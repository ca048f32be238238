"""A made-up service behind the real page: levels, rounds, errors and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aiohttp import web

from fakes.servers import StubServer, said
from hierspec.server.playground.page import build_page

NAMES = ["ngram", "small", "target"]
TOKENS = [(" once", "ngram"), (" upon", "small"), (" a", "target")]


@dataclass
class LevelsStub(StubServer):
    """Every round: an n-gram's token, the small model's, the target's own; two thrown away."""

    tokens: int = 3
    chat: bool = True
    key: str = ""
    finish_reason: ClassVar[str] = "stop"
    refusal_status: ClassVar[int] = 400
    refusal: ClassVar[dict] = {"message": "prompt <b>too long</b>", "type": "invalid_request_error"}
    pieces_before_breaking_off: ClassVar[int] = 2

    def locked(self, request):
        """The answer without the right key; ``None`` with it, or where none is wanted."""
        if not self.key or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        error = {"message": "this service needs an API key", "code": "missing_api_key"}
        return web.json_response({"error": error}, status=401)

    async def complete(self, request):
        return self.locked(request) or await super().complete(request)

    async def models(self, request):
        if locked := self.locked(request):
            return locked
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
        return web.Response(body=made.body, headers=made.headers)

    def pause_before(self, body):
        return self.pause * (3 if is_plain(body) else 1)

    def piece(self, number, body, prompt):
        plain = is_plain(body)
        tokens = [{"text": text, "level": "target" if plain else who} for text, who in TOKENS]
        if prompt == "markup":
            tokens[0]["text"] = "<img src=x onerror=alert(1)>\n"
        text = "".join(token["text"] for token in tokens)
        choice = {"index": 0, "finish_reason": None, **said(text, "messages" in body)}
        chunk = {"choices": [choice]}
        if plain:
            return chunk
        drafts = [
            {"level": name, "num_draft_tokens": 2, "num_accepted_tokens": 1} for name in NAMES[:-1]
        ]
        plan = "plain" if number == 0 else "ngram 2 > small 2"
        return {**chunk, "hierspec": {"tokens": tokens, "drafts": drafts, "plan": plan}}


def is_plain(body):
    """Whether a request asks for decoding without drafts."""
    return body.get("speculative") is False
