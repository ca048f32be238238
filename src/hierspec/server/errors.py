"""Errors as OpenAI's clients expect them: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hierspec.errors import HierspecError

log = logging.getLogger("hierspec.server")

_TYPES = {  # by status; others below 500 are invalid requests, the rest server errors
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "service_unavailable_error",
}
_ELSEWHERE = {  # paths of llama.cpp's server and of ollama, and what does the same here
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/api/ps": "/health",
    "/api/show": "/v1/models",
    "/api/tags": "/v1/models",
    "/api/version": "/version",
    "/completion": "/v1/completions",
    "/props": "/v1/models",
    "/slots": "/health",
}


class ApiError(Exception):
    """An error as a client sees it.

    Args:
        param: the field of the request that is wrong.
        code: identifies the kind of error to programs.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        default = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def to_api_error(error: BaseException) -> ApiError:
    """Convert an exception to the error that a client sees; unexpected ones are logged."""
    # Not above: it loads torch, and Ray's proxies need the class alone.
    from hierspec.engine.request import DeadlineError, RequestCancelledError
    from hierspec.engine.waiting import DrainingError, QueueFullError

    match error:
        case ApiError():
            return error
        case QueueFullError() | DrainingError():
            full = isinstance(error, QueueFullError)
            status, code = (429, "queue_full") if full else (503, "shutting_down")
            headers = {"Retry-After": str(error.retry_after)}
            return ApiError(str(error), status, code=code, headers=headers)
        case DeadlineError():
            return ApiError("the request timed out", 408, code="timeout")
        case RequestCancelledError():
            return ApiError(str(error), 503, code="cancelled", headers={"Retry-After": "5"})
        case HierspecError():
            return ApiError(str(error))
        case _:
            log.error("request failed", exc_info=error)
            return ApiError("the server failed on this request", 500, code="internal_error")


def install(app: FastAPI) -> None:
    """Answer every failure of ``app`` with an error object."""
    from hierspec.engine.request import DeadlineError, RequestCancelledError
    from hierspec.engine.waiting import DrainingError, QueueFullError

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        message, param = first_error(error.errors())
        return ApiError(message, 400, param=param).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, ApiError):  # raised while the body was read
            return error.__cause__.response()
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is no {request.method} {request.url.path}{_nearest_path(request)}"
        headers = dict(error.headers or {})
        if error.status_code == 405:
            takes = next((value for name, value in headers.items() if name.lower() == "allow"), "")
            message = f"{request.url.path} takes {takes}, not {request.method}"
        return ApiError(message, error.status_code, headers=headers).response()

    @app.exception_handler(Exception)
    async def failure(request: Request, error: Exception) -> JSONResponse:
        return to_api_error(error).response()

    refusals = (QueueFullError, DrainingError, DeadlineError, RequestCancelledError)
    for kind in (ApiError, HierspecError, *refusals):
        app.add_exception_handler(kind, failure)


def _nearest_path(request: Request) -> str:
    """Return a hint where what stands before a path is wrong, and for other servers' paths."""
    path = request.url.path
    known = request.app.openapi()["paths"] if len(path) > 1 else ()
    near = [name for name in known if name.endswith(path) or path.endswith(name)]
    if path in _ELSEWHERE:
        near = [_ELSEWHERE[path]]
    return f"; did you mean {min(near, key=len)}?" if near else ""


def first_error(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Return the first error in a request's body, in one line, and the field it is in."""
    # A message of our own validators says most; a wrong kind of object explains what it lacks.
    own = [error for error in errors if error["type"] == "value_error"]
    kinds = [error for error in errors if error["loc"] and error["loc"][-1] in ("type", "role")]
    first = [*own, *kinds, *errors][0]
    parts = [str(part) for part in first["loc"] if part != "body"]
    place = ".".join(part for part in parts if part.isidentifier() or part.isdigit()) or None
    if first["type"] == "json_invalid":
        return f"the body is not valid JSON: {first.get('ctx', {}).get('error', '')}", None
    if first["type"] in ("missing", "model_attributes_type", "dict_type") and place is None:
        return "the body must be a JSON object, sent with Content-Type: application/json", None
    message = str(first["msg"]).removeprefix("Value error, ")
    return (f"{place}: {message}" if place else message), place
