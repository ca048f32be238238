"""Answers: complete or as server-sent events, and abandoned when their client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Generic, TypeVar

import fastapi
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from hierspec.engine.detokenize import token_bytes
from hierspec.engine.request import Progress, Request
from hierspec.engine.results import LevelStats, TokenEvent

from .access import service_of, tenant_of
from .errors import ApiError, to_api_error
from .prepare import deadline_of
from .service import Service, Streams
from .wire.common import GenerationRequest, StreamOptions

BODY = TypeVar("BODY", bound=GenerationRequest)
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_CLIENT_LEFT = 499  # appears only in the log
_COUNTS = (  # of a level's, those that are told
    *("name", "num_drafts", "num_draft_tokens", "num_accepted_tokens"),
    *("num_accepted_tokens_per_pos", "acceptance_rate"),
)
MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON does not have


def new_id(kind: str) -> str:
    """Return a random id, as in ``chatcmpl-…``, that reveals nothing about other requests."""
    return f"{kind}-{secrets.token_hex(16)}"


def format_event(value: Any, name: str | None = None) -> str:
    """Format one server-sent event."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"


class Reply(ABC, Generic[BODY]):
    """The answer to one request; endpoints say what it consists of.

    Args:
        requests: for its sequences; ``streams`` has them once they are sent to the engine.
        prefix: of its id.
    """

    streams: Streams

    def __init__(
        self, service: Service, body: BODY, requests: Sequence[Request], prefix: str
    ) -> None:
        self.service, self.body, self.requests = service, body, requests
        self.id, self.created = new_id(prefix), int(time.time())

    @abstractmethod
    async def complete(self) -> dict[str, Any]:
        """Return the whole answer."""

    @abstractmethod
    def events(self) -> AsyncIterator[str]:
        """Yield the answer's events."""

    async def send(self, request: fastapi.Request) -> Any:
        """Send what the body asks for; if the client leaves, the sequences are cancelled.

        Raises:
            RefusedError: the queue is full, or the service is shutting down.
            ApiError: the client has left.
        """
        self.streams = self.service.submit(self.requests)
        if self.body.stream:
            return _EventStream(self.streams, self._streamed())
        work = asyncio.ensure_future(self.complete())
        disconnection = asyncio.ensure_future(_wait_for_disconnection(request))
        try:
            await asyncio.wait({work, disconnection}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise ApiError("the client has left", _CLIENT_LEFT, code="cancelled")
        finally:
            self.streams.close()
            for task in (work, disconnection):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _streamed(self) -> AsyncIterator[str]:
        try:
            async for text in self.events():
                yield text
        except Exception as error:
            # The status has been sent already, so the error is the last event.
            yield format_event(to_api_error(error).body)


class _EventStream(StreamingResponse):
    """Server-sent events; however their sending ends, the sequences are cancelled."""

    def __init__(self, streams: Streams, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not in the events: if the client has left already, none is ever asked for.
        with contextlib.closing(self._streams):
            await super().__call__(scope, receive, send)


async def reply(
    kind: Callable[[Service, BODY, str], Reply[BODY]], request: fastapi.Request, body: BODY
) -> Any:
    """Prepare an answer of a kind off the event loop, and send it."""
    service, tenant = service_of(request), tenant_of(request)
    deadline, num_queued = deadline_of(service, body), service.engine.num_requests
    prepared = await service.in_background(
        kind, service, body, tenant, deadline=deadline, num_queued=num_queued
    )
    return await prepared.send(request)


async def _wait_for_disconnection(request: fastapi.Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class ChoicesReply(Reply[BODY]):
    """An answer of choices, ``n`` for every prompt.

    Attributes:
        kind: the value of ``object``; ``chunk_kind``: in chunks of a stream.
        only_prompts: what is written is dropped.
    """

    kind = chunk_kind = ""
    num_prompts, only_prompts = 1, False

    @abstractmethod
    def choice(self, index: int, ended: Request, events: list[TokenEvent]) -> dict[str, Any]:
        """Return a whole choice."""

    @abstractmethod
    def parts(self, index: int, progress: Progress, is_counted: bool) -> Iterator[dict[str, Any]]:
        """Yield what a stream's chunks say of a choice after a round.

        Args:
            is_counted: whether every chunk counts the tokens so far.
        """

    async def complete(self) -> dict[str, Any]:
        sequences = await self.streams.finish()
        choices = [self.choice(i, *sequence) for i, sequence in enumerate(sequences)]
        totals = self._totals([ended for ended, _ in sequences])
        return {**self._base(self.kind), "choices": choices, **totals}

    async def events(self) -> AsyncIterator[str]:
        base = self._base(self.chunk_kind)
        options = self.body.stream_options or StreamOptions()
        is_counted = options.include_usage and options.continuous_usage_stats
        prompts = _one_each([request.prompt for request in self.requests], self.num_prompts)
        num_prompt_tokens, num_tokens = sum(map(len, prompts)), 0
        async for index, progress in self.streams:
            if progress.ended is not None and progress.ended.error is not None:
                raise progress.ended.error
            num_tokens += 0 if self.only_prompts else len(progress.events)
            more: dict[str, Any] = {}
            if options.include_usage:
                more["usage"] = _usage(num_prompt_tokens, num_tokens) if is_counted else None
            if self.body.return_levels:
                more["hierspec"] = {
                    "tokens": [
                        {"text": token.text, "token_id": token.token_id, "level": token.level}
                        for token in progress.events
                    ],
                    "drafts": [
                        {"level": name, "num_draft_tokens": drafted, "num_accepted_tokens": kept}
                        for name, drafted, kept in progress.level_counts
                    ],
                    "plan": progress.plan,
                }
            for part in self.parts(index, progress, is_counted):
                yield format_event({**base, "choices": [part], **more})
                more.pop("hierspec", None)
        if options.include_usage:
            yield format_event({**base, "choices": [], **self._totals(self.requests)})
        yield "data: [DONE]\n\n"

    def _base(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.service.model,
            "system_fingerprint": self.service.fingerprint,
        }

    def _totals(self, ended: Sequence[Request]) -> dict[str, Any]:
        usage = count_usage(ended, self.num_prompts, self.only_prompts)
        return {"usage": usage, "speculative": summarise_speculation(ended)}


def _one_each(of_sequences: Sequence[Any], num_prompts: int) -> Sequence[Any]:
    return of_sequences[:: max(1, len(of_sequences) // num_prompts)]


def count_usage(
    sequences: Sequence[Request], num_prompts: int = 1, only_prompts: bool = False
) -> dict[str, Any]:
    """Count the tokens of all sequences; a prompt is counted once for its ``n`` choices.

    Args:
        only_prompts: whether what was written is dropped.
    """
    by_prompt = _one_each(sequences, num_prompts)
    predictions = [
        level for sequence in sequences for level in sequence.levels if level.name == "prediction"
    ]
    num_cut = sum(
        sequence.names[level] == "prediction"
        for sequence in sequences
        for level in sequence.cut_origins
    )
    return _usage(
        sum(sequence.num_prompt_tokens for sequence in by_prompt),
        0 if only_prompts else sum(len(sequence.token_ids) for sequence in sequences),
        sum(sequence.num_cached_tokens for sequence in by_prompt),
        sum(level.num_accepted_tokens for level in predictions) - num_cut,
        sum(level.num_draft_tokens for level in predictions),
    )


def _usage(
    num_prompt_tokens: int,
    num_tokens: int,
    num_cached: int = 0,
    num_accepted: int = 0,
    num_predicted: int = 0,
) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": num_accepted,
            "rejected_prediction_tokens": num_predicted - num_accepted,
            "reasoning_tokens": 0,
        },
    }


def summarise_speculation(sequences: Sequence[Request]) -> dict[str, Any]:
    """Summarise, by level, how many draft tokens of all sequences of a request were kept.

    ``plans`` counts the target's rounds by which levels drafted for them.
    """
    calls = sum(sequence.target_calls for sequence in sequences)
    num_tokens = sum(max(len(sequence.token_ids) - 1, 0) for sequence in sequences)
    levels: dict[str, LevelStats] = {}
    for sequence in sequences:
        for level in sequence.levels:
            if level.name == "prediction" and not sequence.prediction:
                continue  # the level is there for requests that predict
            total = levels.setdefault(level.name, LevelStats(level.name))
            total.num_drafts += level.num_drafts
            total.num_draft_tokens += level.num_draft_tokens
            total.num_accepted_tokens += level.num_accepted_tokens
            kept = zip_longest(
                total.num_accepted_tokens_per_pos, level.num_accepted_tokens_per_pos, fillvalue=0
            )
            total.num_accepted_tokens_per_pos = list(map(sum, kept))
    plans = sum((Counter(sequence.plans) for sequence in sequences), Counter[str]())
    return {
        "target_calls": calls,
        "mean_acceptance_length": num_tokens / calls if calls else 0.0,
        "levels": [{key: getattr(total, key) for key in _COUNTS} for total in levels.values()],
        "plans": dict(plans),
        "queue_seconds": max((s.queue_seconds for s in sequences), default=0.0),
        "time_to_first_token": min((s.time_to_first_token for s in sequences), default=0.0),
        "total_seconds": max((s.total_seconds for s in sequences), default=0.0),
        "seed": sequences[0].seed if sequences else None,
    }


def token_ids_field(body: GenerationRequest, events: Iterable[TokenEvent]) -> dict[str, list[int]]:
    """Return a choice's ``token_ids``, if ``return_token_ids`` asks for them."""
    return {"token_ids": [event.token_id for event in events]} if body.return_token_ids else {}


def chat_logprobs(service: Service, events: Iterable[TokenEvent]) -> dict[str, Any]:
    """Convert log-probabilities to the format of chat completions."""

    def describe(token: int, logprob: float) -> dict[str, Any]:
        raw = token_bytes(service.tokenizer, token)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, MIN_LOGPROB), "bytes": list(raw)}

    content = [
        describe(event.token_id, event.logprob or 0.0)
        | {"top_logprobs": [describe(*pair) for pair in event.top_logprobs]}
        for event in events
    ]
    return {"content": content, "refusal": None}
