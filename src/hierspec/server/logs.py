"""Logs of a service: a line a request, with its id; as text or as JSON. Prompts are never logged.

A client's own ``X-Request-Id`` is taken over, if it is one; the answer carries it either way.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("hierspec.server")
request_id: ContextVar[str] = ContextVar("request_id", default="")

_FINE = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_QUIET = ("/health", "/metrics")


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        more = " ".join(f"{key}={value}" for key, value in fields.items())
        text = super().format(record)
        return f"{text} {more}" if more else text


def configure(level: str, form: str) -> None:
    """Send this package's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    own = logging.getLogger("hierspec")
    own.handlers, own.propagate = [handler], False
    own.setLevel(level.upper())


class RequestLog:
    """Middleware: gives every request an id and writes a line when it has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        own = given.decode() if _FINE.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        scope["hierspec_request_id"] = own
        token, began, status = request_id.set(own), time.monotonic(), 499

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", own.encode())]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            if scope["path"] not in _QUIET or status >= 400:
                fields = {
                    "request_id": own,
                    "method": scope["method"],
                    "path": scope["path"][:256],
                    "status": status,
                    "seconds": round(time.monotonic() - began, 4),
                }
                log.info("request", extra={"fields": fields})
            request_id.reset(token)
