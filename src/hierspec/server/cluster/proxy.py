"""Errors that Ray Serve's proxy itself sends to clients, converted to OpenAI's error object.

It sends them while there is no gateway, at the start and at the end, or after the gateway has died.
"""

from __future__ import annotations

import json

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierspec.server.errors import ApiError

from .calls import content_type, error_event, is_stream

_UNAVAILABLE = "the service is starting, ending or was interrupted: ask again"
_ERROR_HEADERS = ((b"content-type", b"application/json"), (b"retry-after", b"1"))


class JsonErrors:
    """Middleware that replaces plain-text errors, of streams too, by OpenAI's error object."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/-/"):  # Ray's own pages
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        is_replaced = is_complete = False

        async def send_clean(message: Message) -> None:
            nonlocal start, is_replaced, is_complete
            if message["type"] == "http.response.start":
                start = message
                is_json = content_type(start).startswith("application/json")
                is_replaced = start["status"] >= 400 and not is_json
                if is_replaced:
                    message = {**message, "status": 503, "headers": _ERROR_HEADERS}
            elif message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)
                if is_replaced:
                    error = json.dumps(ApiError(_UNAVAILABLE, 503).body).encode()
                    message = {**message, "body": error if is_complete else b""}
            await send(message)

        await self.app(scope, receive, send_clean)
        if start is None:  # the proxy has sent nothing
            await send_clean({"type": "http.response.start", "status": 500})
            await send_clean({"type": "http.response.body"})
        elif is_stream(start) and not is_complete:
            body = error_event("this answer was interrupted: ask again")
            await send({"type": "http.response.body", "body": body})


def middlewares() -> list[Middleware]:
    """List middlewares for Ray's proxies (``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH``)."""
    return [Middleware(JsonErrors)]
