"""Errors that Ray Serve's proxy itself sends to clients, converted to OpenAI's error object.

It sends them when there is no gateway (at the start and at the end), or the gateway has died.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .calls import HttpStart, error_body, error_event

Message = MutableMapping[str, Any]
_AWAY = "the service is starting, ending or was interrupted: ask again"
_HEADERS = ((b"content-type", b"application/json"), (b"retry-after", b"1"))


class CleanErrors:
    """Middleware: refusals in plain text are replaced, a stream that was cut is ended in words."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/-/"):  # Ray's own pages
            await self.app(scope, receive, send)
            return
        start: HttpStart | None = None
        replaced = ended = False

        async def told(message: Message) -> None:
            nonlocal start, replaced, ended
            if message["type"] == "http.response.start":
                start = HttpStart(message["status"], tuple(map(tuple, message.get("headers", ()))))
                replaced = start.status >= 400 and not start.of_type(b"application/json")
                if replaced:
                    message = {**message, "status": 503, "headers": _HEADERS}
            elif message["type"] == "http.response.body":
                ended = not message.get("more_body", False)
                if replaced:
                    body = json.dumps(error_body(503, _AWAY)).encode() if ended else b""
                    message = {**message, "body": body}
            await send(message)

        await self.app(scope, receive, told)
        if start is None:  # nothing was sent, and the proxy has no words of its own
            await told({"type": "http.response.start", "status": 500})
            await told({"type": "http.response.body"})
        elif start.streams and not ended:
            body = error_event("this answer was interrupted: ask again")
            await send({"type": "http.response.body", "body": body})


def middlewares() -> list[Any]:
    """List what Ray's proxies put in front (``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH``)."""
    from starlette.middleware import Middleware

    return [Middleware(CleanErrors)]
