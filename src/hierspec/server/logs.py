"""Logs of a service: a line a request, with its id; as text or as JSON. Prompts are never logged.

A valid ``X-Request-Id`` of the client is the request's id, otherwise one is made; the answer's
header says which.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from hierspec.engine.request import Request

log = logging.getLogger("hierspec.server")
request_id: ContextVar[str] = ContextVar("request_id", default="")
_ends: ContextVar[list[Request]] = ContextVar("ends")

_VALID_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_SLOWER = 1.05  # times as long as without drafts, above which they do not pay
_UNLOGGED_PATHS = ("/health", "/health/live", "/health/ready", "/metrics")


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
        pairs = [f"{key}={value}" for key, value in fields.items()]
        return " ".join([super().format(record), *pairs])


def configure(level: str, form: str) -> None:
    """Send this package's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger = logging.getLogger("hierspec")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level.upper())


def add_end(ended: Request) -> None:
    """Let the line of the request that is served now say what this sequence of it wrote."""
    _ends.get([]).append(ended)


def _written(ends: Sequence[Request]) -> dict[str, Any]:
    if not ends:
        return {}
    num_tokens = [len(ended.token_ids) for ended in ends]
    decoding = max(ended.total_seconds - ended.time_to_first_token for ended in ends)
    decoded = sum(num_tokens) - len(ends)  # the first comes with the prompt
    drafts: dict[str, list[int]] = {}
    for level in (level for ended in ends for level in ended.levels if level.num_draft_tokens):
        counts = drafts.setdefault(level.name, [0, 0])
        counts[0] += level.num_accepted_tokens
        counts[1] += level.num_draft_tokens
    slowdowns = [ended.slowdown for ended in ends if ended.slowdown is not None]
    fields = {
        "prompt_tokens": ends[0].num_prompt_tokens,
        "cached_tokens": ends[0].num_cached_tokens,
        "output_tokens": sum(num_tokens),
        "tokens_per_second": round(decoded / decoding, 1) if decoded > 0 < decoding else None,
        "finish_reason": ",".join(dict.fromkeys(ended.finish_reason or "" for ended in ends)),
        "levels": ",".join(f"{name}:{kept}/{all_}" for name, (kept, all_) in drafts.items()),
    }
    if max(slowdowns, default=0.0) > _SLOWER:
        fields["drafts"] = (
            f"did not pay: a token took at least {max(slowdowns):.2f} times as long as without "
            "them; --hierarchy autoregressive leaves them out, speculative=false for one request"
        )
    return fields


class RequestLog:
    """Middleware: gives every request an id and writes a line when it has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent_id = dict(scope["headers"]).get(b"x-request-id", b"")
        new_id = (
            sent_id.decode() if _VALID_ID.fullmatch(sent_id) else f"req-{secrets.token_hex(12)}"
        )
        token, began, status = request_id.set(new_id), time.monotonic(), 499
        ends: list[Request] = []
        ends_token = _ends.set(ends)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", new_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            if scope["path"] not in _UNLOGGED_PATHS or status >= 400:
                fields = {
                    "request_id": new_id,
                    "method": scope["method"],
                    "path": scope["path"][:256],
                    "status": status,
                    "seconds": round(time.monotonic() - began, 4),
                    **_written(ends),
                }
                log.info("request", extra={"fields": fields})
            request_id.reset(token)
            _ends.reset(ends_token)
