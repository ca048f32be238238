"""The lines of batch files: requests in the input, their answers in the output.

Source: OpenAI's batch format (custom_id, method, url, body; id, custom_id, response, error).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from hierspec.errors import HierspecError
from hierspec.utils.schema import NonEmptyString, checked_dataclass, validate
from hierspec.utils.validation import HALF_CHARACTERS

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_MAX_LINE_BYTES = 16 << 20


@checked_dataclass
class _Request:
    custom_id: NonEmptyString
    method: Literal["POST"]
    url: Any = None  # a wrong one has a code of its own
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input.

    Attributes:
        id: of its answer: the line's number and a hash of its bytes, so that a second run
            recognises the answers of the first.
        custom_id: the user's name for it; ``None`` if there is none, or it is invalid.
        error: why the line is no valid request, as code and message; ``None`` if it is one.
    """

    id: str
    custom_id: str | None
    url: str = ""
    body: Mapping[str, Any] | None = None
    error: tuple[str, str] | None = None


def read_lines(path: Path) -> Iterator[Line]:
    """Read the lines of a file in order, except empty ones; invalid ones have an ``error``.

    Raises:
        HierspecError: the file cannot be read.
    """
    custom_ids: set[str] = set()
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                if raw.strip():
                    yield _parse_line(number, raw.strip(), custom_ids)
    except OSError as error:
        raise HierspecError(f"cannot read requests from {path}: {error.strerror}") from None


def answer_line(line: Line, answer: httpx.Response) -> bytes:
    """Return the output line of a request that a service has answered, with success or an error."""
    try:
        body = answer.json()
    except ValueError:
        body = answer.text
    response = {
        "status_code": answer.status_code,
        "request_id": answer.headers.get("x-request-id") or line.id,
        "body": body,
    }
    return _output_line(line, response=response)


def failure_line(line: Line, code: str, message: str) -> bytes:
    """Return the output line of a request that no service has answered."""
    return _output_line(line, error={"code": code, "message": message})


def _output_line(line: Line, response: Any = None, error: Any = None) -> bytes:
    row = {"id": line.id, "custom_id": line.custom_id, "response": response, "error": error}
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class _BadLineError(Exception):
    def __init__(self, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.code = code


def _parse_line(number: int, raw: bytes, custom_ids: set[str]) -> Line:
    answer_id = f"batch_req_{number:08d}_{hashlib.sha256(raw).hexdigest()[:16]}"
    custom_id: str | None = None
    try:
        if len(raw) > _MAX_LINE_BYTES:
            raise _BadLineError(f"it is longer than {_MAX_LINE_BYTES >> 20} MiB")
        row = _parse_object(raw)
        if isinstance(row.get("custom_id"), str):
            if HALF_CHARACTERS.search(row["custom_id"]):
                raise _BadLineError("custom_id holds half a character (a lone surrogate)")
            custom_id = row["custom_id"]
        request = validate(_Request, row, "")
        if request.url not in URLS:
            raise _BadLineError(f"url must be one of {', '.join(URLS)}", "invalid_url")
        if request.body.get("stream"):
            raise _BadLineError("stream has no meaning in a batch: leave it out")
        if custom_id in custom_ids:
            raise _BadLineError(
                f"custom_id {custom_id!r} is used in an earlier line", "duplicate_custom_id"
            )
    except (_BadLineError, HierspecError) as error:
        code = getattr(error, "code", "invalid_request")
        return Line(answer_id, custom_id, error=(code, f"line {number}: {error}"))
    custom_ids.add(request.custom_id)
    return Line(answer_id, custom_id, request.url, request.body)


def _parse_object(raw: bytes) -> dict[str, Any]:
    try:
        request = json.loads(raw)
    except UnicodeDecodeError:
        raise _BadLineError("not UTF-8 text", "invalid_json_line") from None
    except (ValueError, RecursionError) as error:
        raise _BadLineError(f"not JSON: {error}", "invalid_json_line") from None
    if not isinstance(request, dict):
        raise _BadLineError("not a JSON object", "invalid_json_line")
    return request
