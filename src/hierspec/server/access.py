"""API keys, and limits on the size of requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierspec.utils.validation import HALF_CHARACTERS

from .errors import ApiError, to_api_error
from .service import Service

STATIC_FILES = "/docs-static"  # of the pages that describe the service
# These need no key: what runs here is public, and a browser that asks for a page cannot send one.
_PUBLIC_PATHS = re.compile(
    rf"/|/health|/health/(live|ready)|/version|/docs|/redoc|/openapi[.]json|{STATIC_FILES}/.*"
)


def service_of(request: Request) -> Service:
    """Return the service behind an application."""
    return request.app.state.service


def tenant_of(request: Request) -> str:
    """Return the tenant of a request: requests with different keys share no cached state."""
    return request.scope.get("hierspec_tenant", "")


async def refuse_half_characters(request: Request) -> None:
    """Refuse a body with half a character in any text, before its fields are looked at.

    JSON may hold one (``"\\ud83d"``); UTF-8 may not, so that no answer could say it again.
    """
    if request.method != "POST":  # no other has a body
        return
    try:
        body = await request.json()
        if not HALF_CHARACTERS.search(json.dumps(body, ensure_ascii=False)):
            return
        place = ".".join(_half_character(body) or ())[:256]
    except ValueError:  # no JSON, as the check of the fields will say
        return
    except RecursionError:
        raise ApiError("the body is nested too deeply") from None
    raise ApiError(
        f"{place or 'the body'} holds half a character (a lone surrogate), as of an emoji that was "
        "cut in two: send whole ones",
        param=place or None,
        code="invalid_unicode",
    )


def _half_character(value: Any) -> list[str] | None:
    """Return the keys that lead to the first half character; ``None`` if there is none."""
    if isinstance(value, str):
        return [] if HALF_CHARACTERS.search(value) else None
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        if _half_character(key) is not None:
            return []
        if (rest := _half_character(inner)) is not None:
            return [str(key), *rest]
    return None


class Access:
    """Middleware that refuses requests without an API key, and bodies above a size.

    Args:
        keys: a request must send one of them (``Authorization: Bearer …``); empty: open to all.
        max_body: of a request, in bytes.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], max_body: int) -> None:
        self.app, self.max_body = app, max_body
        self._too_long = f"the body is longer than {max_body} bytes"
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        num_bytes, has_started = 0, False

        async def receive_counted() -> Message:  # whatever the declared length
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.max_body:
                raise ApiError(self._too_long, 413, code="body_too_large")
            return message

        async def send_watched(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            headers = dict(scope["headers"])
            needs_key = self._keys and scope["method"] != "OPTIONS"
            if needs_key and not _PUBLIC_PATHS.fullmatch(scope["path"]):
                scope["hierspec_tenant"] = self._tenant(headers)
            length = headers.get(b"content-length", b"0")
            if not length.isdigit():
                raise ApiError("Content-Length is not a number")
            if len(length) > 15 or int(length) > self.max_body:
                raise ApiError(self._too_long, 413, code="body_too_large")
            await self.app(scope, receive_counted, send_watched)
        except Exception as error:  # here, so that the answer has its id, and headers for browsers
            if has_started:
                raise
            await to_api_error(error).response()(scope, receive, send)

    def _tenant(self, headers: dict[bytes, bytes]) -> str:
        scheme, _, sent_key = headers.get(b"authorization", b"").partition(b" ")
        sent_key = sent_key.strip()
        if scheme.lower() != b"bearer" or not sent_key:
            raise ApiError(
                "this service needs an API key: send Authorization: Bearer KEY",
                401,
                code="missing_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        # Every key is compared, each in constant time: the time taken reveals nothing.
        matches = [hmac.compare_digest(sent_key, key) for key in self._keys]
        if not any(matches):
            raise ApiError("this API key is not valid here", 401, code="invalid_api_key")
        return hashlib.sha256(sent_key).hexdigest()[:16]
