"""``POST /v1/responses``: text in, text out, as a response object or as its events."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request

from hierspec.engine.tickets import Ended, EngineRequest

from ..access import service_of, tenant_of
from ..answers import event, new_id, speculative, usage
from ..constraints import format_grammar, processors
from ..conversation import chat_ids
from ..errors import ApiError, of_exception
from ..prepare import engine_requests, lane_of, text_of
from ..service import Service, Streams
from ..streaming import streamed, unless_gone
from ..wire.common import ErrorAnswer, JsonSchemaFormat, ResponseFormat
from ..wire.responses import ResponsesAnswer, ResponsesRequest

router = APIRouter()
_EXAMPLE = {"input": "Say hello.", "max_output_tokens": 16}


class Stored:
    """Conversations of earlier responses, the latest ones of every tenant, in memory only."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[str, str], list[dict[str, Any]]] = OrderedDict()

    def put(self, tenant: str, name: str, messages: list[dict[str, Any]]) -> None:
        """Keep a conversation, its answer included."""
        if self.most:
            self._kept[tenant, name] = messages
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)

    def get(self, tenant: str, name: str) -> list[dict[str, Any]]:
        """The conversation up to a response.

        Raises:
            ApiError: it is not kept here.
        """
        found = self._kept.get((tenant, name))
        if found is None:
            why = "it is not stored (any more)" if self.most else "responses are not stored here"
            raise ApiError(
                f"previous_response_id {name!r}: {why}; send the whole conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return found


@router.post(
    "/v1/responses",
    response_model=ResponsesAnswer,
    responses={"4XX": {"model": ErrorAnswer}},
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def responses(request: Request, body: ResponsesRequest) -> Any:
    """Answer a text or a conversation in the model's own chat format."""
    service, tenant = service_of(request), tenant_of(request)
    stored: Stored = request.app.state.stored
    lane_of(service, body)
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        earlier = stored.get(tenant, body.previous_response_id)
    messages = earlier + _messages(body)
    made = await service.in_background(_prepare, service, body, messages, tenant)
    streams = service.submit(made)
    answer = _Answer(service, body, tenant, messages, stored)
    if body.stream:
        return streamed(streams, answer.events(streams))
    return await unless_gone(request, streams, answer.whole(streams))


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    return [
        {
            "role": "system" if one.role == "developer" else one.role,
            "content": text_of(one.content),
        }
        for one in body.input
    ]


def _prepare(
    service: Service, body: ResponsesRequest, messages: list[dict[str, Any]], tenant: str
) -> list[EngineRequest]:
    if (body.n or 1) != 1:
        raise ApiError("n must be 1 here: a response has one answer", param="n")
    if body.instructions is not None:
        messages = [{"role": "system", "content": body.instructions}, *messages]
    wanted = body.response_format
    if body.text is not None and body.text.format is not None:
        given = body.text.format
        schema = None
        if given.type == "json_schema":
            schema = JsonSchemaFormat(name=given.name, schema=given.schema_)
        wanted = ResponseFormat(type=given.type, json_schema=schema)
    prompt = chat_ids(service, messages)
    return engine_requests(
        service,
        body,
        [prompt],
        max_tokens=body.max_output_tokens or service.settings.max_tokens_default,
        logprobs=None,
        tenant=tenant,
        processors=processors(service, format_grammar(wanted), [prompt], 1),
    )


class _Answer:
    """What one request gets, whole or in events."""

    def __init__(
        self,
        service: Service,
        body: ResponsesRequest,
        tenant: str,
        messages: list[dict[str, Any]],
        stored: Stored,
    ) -> None:
        self.service, self.body, self.tenant = service, body, tenant
        self.messages, self.stored = messages, stored
        self.id, self.message_id = new_id("resp"), new_id("msg")
        self.created = int(time.time())

    async def whole(self, streams: Streams) -> dict[str, Any]:
        (found,) = await streams.all()
        assert found.ended is not None
        return self._ended(found.ended)

    def _ended(self, ended: Ended) -> dict[str, Any]:
        if self.body.store is not False:
            answer = {"role": "assistant", "content": ended.text}
            self.stored.put(self.tenant, self.id, [*self.messages, answer])
        whole = ended.finish_reason == "stop"
        status = "completed" if whole else "incomplete"
        counted = usage([ended])
        return {
            **self._object(status, [self._message(status, [self._part(ended.text)])]),
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": counted.prompt_tokens,
                "input_tokens_details": counted.prompt_tokens_details.model_dump(),
                "output_tokens": counted.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counted.total_tokens,
            },
            "speculative": speculative([ended]),
        }

    def _object(self, status: str, output: list[Any]) -> dict[str, Any]:
        body = self.body
        given = body.text.format if body.text is not None else None
        form = {"type": "text"} if given is None else given.model_dump(by_alias=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.service.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": body.previous_response_id,
            "store": bool(self.stored.most) and body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": form},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _message(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self.message_id,
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    async def events(self, streams: Streams) -> AsyncIterator[str]:
        number = 0

        def numbered(kind: str, **fields: Any) -> str:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number - 1, **fields}, kind)

        at = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        begun = self._object("in_progress", [])
        yield numbered("response.created", response=begun)
        yield numbered("response.in_progress", response=begun)
        item = self._message("in_progress", [])
        yield numbered("response.output_item.added", output_index=0, item=item)
        yield numbered("response.content_part.added", **at, part=self._part(""))
        async for _, progress in streams:
            ended = progress.ended
            text = "".join(one.text for one in progress.events)
            if text:
                yield numbered("response.output_text.delta", **at, delta=text, logprobs=[])
            if ended is None:
                continue
            if ended.error is not None:
                error = of_exception(ended.error)
                failed = self._object("failed", [])
                failed["error"] = {"code": error.code or "server_error", "message": error.message}
                yield numbered("response.failed", response=failed)
                return
            whole = self._ended(ended)
            (item,) = whole["output"]
            yield numbered("response.output_text.done", **at, text=ended.text, logprobs=[])
            yield numbered("response.content_part.done", **at, part=item["content"][0])
            yield numbered("response.output_item.done", output_index=0, item=item)
            yield numbered(f"response.{whole['status']}", response=whole)
