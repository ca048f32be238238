"""``POST /v1/chat/completions``: answer a conversation."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request

from hierspec.engine.tickets import Ended, EngineRequest, Progress

from .. import tools
from ..access import service_of, tenant_of
from ..answers import (
    DONE,
    StreamUsage,
    chat_logprobs,
    event,
    levels_of,
    new_id,
    speculation_summary,
    usage,
)
from ..constraints import format_grammar, processors
from ..conversation import chat_ids, plain_messages
from ..errors import ApiError
from ..prepare import DEFAULT_MODEL, engine_requests, requested_hierarchy
from ..service import Service, Streams, Written
from ..streaming import streamed, unless_gone
from ..wire.chat import ChatAnswer, ChatChoice, ChatMessage, ChatRequest
from ..wire.common import ErrorAnswer

router = APIRouter()
_EXAMPLE = {
    "model": DEFAULT_MODEL,
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 16,
}


@router.post(
    "/v1/chat/completions",
    response_model=ChatAnswer,
    responses={"4XX": {"model": ErrorAnswer}},
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def chat_completions(request: Request, body: ChatRequest) -> Any:
    """Answer a conversation in the model's own chat format."""
    service = service_of(request)
    made = await service.in_background(prepare, service, body, tenant_of(request))
    streams = service.submit(made)
    answer = _ChatAnswer(service, body)
    if body.stream:
        return streamed(streams, answer.events(streams))
    return await unless_gone(request, streams, answer.whole(streams))


def prepare(service: Service, body: ChatRequest, tenant: str) -> list[EngineRequest]:
    """Prepare the engine's requests.

    Raises:
        ApiError: the request asks for something unsupported.
    """
    requested_hierarchy(service, body)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    found = format_grammar(body.response_format)
    wanted = tools.grammar_of(body.tools or (), body.tool_choice)
    if found is not None and wanted is not None and body.tool_choice not in (None, "auto"):
        raise ApiError("response_format and a forced tool_choice exclude each other")
    offered = [] if body.tool_choice == "none" else body.tools or []
    messages = plain_messages(body.messages)
    prompt = chat_ids(service, messages, offered, body.add_generation_prompt)
    max_tokens = body.max_completion_tokens or body.max_tokens
    return engine_requests(
        service,
        body,
        [prompt],
        max_tokens=max_tokens or service.settings.max_tokens_default,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        tenant=tenant,
        processors=processors(service, found or wanted, [prompt], body.n or 1),
    )


class _ChatAnswer:
    """The answer to one request, whole or in events."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self.service, self.body = service, body
        self.id, self.created = new_id("chatcmpl"), int(time.time())
        self.with_tools = bool(body.tools) and body.tool_choice != "none"

    async def whole(self, streams: Streams) -> ChatAnswer:
        found = await streams.all()
        ended = [one.ended for one in found if one.ended is not None]
        return ChatAnswer(
            id=self.id,
            created=self.created,
            model=self.service.model,
            choices=[self._choice(i, one) for i, one in enumerate(found)],
            usage=usage(ended),
            system_fingerprint=self.service.fingerprint,
            speculative=speculation_summary(ended),
        )

    def _choice(self, which: int, written: Written) -> ChatChoice:
        ended = written.ended
        assert ended is not None
        text, calls = tools.split_calls(ended.text) if self.with_tools else (ended.text, [])
        message = ChatMessage(role="assistant", content=text if text or not calls else None)
        if calls:
            message.tool_calls = calls
        return ChatChoice(
            index=which,
            message=message,
            logprobs=chat_logprobs(self.service, written.events) if self.body.logprobs else None,
            finish_reason="tool_calls" if calls else ended.finish_reason,
        )

    async def events(self, streams: Streams) -> AsyncIterator[str]:
        body = self.body
        counting = StreamUsage(body.stream_options, streams)
        base: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.service.model,
            "system_fingerprint": self.service.fingerprint,
        }
        begun = set[int]()
        callers = {i: tools.CallStream() for i in range(len(streams.tickets))}
        ended: list[Ended] = []
        async for which, progress in streams:
            over = progress.ended
            if over is not None:
                if over.error is not None:
                    raise over.error
                ended.append(over)
            text = "".join(one.text for one in progress.events)
            delta: dict[str, Any] = {}
            if which not in begun:
                begun.add(which)
                delta = {"role": "assistant", "content": ""}
            finish = None if over is None else over.finish_reason
            if self.with_tools:
                caller, before = callers[which], callers[which].count
                text, calls = caller.feed(text, over is not None)
                if calls:
                    delta["tool_calls"] = [
                        {"index": before + i, **call.model_dump()} for i, call in enumerate(calls)
                    ]
                if over is not None and caller.count:
                    finish = "tool_calls"
            if text:
                delta["content"] = text
            choice: dict[str, Any] = {
                "index": which,
                "delta": delta,
                "logprobs": None,
                "finish_reason": finish,
            }
            if body.logprobs:
                choice["logprobs"] = chat_logprobs(self.service, progress.events).model_dump()
            yield event(self._chunk(base, [choice], counting, progress))
        if counting.wanted:
            last = {**base, "choices": [], "usage": usage(ended).model_dump()}
            yield event({**last, "speculative": speculation_summary(ended)})
        yield DONE

    def _chunk(
        self,
        base: dict[str, Any],
        choices: Sequence[Any],
        counting: StreamUsage,
        progress: Progress,
    ) -> dict[str, Any]:
        chunk = {**base, "choices": list(choices), **counting.of(progress)}
        if self.body.return_levels:
            chunk["hierspec"] = levels_of(progress)
        return chunk
