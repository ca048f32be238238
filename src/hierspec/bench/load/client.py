"""Sends streamed requests to an OpenAI-compatible server, timed as a user sees them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError
from hierspec.utils.records import Record
from hierspec.utils.schema import parse_json, validate

if TYPE_CHECKING:
    import aiohttp

BACKENDS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}  # vLLM's names
_LONGEST_ERROR = 200  # characters of a server's answer that a message repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go, and the fields they share.

    Attributes:
        base_url: without ``/v1`` and without a slash at its end.
        backend: ``openai`` (completions) or ``openai-chat``.
        options: further fields of every body: ``temperature``, ``ignore_eos``, ….
        timeout: seconds for a request as a whole.
    """

    base_url: str
    backend: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    @property
    def url(self) -> str:
        return self.base_url + BACKENDS[self.backend]

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        content = (
            {"messages": [{"role": "user", "content": prompt}]}
            if self.backend == "openai-chat"
            else {"prompt": prompt}
        )
        return {
            "model": self.model,
            **content,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.options,
        }


@dataclass(slots=True)
class RequestOutcome:
    """The answer to one request, timed in seconds of ``time.perf_counter``.

    Attributes:
        arrivals: when each piece of text arrived.
        num_output_tokens: from the server's ``usage``; without one, the number of pieces.
        counted: whether the server sent ``usage``.
        error: why it failed; empty where the stream came to its end.
    """

    started: float
    ended: float = 0.0
    arrivals: list[float] = field(default_factory=list[float])
    text: str = ""
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    counted: bool = False
    error: str = ""

    @property
    def latency(self) -> float:
        return self.ended - self.started

    @property
    def ttft(self) -> float:
        """Seconds to the first token, or to the end where there was none."""
        return (self.arrivals[0] if self.arrivals else self.ended) - self.started

    @property
    def itls(self) -> list[float]:
        """Seconds between pieces of text."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


def load_aiohttp() -> Any:
    """Import the HTTP client.

    Raises:
        HierspecError: it is not installed.
    """
    try:
        import aiohttp
    except ImportError:
        raise HierspecError(
            "bench serve needs an HTTP client: pip install 'hierspec[server]'"
        ) from None
    return aiohttp


async def request(
    session: aiohttp.ClientSession, endpoint: Endpoint, prompt: str, max_tokens: int
) -> RequestOutcome:
    """Send one request and read its stream to the end; whatever fails is in ``error``."""
    aiohttp = load_aiohttp()
    outcome = RequestOutcome(started=time.perf_counter())
    try:
        async with (
            asyncio.timeout(endpoint.timeout),
            session.post(endpoint.url, json=endpoint.body(prompt, max_tokens)) as response,
        ):
            if response.status == 200:
                await _read_stream(response, outcome)
            else:
                outcome.error = refusal(response.status, await response.text(errors="replace"))
    except TimeoutError:
        outcome.error = f"no end within {endpoint.timeout:g} s"
    except HierspecError as error:
        outcome.error = str(error)[:_LONGEST_ERROR]
    except (aiohttp.ClientError, OSError) as error:
        outcome.error = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    outcome.ended = time.perf_counter()
    return outcome


def refusal(status: int, text: str) -> str:
    """Format a server's error answer, OpenAI's object or any other text, as one line."""
    try:
        error = json.loads(text)["error"]
        message = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        message = text
    return f"HTTP {status}: {' '.join(message.split())}"[:_LONGEST_ERROR]


class _StreamDelta(Record):
    content: str | None = None
    reasoning_content: str | None = None


class _StreamChoice(Record):
    text: str | None = None
    delta: _StreamDelta | None = None
    finish_reason: str | None = None


class _StreamUsage(Record):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _StreamEvent(Record):
    choices: list[_StreamChoice] | None = None
    usage: _StreamUsage | None = None
    error: Any = None


async def _read_stream(response: aiohttp.ClientResponse, outcome: RequestOutcome) -> None:
    """Read an answer's events.

    Raises:
        HierspecError: one is not as OpenAI's are.
    """
    finished = False
    async for data in events(response.content.iter_any()):
        now = time.perf_counter()
        if data == b"[DONE]":
            finished = True
            continue
        event = validate(_StreamEvent, parse_json(data, "the stream"), "the stream")
        if error := event.error:
            outcome.error = str(error.get("message") if isinstance(error, dict) else error)
            return
        for choice in event.choices or ():
            delta = choice.delta or _StreamDelta()
            if text := choice.text or delta.content or delta.reasoning_content:
                outcome.arrivals.append(now)
                outcome.text += text
            finished = finished or choice.finish_reason is not None
        if event.usage:
            outcome.num_input_tokens = event.usage.prompt_tokens or 0
            outcome.num_output_tokens = event.usage.completion_tokens or 0
            outcome.counted = True
    if not outcome.counted:
        outcome.num_output_tokens = len(outcome.arrivals)
    if not finished:
        outcome.error = "the stream broke off"


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the ``data`` of server-sent events, however the connection cuts them.

    Source: WHATWG HTML, section 9.2 (here an event's data is one line, as OpenAI sends it).
    """
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()
