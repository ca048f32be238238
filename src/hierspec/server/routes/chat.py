"""``POST /v1/chat/completions``: answer a conversation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import fastapi

from hierspec.engine.request import Progress, Request
from hierspec.engine.results import TokenEvent
from hierspec.server.call_formats import CallStream
from hierspec.server.conversation import chat_ids, plain_messages
from hierspec.server.errors import ApiError
from hierspec.server.prepare import DEFAULT_MODEL, engine_requests, requested_hierarchy
from hierspec.server.replies import ChoicesReply, chat_logprobs, reply, token_ids_field
from hierspec.server.service import Service
from hierspec.server.tools import OfferedTools
from hierspec.server.wire.chat import ChatAnswer, ChatRequest, NamedTool

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
    response_model_exclude_unset=True,
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def chat_completions(request: fastapi.Request, body: ChatRequest) -> Any:
    """Answer a conversation in the model's own chat format."""
    return await reply(_ChatReply, request, body)


class _ChatReply(ChoicesReply[ChatRequest]):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatRequest, tenant: str) -> None:
        requested_hierarchy(service, body.model, body.hierarchy)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
        choice = body.tool_choice
        self.tools = OfferedTools(
            service.tokenizer,
            [tool.function for tool in body.tools or ()],
            choice.function if isinstance(choice, NamedTool) else choice,
            body.parallel_tool_calls is not False,
        )
        constraint, listed = self.tools.constraint(body.response_format), self.tools.listed
        messages = plain_messages(body.messages)
        prompt = chat_ids(
            service, messages, listed, body.add_generation_prompt, body.chat_template_kwargs
        )
        max_tokens = body.max_completion_tokens or body.max_tokens
        requests = engine_requests(
            service,
            body,
            [prompt],
            max_tokens=max_tokens or service.settings.max_tokens_default,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            tenant=tenant,
            constraint=constraint,
        )
        super().__init__(service, body, requests, "chatcmpl")
        self._sent = 0.0
        self._call_streams: dict[int, CallStream | None] = {}  # of choices that have begun

    def choice(self, index: int, ended: Request, events: list[TokenEvent]) -> dict[str, Any]:
        text, calls, finish = self.tools.read(ended.text, ended.finish_reason or "")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
            "annotations": [],
        }
        if calls:
            message["tool_calls"] = [call.model_dump() for call in calls]
        return {"index": index, "message": message, **self._of_tokens(events, finish)}

    def _of_tokens(self, events: list[TokenEvent], finish: str | None) -> dict[str, Any]:
        return {
            "logprobs": chat_logprobs(self.service, events) if self.body.logprobs else None,
            "finish_reason": finish,
            **token_ids_field(self.body, events),
        }

    def parts(self, index: int, progress: Progress, is_counted: bool) -> Iterator[dict[str, Any]]:
        text = "".join(token.text for token in progress.events)
        finish = None if progress.ended is None else progress.ended.finish_reason
        delta: dict[str, Any] = {}
        if index not in self._call_streams:
            self._call_streams[index] = self.tools.new_stream()
            delta = {"role": "assistant", "content": ""}
        call_stream = self._call_streams[index]
        if call_stream is not None:
            first_call = call_stream.count
            text, calls = call_stream.feed(text, finish)
            if calls:
                delta["tool_calls"] = [
                    {"index": i, **call.model_dump()} for i, call in enumerate(calls, first_call)
                ]
            finish = call_stream.finish_reason
        if text:
            delta["content"] = text
        part = {"index": index, "delta": delta, **self._of_tokens(progress.events, finish)}
        says_more = is_counted or self.body.return_levels or part["logprobs"] is not None
        says_more = says_more or delta or finish or part.get("token_ids")
        if not says_more and time.monotonic() - self._sent < _KEEP_ALIVE:
            return
        self._sent = time.monotonic()
        if finish is None or "tool_calls" not in delta:
            yield part
            return
        yield {**part, "finish_reason": None}
        # For clients that count a call as done by what comes after it.
        yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish}
