"""Conversations in a model's own chat format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from . import tools
from .errors import ApiError
from .prepare import text_of
from .service import Service
from .wire.chat import Message, Tool


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert messages for chat templates: content as text, arguments of calls as objects."""
    out: list[dict[str, Any]] = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        plain: dict[str, Any] = {"role": role, "content": text_of(message.content)}
        if message.name is not None:
            plain["name"] = message.name
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            plain["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": arguments_of(call.function.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        out.append(plain)
    return out


def chat_ids(
    service: Service,
    messages: list[dict[str, Any]],
    offered: Sequence[Tool] = (),
    begin: bool = True,
) -> list[int]:
    """Return the token ids of a conversation, up to where the answer begins.

    Args:
        offered: tools described to the model.
        begin: end with what begins an answer.

    Raises:
        ApiError: the model has no chat template, or it refuses these messages.
    """
    tokenizer = service.tokenizer
    if not getattr(tokenizer, "chat_template", None):
        raise ApiError(
            "this model has no chat template: use /v1/completions, or serve an "
            "instruction-tuned model",
            code="no_chat_template",
        )
    options: dict[str, Any] = {}
    if tools.knows_tools(tokenizer):
        options = {"tools": tools.for_template(offered) or None}
    else:
        messages = tools.tools_as_text(messages, offered)
    try:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=begin, tokenize=True, return_dict=False, **options
        )
    except Exception as error:  # templates are programs; they raise what they like
        raise ApiError(f"the chat template refuses these messages: {error}") from None
    return [int(token) for token in ids]


def arguments_of(text: str) -> Any:
    """Parse a call's arguments for templates: an object if they are JSON, else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
