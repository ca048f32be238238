"""``POST /v1/responses``: text in, text out, as a response object or as its events."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request

from hierspec.engine.tickets import Ended, EngineRequest

from .. import tools
from ..access import service_of, tenant_of
from ..answers import event, new_id, speculation_summary, usage
from ..constraints import format_grammar, processors
from ..conversation import arguments_of, chat_ids
from ..errors import ApiError, to_api_error
from ..prepare import DEFAULT_MODEL, engine_requests, requested_hierarchy, text_of
from ..service import Service, Streams
from ..streaming import streamed, unless_gone
from ..wire.chat import ToolCall
from ..wire.common import ErrorAnswer, JsonSchemaFormat, ResponseFormat
from ..wire.responses import (
    InputCall,
    InputResult,
    ResponsesAnswer,
    ResponsesRequest,
    ToolByName,
)

router = APIRouter()
_EXAMPLE = {"model": DEFAULT_MODEL, "input": "Say hello.", "max_output_tokens": 16}


class Stored:
    """Conversations of earlier responses, the latest ones of every tenant, in memory only."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[str, str], list[dict[str, Any]]] = OrderedDict()

    def put(self, tenant: str, name: str, messages: list[dict[str, Any]]) -> None:
        """Store a conversation, its answer included."""
        if self.most:
            self._kept[tenant, name] = messages
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)

    def get(self, tenant: str, name: str) -> list[dict[str, Any]]:
        """Return the conversation up to a response.

        Raises:
            ApiError: the response is not stored here.
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
    requested_hierarchy(service, body)
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        earlier = stored.get(tenant, body.previous_response_id)
    messages = earlier + _messages(body)
    made = await service.in_background(_prepare, service, body, messages, tenant)
    streams = service.submit(made)
    answer = _ResponsesAnswer(service, body, tenant, messages, stored)
    if body.stream:
        return streamed(streams, answer.events(streams))
    return await unless_gone(request, streams, answer.whole(streams))


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    out: list[dict[str, Any]] = []
    for one in body.input:
        if isinstance(one, InputCall):
            if not out or out[-1]["role"] != "assistant":
                out.append({"role": "assistant", "content": ""})
            function = {"name": one.name, "arguments": arguments_of(one.arguments)}
            call = {"id": one.call_id, "type": "function", "function": function}
            out[-1].setdefault("tool_calls", []).append(call)
        elif isinstance(one, InputResult):
            out.append({"role": "tool", "tool_call_id": one.call_id, "content": one.output})
        else:
            role = "system" if one.role == "developer" else one.role
            out.append({"role": role, "content": text_of(one.content)})
    return out


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
    found = format_grammar(wanted)
    called = tools.grammar_of(body.offered(), body.chosen())
    if found is not None and called is not None and body.tool_choice not in (None, "auto"):
        raise ApiError("a text format and a forced tool_choice exclude each other")
    offered = [] if body.tool_choice == "none" else body.offered()
    prompt = chat_ids(service, messages, offered)
    return engine_requests(
        service,
        body,
        [prompt],
        max_tokens=body.max_output_tokens or service.settings.max_tokens_default,
        logprobs=None,
        tenant=tenant,
        processors=processors(service, found or called, [prompt], 1),
    )


class _ResponsesAnswer:
    """The answer to one request, whole or in events."""

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
        self.with_tools = bool(body.tools) and body.tool_choice != "none"

    async def whole(self, streams: Streams) -> dict[str, Any]:
        (found,) = await streams.all()
        assert found.ended is not None
        return self._ended(found.ended)

    def _ended(self, ended: Ended) -> dict[str, Any]:
        text, calls = tools.split_calls(ended.text) if self.with_tools else (ended.text, [])
        if self.body.store is not False:
            answer: dict[str, Any] = {"role": "assistant", "content": text}
            if calls:
                answer["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {
                            "name": call.function.name,
                            "arguments": arguments_of(call.function.arguments),
                        },
                    }
                    for call in calls
                ]
            self.stored.put(self.tenant, self.id, [*self.messages, answer])
        whole = bool(calls) or ended.finish_reason == "stop"
        status = "completed" if whole else "incomplete"
        counted = usage([ended])
        output = [self._message(status, [self._part(text)])] if text or not calls else []
        output += [self._call(call) for call in calls]
        return {
            **self._object(status, output),
            "completed_at": int(time.time()) if whole else None,
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": counted.prompt_tokens,
                "input_tokens_details": counted.prompt_tokens_details.model_dump(),
                "output_tokens": counted.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counted.total_tokens,
            },
            "speculative": speculation_summary([ended]),
        }

    def _object(self, status: str, output: list[Any]) -> dict[str, Any]:
        body = self.body
        given = body.text.format if body.text is not None else None
        choice: Any = body.tool_choice
        if isinstance(choice, ToolByName):
            choice = choice.model_dump()
        form = {"type": "text"} if given is None else given.model_dump(by_alias=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
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
            "tool_choice": "auto" if choice is None else choice,
            "tools": [one.model_dump() for one in body.tools or ()],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "presence_penalty": body.presence_penalty or 0.0,
            "frequency_penalty": body.frequency_penalty or 0.0,
            "top_logprobs": 0,
            "truncation": "disabled",
            "reasoning": {"effort": None, "summary": None},
            "max_tool_calls": None,
            "background": False,
            "service_tier": "default",
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
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

    def _call(self, call: ToolCall) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": new_id("fc"),
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
            "status": "completed",
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
        started = self._object("in_progress", [])
        yield numbered("response.created", response=started)
        yield numbered("response.in_progress", response=started)
        caller, shown = tools.CallStream(), False
        async for _, progress in streams:
            ended = progress.ended
            text = "".join(one.text for one in progress.events)
            if self.with_tools:  # calls are told when the text is over
                text, _ = caller.feed(text, ended is not None)
                text = text if shown else text.lstrip()
            failed = ended is not None and ended.error is not None
            last = ended is not None and not failed and not caller.count
            if not shown and (text or last):
                shown = True
                item = self._message("in_progress", [])
                yield numbered("response.output_item.added", output_index=0, item=item)
                yield numbered("response.content_part.added", **at, part=self._part(""))
            if text:
                yield numbered("response.output_text.delta", **at, delta=text, logprobs=[])
            if ended is None:
                continue
            if ended.error is not None:
                error = to_api_error(ended.error)
                answer = self._object("failed", [])
                answer["error"] = {"code": error.code or "server_error", "message": error.message}
                yield numbered("response.failed", response=answer)
                return
            whole = self._ended(ended)
            for index, item in enumerate(whole["output"]):
                if item["type"] == "message":
                    (part,) = item["content"]
                    yield numbered(
                        "response.output_text.done", **at, text=part["text"], logprobs=[]
                    )
                    yield numbered("response.content_part.done", **at, part=part)
                else:
                    written, place = item["arguments"], {"item_id": item["id"]}
                    place |= {"output_index": index}
                    begun = {**item, "arguments": "", "status": "in_progress"}
                    yield numbered("response.output_item.added", output_index=index, item=begun)
                    yield numbered("response.function_call_arguments.delta", **place, delta=written)
                    yield numbered(
                        "response.function_call_arguments.done", **place, arguments=written
                    )
                yield numbered("response.output_item.done", output_index=index, item=item)
            yield numbered(f"response.{whole['status']}", response=whole)
