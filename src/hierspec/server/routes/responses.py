"""``POST /v1/responses``: text in, text out, as a response object or as its events."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Any

import fastapi

from hierspec.engine.request import Request
from hierspec.server.access import service_of, tenant_of
from hierspec.server.answer_parts import count_usage, format_event, new_id, summarise_speculation
from hierspec.server.constraints import constraint_processors, request_constraint
from hierspec.server.conversation import chat_ids, plain_call
from hierspec.server.errors import ApiError, to_api_error
from hierspec.server.prepare import DEFAULT_MODEL, engine_requests, requested_hierarchy, text_of
from hierspec.server.service import Service, Streams
from hierspec.server.streaming import stream_events, wait_for_answer
from hierspec.server.tools import OfferedTools
from hierspec.server.wire.chat import FunctionCall, ToolCall
from hierspec.server.wire.common import ErrorAnswer, JsonSchemaFormat, ResponseFormat
from hierspec.server.wire.responses import (
    INPUT_ITEM,
    InputCall,
    InputMessage,
    InputReasoning,
    InputReference,
    InputResult,
    ResponsesAnswer,
    ResponsesNamedTool,
    ResponsesRequest,
)

router = fastapi.APIRouter()
_EXAMPLE = {"model": DEFAULT_MODEL, "input": "Say hello.", "max_output_tokens": 16}


class StoredConversations:
    """Conversations up to the latest responses, by tenant and response id; in memory only.

    The items of those responses are kept by their own ids, too.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._messages: OrderedDict[tuple[str, str], list[dict[str, Any]]] = OrderedDict()
        self._items: dict[tuple[str, str], dict[str, InputMessage | InputCall]] = {}

    def add(
        self,
        tenant: str,
        response_id: str,
        messages: list[dict[str, Any]],
        output: Sequence[dict[str, Any]],
    ) -> None:
        """Store a conversation that ends with a response's output; the oldest ones make room."""
        key = tenant, response_id
        self._messages[key] = messages
        self._items[key] = {item["id"]: INPUT_ITEM.validate_python(item) for item in output}
        while len(self._messages) > self.capacity:
            oldest, _ = self._messages.popitem(last=False)
            del self._items[oldest]

    def item(self, tenant: str, reference: InputReference) -> InputMessage | InputCall:
        """Return an item of a stored response.

        Raises:
            ApiError: the item is not stored here.
        """
        for (owner, _), items in self._items.items():
            if owner == tenant and reference.id in items:
                return items[reference.id]
        raise ApiError(
            f"item_reference {reference.id!r}: {self._absence}; send the item itself instead",
            param="input",
            code="item_not_found",
        )

    @property
    def _absence(self) -> str:
        if self.capacity:
            return "it is not stored (any more)"
        return "responses are not stored here"

    def get(self, tenant: str, response_id: str) -> list[dict[str, Any]]:
        """Return the conversation up to a response.

        Raises:
            ApiError: the response is not stored here.
        """
        messages = self._messages.get((tenant, response_id))
        if messages is None:
            raise ApiError(
                f"previous_response_id {response_id!r}: {self._absence}; send the whole "
                "conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return messages


@router.post(
    "/v1/responses",
    response_model=ResponsesAnswer,
    responses={"4XX": {"model": ErrorAnswer}},
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def responses(request: fastapi.Request, body: ResponsesRequest) -> Any:
    """Answer a text or a conversation in the model's own chat format."""
    service, tenant = service_of(request), tenant_of(request)
    stored: StoredConversations = request.app.state.stored_conversations
    requested_hierarchy(service, body)
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        earlier = stored.get(tenant, body.previous_response_id)
    messages = earlier + _messages(body, stored, tenant)
    if not messages:
        raise ApiError("input is empty: give a text, or at least one message", param="input")
    tools, requests = await service.in_background(_prepare, service, body, messages, tenant)
    streams = service.submit(requests)
    answer = _ResponsesAnswer(service, body, tenant, messages, stored, tools)
    if body.stream:
        return stream_events(streams, answer.events(streams))
    return await wait_for_answer(request, streams, answer.complete(streams))


def _messages(
    body: ResponsesRequest, stored: StoredConversations, tenant: str
) -> list[dict[str, Any]]:
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    sent = {item.id for item in body.input if not isinstance(item, InputReference)}
    out: list[dict[str, Any]] = []
    for item in body.input:
        if isinstance(item, InputReference) and item.id not in sent:
            item = stored.item(tenant, item)
        if isinstance(item, InputReference | InputReasoning):
            continue  # an item that is there itself, or one that no model here reads
        if isinstance(item, InputCall):
            if not out or out[-1]["role"] != "assistant":
                out.append({"role": "assistant", "content": ""})
            function = FunctionCall(name=item.name, arguments=item.arguments)
            out[-1].setdefault("tool_calls", []).append(plain_call(item.call_id, function))
        elif isinstance(item, InputResult):
            result = {"role": "tool", "content": text_of(item.output)}
            out.append(result if item.call_id is None else {**result, "tool_call_id": item.call_id})
        else:
            role = "system" if item.role == "developer" else item.role
            out.append({"role": role, "content": text_of(item.content)})
    return out


def _prepare(
    service: Service, body: ResponsesRequest, messages: list[dict[str, Any]], tenant: str
) -> tuple[OfferedTools, list[Request]]:
    if (body.n or 1) != 1:
        raise ApiError("n must be 1 here: a response has one answer", param="n")
    if body.instructions is not None:
        messages = [{"role": "system", "content": body.instructions}, *messages]
    response_format = None
    if (text_format := body.text_format()) is not None:
        schema = None
        if text_format.type == "json_schema":
            schema = JsonSchemaFormat(name=text_format.name, schema=text_format.schema_)
        response_format = ResponseFormat(type=text_format.type, json_schema=schema)
    chat_tools = body.chat_tools()
    tools = OfferedTools(
        service.tokenizer,
        chat_tools,
        body.chat_tool_choice(),
        body.parallel_tool_calls is not False,
    )
    constraint = request_constraint(response_format, tools, "text.format")
    offered = [] if body.tool_choice == "none" else chat_tools
    prompt = chat_ids(service, messages, offered, variables=body.chat_template_kwargs)
    requests = engine_requests(
        service,
        body,
        [prompt],
        max_tokens=body.max_output_tokens or service.settings.max_tokens_default,
        logprobs=None,
        tenant=tenant,
        processors=constraint_processors(service, constraint, [prompt], 1),
    )
    return tools, requests


class _ResponsesAnswer:
    """The answer to one request, complete or in events."""

    def __init__(
        self,
        service: Service,
        body: ResponsesRequest,
        tenant: str,
        messages: list[dict[str, Any]],
        stored: StoredConversations,
        tools: OfferedTools,
    ) -> None:
        self.service, self.body, self.tenant, self.tools = service, body, tenant, tools
        self.messages, self.stored = messages, stored
        self.stores = stored.capacity > 0 and body.store is not False
        self.id, self.message_id = new_id("resp"), new_id("msg")
        self.created = int(time.time())

    async def complete(self, streams: Streams) -> dict[str, Any]:
        (sequence,) = await streams.finish()
        return self._response(sequence.ended)

    def _response(self, ended: Request) -> dict[str, Any]:
        text, calls, finish = self.tools.read(ended.text, ended.finish_reason or "")
        is_complete = finish in ("stop", "tool_calls")
        status = "completed" if is_complete else "incomplete"
        usage = count_usage([ended])
        output = [self._message(status, [self._part(text)])] if text or not calls else []
        output += [self._call(call) for call in calls]
        if self.stores:
            answer: dict[str, Any] = {"role": "assistant", "content": text}
            if calls:
                answer["tool_calls"] = [plain_call(call.id, call.function) for call in calls]
            self.stored.add(self.tenant, self.id, [*self.messages, answer], output)
        return {
            **self._object(status, output),
            "completed_at": int(time.time()) if is_complete else None,
            "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": usage.prompt_tokens_details.model_dump(),
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.total_tokens,
            },
            "speculative": summarise_speculation([ended]),
        }

    def _object(self, status: str, output: list[Any]) -> dict[str, Any]:
        body = self.body
        text_format = body.text_format()
        choice: Any = body.tool_choice
        if isinstance(choice, ResponsesNamedTool):
            choice = choice.model_dump()
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
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": self.stores,
            "system_fingerprint": self.service.fingerprint,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {
                "format": text_format.model_dump(by_alias=True) if text_format else {"type": "text"}
            },
            "tool_choice": "auto" if choice is None else choice,
            "tools": [tool.model_dump() for tool in body.tools or ()],
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
            return format_event({"type": kind, "sequence_number": number - 1, **fields}, kind)

        text_place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        started = self._object("in_progress", [])
        yield numbered("response.created", response=started)
        yield numbered("response.in_progress", response=started)
        call_stream, has_message = self.tools.new_stream(), False
        async for _, progress in streams:
            ended = progress.ended
            text = "".join(token.text for token in progress.events)
            count = 0
            if call_stream is not None:  # calls are sent once the sequence has ended
                text, _ = call_stream.feed(text, None if ended is None else ended.finish_reason)
                count = call_stream.count
            ends_without_call = ended is not None and ended.error is None and not count
            if not has_message and (text or ends_without_call):
                has_message = True
                item = self._message("in_progress", [])
                yield numbered("response.output_item.added", output_index=0, item=item)
                yield numbered("response.content_part.added", **text_place, part=self._part(""))
            if text:
                yield numbered("response.output_text.delta", **text_place, delta=text, logprobs=[])
            if ended is None:
                continue
            if ended.error is not None:
                error = to_api_error(ended.error)
                answer = self._object("failed", [])
                answer["error"] = {"code": error.code or "server_error", "message": error.message}
                yield numbered("response.failed", response=answer)
                return
            response = self._response(ended)
            for index, item in enumerate(response["output"]):
                if item["type"] == "message":
                    (part,) = item["content"]
                    yield numbered(
                        "response.output_text.done", **text_place, text=part["text"], logprobs=[]
                    )
                    yield numbered("response.content_part.done", **text_place, part=part)
                else:
                    arguments = item["arguments"]
                    call_place = {"item_id": item["id"], "output_index": index}
                    started_item = {**item, "arguments": "", "status": "in_progress"}
                    yield numbered(
                        "response.output_item.added", output_index=index, item=started_item
                    )
                    yield numbered(
                        "response.function_call_arguments.delta", **call_place, delta=arguments
                    )
                    yield numbered(
                        "response.function_call_arguments.done", **call_place, arguments=arguments
                    )
                yield numbered("response.output_item.done", output_index=index, item=item)
            yield numbered(f"response.{response['status']}", response=response)
