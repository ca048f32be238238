"""Conversations in a model's own chat format."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.prompts import apply_chat, template_variables
from hierspec.utils.validation import HALF_CHARACTERS

from .errors import ApiError
from .prepare import text_of
from .service import Service
from .templates import template_traits
from .tools import fit_to_template, plain_tools
from .wire.chat import Function, FunctionCall, Message

_ROLES = {"developer": "system", "function": "tool"}  # chat templates know but one of each


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert messages for chat templates: content as text, arguments of calls as objects."""
    out: list[dict[str, Any]] = []
    for message in messages:
        role = _ROLES.get(message.role, message.role)
        content = text_of(message.content) or message.refusal or ""
        plain: dict[str, Any] = {"role": role, "content": content}
        if message.name is not None:
            plain["name"] = message.name
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
        calls = [plain_call(call.id, call.function) for call in message.tool_calls or ()]
        if message.function_call is not None:  # as before there were tools
            calls.append(plain_call(None, message.function_call))
        if calls:
            plain["tool_calls"] = calls
        out.append(plain)
    return out


def plain_call(id: str | None, function: FunctionCall) -> dict[str, Any]:
    """Convert a call for chat templates: arguments as an object if they are JSON, else as text.

    JSON that escapes half a character stays text, too: no tokenizer could read the character.
    """
    arguments: Any = function.arguments.strip() or "{}"
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(arguments)
        if not HALF_CHARACTERS.search(json.dumps(read, ensure_ascii=False)):
            arguments = read
    called = {"name": function.name, "arguments": arguments}
    return {"id": id, "type": "function", "function": called}


def chat_ids(
    service: Service,
    messages: list[dict[str, Any]],
    tools: Sequence[Function] = (),
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of a conversation, up to where the answer begins.

    Args:
        tools: described to the model.
        add_generation_prompt: end with the tokens that begin the model's answer.
        variables: further ones of the template.

    Raises:
        ApiError: the model has no tokenizer or no chat template.
        HierspecError: the chat template refuses these messages.
    """
    tokenizer = service.tokenizer
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        lacking = "chat template: use /v1/completions, or serve an instruction-tuned model"
        if tokenizer is None:
            lacking = "tokenizer: serve it with one (hierspec serve --tokenizer)"
        raise ApiError(f"this model has no {lacking}", code="no_chat_template")
    try:
        options = template_variables(variables)
    except HierspecError as error:
        raise ApiError(str(error), param="chat_template_kwargs") from None
    traits = template_traits(tokenizer)
    listed = plain_tools(tools) if traits.lists_tools else ()
    messages = fit_to_template(messages, tools, traits)
    return apply_chat(
        tokenizer, messages, listed, add_generation_prompt=add_generation_prompt, **options
    )
