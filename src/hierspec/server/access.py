"""API keys, and limits on the size of requests."""

from __future__ import annotations

import hashlib
import hmac

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .service import Service

OPEN = ("/health", "/version", "/")  # without a key


def service_of(request: Request) -> Service:
    """Return the service behind an application."""
    return request.app.state.service


def tenant_of(request: Request) -> str:
    """Return the tenant of a request: requests with different keys share no cached state."""
    return request.scope.get("hierspec_tenant", "")


class Access:
    """Middleware: API keys, and bodies of bounded size.

    Args:
        keys: one of which a request must send (``Authorization: Bearer …``); none: open to all.
        max_body: bytes.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], max_body: int) -> None:
        self.app, self.max_body = app, max_body
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            if self._keys and scope["path"] not in OPEN and scope["method"] != "OPTIONS":
                scope["hierspec_tenant"] = self._tenant(dict(scope["headers"]))
            _check_length(dict(scope["headers"]), self.max_body)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        await self._limited(scope, receive, send)

    def _tenant(self, headers: dict[bytes, bytes]) -> str:
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip()
        if kind.lower() != b"bearer" or not given:
            raise ApiError(
                "this service needs an API key: send Authorization: Bearer KEY",
                401,
                code="missing_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        # Every key is compared, in constant time each: the clock tells nothing.
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if not any(matches):
            raise ApiError("this API key is not known here", 401, code="invalid_api_key")
        return hashlib.sha256(given).hexdigest()[:16]

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stop reading a body that is longer than the limit, whatever length it has declared."""
        seen, begun = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.max_body:
                    raise _too_long(self.max_body)
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except ApiError as error:
            if begun:
                raise
            await error.response()(scope, receive, send)


def _check_length(headers: dict[bytes, bytes], most: int) -> None:
    given = headers.get(b"content-length")
    if given is None:
        return
    if not given.isdigit():
        raise ApiError("Content-Length is not a number")
    if len(given) > 15 or int(given) > most:
        raise _too_long(most)


def _too_long(most: int) -> ApiError:
    return ApiError(f"the body is longer than {most} bytes", 413, code="body_too_large")
