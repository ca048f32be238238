"""``POST /v1/chat/completions``: answer a conversation."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import fastapi

from hierspec.engine.request import Request
from hierspec.server.access import service_of, tenant_of
from hierspec.server.answer_parts import (
    DONE,
    StreamUsage,
    chat_logprobs,
    count_usage,
    describe_round,
    format_event,
    new_id,
    summarise_speculation,
    token_ids_field,
)
from hierspec.server.constraints import constraint_processors, request_constraint
from hierspec.server.conversation import chat_ids, plain_messages
from hierspec.server.errors import ApiError
from hierspec.server.prepare import DEFAULT_MODEL, engine_requests, requested_hierarchy
from hierspec.server.service import FinishedSequence, Service, Streams
from hierspec.server.streaming import stream_events, wait_for_answer
from hierspec.server.tools import OfferedTools
from hierspec.server.wire.chat import ChatAnswer, ChatChoice, ChatMessage, ChatRequest
from hierspec.server.wire.common import ErrorAnswer

router = fastapi.APIRouter()
_KEEP_ALIVE = 5.0  # seconds in which a stream says nothing before it sends an empty chunk
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
async def chat_completions(request: fastapi.Request, body: ChatRequest) -> Any:
    """Answer a conversation in the model's own chat format."""
    service = service_of(request)
    tools, requests = await service.in_background(_prepare, service, body, tenant_of(request))
    streams = service.submit(requests)
    answer = _ChatAnswer(service, body, tools)
    if body.stream:
        return stream_events(streams, answer.events(streams))
    return await wait_for_answer(request, streams, answer.complete(streams))


def _prepare(
    service: Service, body: ChatRequest, tenant: str
) -> tuple[OfferedTools, list[Request]]:
    requested_hierarchy(service, body)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    tools = OfferedTools(
        service.tokenizer, body.tools or (), body.tool_choice, body.parallel_tool_calls is not False
    )
    constraint = request_constraint(body.response_format, tools)
    offered = [] if body.tool_choice == "none" else body.tools or []
    messages = plain_messages(body.messages)
    prompt = chat_ids(
        service, messages, offered, body.add_generation_prompt, body.chat_template_kwargs
    )
    max_tokens = body.max_completion_tokens or body.max_tokens
    requests = engine_requests(
        service,
        body,
        [prompt],
        max_tokens=max_tokens or service.settings.max_tokens_default,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        tenant=tenant,
        processors=constraint_processors(service, constraint, [prompt], body.n or 1),
    )
    return tools, requests


class _ChatAnswer:
    """The answer to one request, complete or in events."""

    def __init__(self, service: Service, body: ChatRequest, tools: OfferedTools) -> None:
        self.service, self.body, self.tools = service, body, tools
        self.id, self.created = new_id("chatcmpl"), int(time.time())

    async def complete(self, streams: Streams) -> ChatAnswer:
        sequences = await streams.finish()
        ended = [sequence.ended for sequence in sequences]
        return ChatAnswer(
            id=self.id,
            created=self.created,
            model=self.service.model,
            choices=[self._choice(i, sequence) for i, sequence in enumerate(sequences)],
            usage=count_usage(ended),
            system_fingerprint=self.service.fingerprint,
            speculative=summarise_speculation(ended),
        )

    def _choice(self, index: int, sequence: FinishedSequence) -> ChatChoice:
        ended = sequence.ended
        text, calls, finish = self.tools.read(ended.text, ended.finish_reason or "")
        message = ChatMessage(role="assistant", content=text if text or not calls else None)
        if calls:
            message.tool_calls = calls
        return ChatChoice(
            index=index,
            message=message,
            logprobs=chat_logprobs(self.service, sequence.events) if self.body.logprobs else None,
            finish_reason=finish,
            **token_ids_field(self.body, sequence.events),
        )

    async def events(self, streams: Streams) -> AsyncIterator[str]:
        body = self.body
        usage = StreamUsage(body.stream_options, streams)
        base: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.service.model,
            "system_fingerprint": self.service.fingerprint,
        }
        started, sent = set[int](), 0.0
        call_streams = [self.tools.new_stream() for _ in streams.requests]
        all_ended: list[Request] = []
        async for index, progress in streams:
            ended = progress.ended
            if ended is not None:
                if ended.error is not None:
                    raise ended.error
                all_ended.append(ended)
            text = "".join(token.text for token in progress.events)
            delta: dict[str, Any] = {}
            if index not in started:
                started.add(index)
                delta = {"role": "assistant", "content": ""}
            finish = None if ended is None else ended.finish_reason
            call_stream = call_streams[index]
            if call_stream is not None:
                first_call = call_stream.count
                text, calls = call_stream.feed(text, finish)
                if calls:
                    delta["tool_calls"] = [
                        {"index": i, **call.model_dump()}
                        for i, call in enumerate(calls, first_call)
                    ]
                finish = call_stream.finish_reason
            if text:
                delta["content"] = text
            choice: dict[str, Any] = {
                "index": index,
                "delta": delta,
                "logprobs": None,
                "finish_reason": finish,
                **token_ids_field(body, progress.events),
            }
            if body.logprobs:
                choice["logprobs"] = chat_logprobs(self.service, progress.events).model_dump()
            used = usage.field(progress)
            says_more = body.logprobs or body.return_levels or choice.get("token_ids")
            says_more = says_more or used.get("usage")
            if not (delta or finish or says_more) and time.monotonic() - sent < _KEEP_ALIVE:
                continue
            sent = time.monotonic()
            ends_after_call = finish is not None and "tool_calls" in delta
            if ends_after_call:  # for clients that count a call as done by what comes after it
                choice["finish_reason"] = None
            chunk = {**base, "choices": [choice], **used}
            if body.return_levels:
                chunk["hierspec"] = describe_round(progress)
            yield format_event(chunk)
            if ends_after_call:
                end = {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish}
                yield format_event({**base, "choices": [end], **used})
        if usage.included:
            last = {**base, "choices": [], "usage": count_usage(all_ended).model_dump()}
            yield format_event({**last, "speculative": summarise_speculation(all_ended)})
        yield DONE
