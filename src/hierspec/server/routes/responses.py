"""``POST /v1/responses``: text in, text out, as a response object or as its events."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import fastapi

from hierspec.engine.request import Request
from hierspec.server.access import service_of, tenant_of
from hierspec.server.conversation import chat_ids, plain_call
from hierspec.server.errors import ApiError, to_api_error
from hierspec.server.prepare import DEFAULT_MODEL, engine_requests, requested_hierarchy, text_of
from hierspec.server.replies import (
    Reply,
    count_usage,
    format_event,
    new_id,
    reply,
    summarise_speculation,
)
from hierspec.server.service import Service
from hierspec.server.tools import OfferedTools
from hierspec.server.wire.chat import FunctionCall
from hierspec.server.wire.responses import (
    INPUT_ITEM,
    InputCall,
    InputMessage,
    InputReasoning,
    InputReference,
    InputResult,
    ResponsesAnswer,
    ResponsesRequest,
)

router = fastapi.APIRouter()
_EXAMPLE = {"model": DEFAULT_MODEL, "input": "Say hello.", "max_output_tokens": 16}

_Messages = list[dict[str, Any]]  # as chat templates take them
_Items = dict[str, InputMessage | InputCall]  # by their ids


class StoredConversations:
    """Conversations up to the latest responses, by tenant and response id; in memory only.

    The items of those responses are kept by their own ids, too.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._absence = (
            "it is not stored (any more)" if capacity else "responses are not stored here"
        )
        self._stored: OrderedDict[tuple[str, str], tuple[_Messages, _Items]] = OrderedDict()

    def add(
        self, tenant: str, response_id: str, messages: _Messages, output: Sequence[dict[str, Any]]
    ) -> None:
        """Store a conversation that ends with a response's output; the oldest ones make room."""
        items = {item["id"]: INPUT_ITEM.validate_python(item) for item in output}
        self._stored[tenant, response_id] = messages, items
        while len(self._stored) > self.capacity:
            self._stored.popitem(last=False)

    def item(self, tenant: str, reference: InputReference) -> InputMessage | InputCall:
        """Return an item of a stored response; refuse one that is not stored here."""
        for (owner, _), (_, items) in self._stored.items():
            if owner == tenant and reference.id in items:
                return items[reference.id]
        raise ApiError(
            f"item_reference {reference.id!r}: {self._absence}; send the item itself instead",
            param="input",
            code="item_not_found",
        )

    def get(self, tenant: str, response_id: str) -> _Messages:
        """Return the conversation up to a response; refuse one that is not stored here."""
        stored = self._stored.get((tenant, response_id))
        if stored is None:
            raise ApiError(
                f"previous_response_id {response_id!r}: {self._absence}; send the whole "
                "conversation as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return stored[0]


@router.post(
    "/v1/responses",
    response_model=ResponsesAnswer,
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def responses(request: fastapi.Request, body: ResponsesRequest) -> Any:
    """Answer a text or a conversation in the model's own chat format."""
    service, tenant = service_of(request), tenant_of(request)
    stored: StoredConversations = request.app.state.stored_conversations
    requested_hierarchy(service, body.model, body.hierarchy)
    earlier: _Messages = []
    if body.previous_response_id is not None:
        earlier = stored.get(tenant, body.previous_response_id)
    messages = earlier + _messages(body, stored, tenant)
    if not messages:
        raise ApiError("input is empty: give a text, or at least one message", param="input")
    kind = partial(_ResponsesReply, messages=messages, stored=stored)
    return await reply(kind, request, body)


def _messages(body: ResponsesRequest, stored: StoredConversations, tenant: str) -> _Messages:
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}] if body.input else []
    sent = {item.id for item in body.input if not isinstance(item, InputReference)}
    out: _Messages = []
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


class _ResponsesReply(Reply[ResponsesRequest]):
    def __init__(
        self,
        service: Service,
        body: ResponsesRequest,
        tenant: str,
        messages: _Messages,
        stored: StoredConversations,
    ) -> None:
        self.tenant, self.messages, self.stored = tenant, messages, stored
        self.stores = stored.capacity > 0 and body.store is not False
        if (body.n or 1) != 1:
            raise ApiError("n must be 1 here: a response has one answer", param="n")
        if body.instructions is not None:
            messages = [{"role": "system", "content": body.instructions}, *messages]
        parallel = body.parallel_tool_calls is not False
        self.tools = OfferedTools(service.tokenizer, body.tools or (), body.tool_choice, parallel)
        constraint = self.tools.constraint(body.text_format(), "text.format")
        variables = body.chat_template_kwargs
        prompt = chat_ids(service, messages, self.tools.listed, variables=variables)
        requests = engine_requests(
            service,
            body,
            [prompt],
            max_tokens=body.max_output_tokens or service.settings.max_tokens_default,
            logprobs=None,
            tenant=tenant,
            constraint=constraint,
        )
        super().__init__(service, body, requests, "resp")
        self.message_id = new_id("msg")

    async def complete(self) -> dict[str, Any]:
        ((ended, _),) = await self.streams.finish()
        return self._response(ended)

    def _response(self, ended: Request) -> dict[str, Any]:
        text, calls, finish = self.tools.read(ended.text, ended.finish_reason or "")
        is_complete = finish in ("stop", "tool_calls")
        status = "completed" if is_complete else "incomplete"
        usage = count_usage([ended])
        output = [self._message(status, [_part(text)])] if text or not calls else []
        output += [
            {
                "type": "function_call",
                "id": new_id("fc"),
                "call_id": call.id,
                "name": call.function.name,
                "arguments": call.function.arguments,
                "status": "completed",
            }
            for call in calls
        ]
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
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
            "speculative": summarise_speculation([ended]),
        }

    def _object(self, status: str, output: list[Any]) -> dict[str, Any]:
        body = self.body
        text_format = body.text_format()
        choice: Any = body.tool_choice or "auto"
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
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
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

    async def events(self) -> AsyncIterator[str]:
        numbers = count()

        def numbered(name: str, **fields: Any) -> str:
            kind = f"response.{name}"
            return format_event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

        text_place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        started = self._object("in_progress", [])
        yield numbered("created", response=started)
        yield numbered("in_progress", response=started)
        call_stream, has_message = self.tools.new_stream(), False
        async for _, progress in self.streams:
            ended = progress.ended
            text = "".join(token.text for token in progress.events)
            num_calls = 0
            if call_stream is not None:  # calls are sent once the sequence has ended
                text, _ = call_stream.feed(text, None if ended is None else ended.finish_reason)
                num_calls = call_stream.count
            ends_without_call = ended is not None and ended.error is None and not num_calls
            if not has_message and (text or ends_without_call):
                has_message = True
                item = self._message("in_progress", [])
                yield numbered("output_item.added", output_index=0, item=item)
                yield numbered("content_part.added", **text_place, part=_part(""))
            if text:
                yield numbered("output_text.delta", **text_place, delta=text, logprobs=[])
            if ended is None:
                continue
            if ended.error is not None:
                error = to_api_error(ended.error)
                answer = self._object("failed", [])
                answer["error"] = {"code": error.code or "server_error", "message": error.message}
                yield numbered("failed", response=answer)
                return
            response = self._response(ended)
            for index, item in enumerate(response["output"]):
                if item["type"] == "message":
                    (part,) = item["content"]
                    text = part["text"]
                    yield numbered("output_text.done", **text_place, text=text, logprobs=[])
                    yield numbered("content_part.done", **text_place, part=part)
                else:
                    place = {"item_id": item["id"], "output_index": index}
                    arguments, begun = item["arguments"], {"arguments": "", "status": "in_progress"}
                    yield numbered("output_item.added", output_index=index, item={**item, **begun})
                    yield numbered("function_call_arguments.delta", **place, delta=arguments)
                    yield numbered("function_call_arguments.done", **place, arguments=arguments)
                yield numbered("output_item.done", output_index=index, item=item)
            yield numbered(response["status"], response=response)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
