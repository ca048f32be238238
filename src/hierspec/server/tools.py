"""Tools: how they are described to a model, and what they ask of its text.

A chat template that supports tools describes them itself. For any other, a system message (or the
first message of the user) lists them and asks for calls in ``<tool_call>`` tags; earlier calls and
their results are written the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hierspec.engine.detokenize import added_tokens
from hierspec.utils.files import json_digest

from .call_formats import TAGGED, CallStream, write_calls
from .errors import ApiError
from .grammar import Constraint, calls_constraint, schema_constraint
from .templates import TemplateTraits, template_traits
from .wire.chat import Function, NamedFunction, ToolCall
from .wire.common import ResponseFormat
from .wire.responses import TextFormat


def plain_tools(functions: Sequence[Function]) -> list[dict[str, Any]]:
    """Describe functions as chat templates know them."""
    return [
        {"type": "function", "function": function.model_dump(exclude_none=True, exclude={"type"})}
        for function in functions
    ]


class OfferedTools:
    """The tools of one request: what they ask of the text, and how calls are found in it.

    Args:
        choice: ``"none"``, ``"auto"`` or ``"required"``, or what names a function.
        parallel: whether several may be called.

    Attributes:
        listed: functions that the model is told of.

    Raises:
        ApiError: the request demands a tool that it does not offer.
    """

    def __init__(
        self,
        tokenizer: Any,
        functions: Sequence[Function],
        choice: str | NamedFunction | None,
        parallel: bool,
    ) -> None:
        traits = template_traits(tokenizer)
        self._form, self._parallel = traits.calls, parallel
        choice = choice or ("auto" if functions else "none")
        self.listed = self._chosen = () if choice == "none" else functions
        self._forced = choice not in ("none", "auto")
        if isinstance(choice, NamedFunction):
            self._chosen = [each for each in functions if each.name == choice.name]
            if not self._chosen:
                raise ApiError(
                    f"tool_choice: there is no tool {choice.name!r}", param="tool_choice"
                )
        elif choice != "none" and not functions:
            raise ApiError(f"tool_choice is {choice!r} and there are no tools", param="tool_choice")
        self._hidden: tuple[str, ...] = ()
        if traits.shown_ids:
            added = added_tokens(tokenizer)
            self._hidden = tuple(added[i].content for i in traits.shown_ids)

    def constraint(
        self, response_format: ResponseFormat | TextFormat | None, field: str = "response_format"
    ) -> Constraint | None:
        """Return what the text must be; ``None``: any text. ``field`` is that of the format.

        Raises:
            ApiError: a schema is missing or cannot be used, or a format and a forced call together.
        """
        schema = None
        if response_format is not None and response_format.type == "json_object":
            schema = {"type": "object"}
        elif response_format is not None and response_format.type == "json_schema":
            schema = response_format.schema_
            if schema is None:
                raise ApiError(f"{field} json_schema needs a schema", param=field)
        if schema is not None and self._forced:
            raise ApiError(f"{field} and a forced tool_choice cannot be used together")
        if not self._chosen:
            return None if schema is None else schema_constraint(schema)
        if schema is not None:
            self._hidden = ()  # all is calls or JSON, of which a mark may be part
        for function in self._chosen:
            if (function.parameters or {}).get("type", "object") != "object":
                raise ApiError(
                    f"tools: the parameters of {function.name!r} must be of type 'object'",
                    param="tools",
                )
        functions = [(function.name, function.parameters or {}) for function in self._chosen]
        return calls_constraint(
            self._form, functions, forced=self._forced, several=self._parallel, answer=schema
        )

    def new_stream(self) -> CallStream | None:
        """Return what finds calls in one text; ``None``: it has none."""
        if not self._chosen:
            return None
        names = [function.name for function in self._chosen]
        return CallStream(self._form, names, self._hidden)

    def read(self, text: str, reason: str) -> tuple[str, list[ToolCall], str]:
        """Return the text outside calls, the calls, and why the answer ends.

        Args:
            reason: why the text ends.
        """
        stream = self.new_stream()
        if stream is None:
            return text, [], reason
        rest, calls = stream.feed(text, reason)
        assert stream.finish_reason is not None
        return rest, calls, stream.finish_reason


def fit_to_template(
    messages: Sequence[dict[str, Any]], tools: Sequence[Function], traits: TemplateTraits
) -> list[dict[str, Any]]:
    """Write what a chat template cannot of tools, calls and results as text."""
    out: list[dict[str, Any]] = []
    were_results = False
    for message in messages:
        message = dict(message)
        if message.get("tool_calls"):
            message = _with_calls(message, traits)
        is_result = message["role"] == "tool"
        if is_result and traits.short_ids:
            message["tool_call_id"] = _short_id(message.get("tool_call_id"))
        if is_result and not traits.writes_results:
            content = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            message = {"role": "user", "content": content}
            if were_results:  # results of one answer's calls are one message
                out[-1]["content"] += f"\n{content}"
                continue
        elif were_results and message["role"] == "user" and not traits.takes_neighbours:
            out[-1]["content"] += f"\n{message['content']}"
            continue
        were_results = is_result and not traits.writes_results
        out.append(message)
    return _with_listing(out, tools, traits) if tools and not traits.lists_tools else out


def _with_calls(message: dict[str, Any], traits: TemplateTraits) -> dict[str, Any]:
    """Return an assistant's message whose calls are as the template writes them, or text."""
    calls = message["tool_calls"]
    content = message.get("content") or ""
    if traits.writes_calls and (traits.writes_several or len(calls) == 1):
        return {**message, "tool_calls": [_fitting_call(call, traits) for call in calls]}
    texts = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"])) for call in calls
    ]
    message["content"] = f"{content}\n{write_calls(traits.calls, texts)}".strip()
    del message["tool_calls"]
    return message


def _fitting_call(call: dict[str, Any], traits: TemplateTraits) -> dict[str, Any]:
    function = dict(call["function"])
    if traits.text_arguments and not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    id = _short_id(call["id"]) if traits.short_ids else call["id"]
    return {**call, "id": id, "function": function}


def _short_id(id: str | None) -> str:
    """Return an id of nine letters and digits, the same for the same id."""
    if id is not None and len(id) == 9 and id.isascii() and id.isalnum():
        return id
    return json_digest(id)[:9]


def _with_listing(
    messages: list[dict[str, Any]], tools: Sequence[Function], traits: TemplateTraits
) -> list[dict[str, Any]]:
    """List the tools in the system's message, or before the user's first if there can be none."""
    listing = "\n".join(json.dumps(tool) for tool in plain_tools(tools))
    lines = [
        "You may call one or more of these functions, each given as JSON:",
        f"<tools>\n{listing}\n</tools>",
        "For each call, answer with a JSON object in tags:",
        f'{TAGGED.begin}\n{{"name": "the function", "arguments": {{}}}}\n{TAGGED.end}',
    ]
    text = "\n".join(lines)
    if traits.takes_system:
        if messages and messages[0]["role"] == "system":
            first = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]
    for i, message in enumerate(messages):
        if message["role"] == "user":
            first = {**message, "content": f"{text}\n\n{message['content']}"}
            return [*messages[:i], first, *messages[i + 1 :]]
    return [{"role": "user", "content": text}, *messages]
