"""Tools: how they are described to a model, and how its calls are found in its text.

A chat template that supports tools describes them itself. For any other, a system message lists
them and asks for calls in ``<tool_call>`` tags (Hermes' format, which Qwen's and many other models
are trained on); earlier calls and their results are written the same way. Calls are recognised in
that format only.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from .errors import ApiError
from .grammar import calls_grammar
from .wire.chat import FunctionCall, NamedTool, Tool, ToolCall

_BEGIN, _END = "<tool_call>", "</tool_call>"
_CALL = re.compile(rf"{_BEGIN}\s*(\{{.*?\}})\s*{_END}", re.DOTALL)


def template_supports_tools(tokenizer: Any) -> bool:
    """Return whether the chat template supports tools."""
    return "tools" in str(getattr(tokenizer, "chat_template", None) or "")


def write_tools_as_text(
    messages: list[dict[str, Any]], tools: Sequence[Tool]
) -> list[dict[str, Any]]:
    """Write tools, calls and their results as text, for a template that does not support them."""
    listing = "\n".join(json.dumps(tool) for tool in plain_tools(tools))
    lines = [
        "You may call one or more of these functions, each given as JSON:",
        f"<tools>\n{listing}\n</tools>",
        "For each call, answer with a JSON object in tags:",
        f'{_BEGIN}\n{{"name": "the function", "arguments": {{}}}}\n{_END}',
    ]
    text = "\n".join(lines)
    out: list[dict[str, Any]] = []
    for message in messages:
        message = dict(message)
        if message.get("tool_calls"):
            calls = [
                f"{_BEGIN}\n{json.dumps(call['function'])}\n{_END}"
                for call in message["tool_calls"]
            ]
            message["content"] = "\n".join([message.get("content") or "", *calls]).strip()
            del message["tool_calls"]
        if message["role"] == "tool":
            content = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
            message = {"role": "user", "content": content}
        out.append(message)
    if not tools:
        return out
    if out and out[0]["role"] == "system":
        return [{"role": "system", "content": f"{out[0]['content']}\n\n{text}"}, *out[1:]]
    return [{"role": "system", "content": text}, *out]


def plain_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [tool.model_dump(exclude_none=True) for tool in tools]


def tools_grammar(tools: Sequence[Tool], choice: str | NamedTool | None) -> str | None:
    """Return the grammar that tools impose on the text; ``None`` if there is none.

    Raises:
        ApiError: the request demands an unknown tool.
    """
    if choice is None:
        choice = "auto" if tools else "none"
    if choice == "none":
        return None
    if isinstance(choice, NamedTool):
        chosen = [tool for tool in tools if tool.function.name == choice.function.name]
        if not chosen:
            raise ApiError(
                f"tool_choice: there is no tool {choice.function.name!r}", param="tool_choice"
            )
    elif not tools:
        raise ApiError(f"tool_choice is {choice!r} and there are no tools", param="tool_choice")
    else:
        chosen = tools
    functions = [(tool.function.name, tool.function.parameters) for tool in chosen]
    return calls_grammar(functions, _BEGIN, _END, forced=choice != "auto")


def split_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Split a text into the text outside calls, and the calls; an invalid call stays text."""
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        try:
            data = json.loads(match[1])
            name, arguments = data["name"], data.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return match[0]
        if not isinstance(name, str):
            return match[0]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function = FunctionCall(name=name[:256], arguments=text)
        calls.append(ToolCall(id=f"call_{secrets.token_hex(12)}", function=function))
        return ""

    rest = _CALL.sub(take, text)
    return (rest.strip() if calls else rest), calls


class CallStream:
    """Splits a stream into text and calls; text that may be part of a call is held back.

    Attributes:
        count: calls found so far.
    """

    def __init__(self) -> None:
        self._pending = ""
        self.count = 0

    def feed(self, text: str, last: bool = False) -> tuple[str, list[ToolCall]]:
        """Take new text; return text to send, and complete calls; ``last``: nothing follows."""
        self._pending += text
        begin = self._pending.find(_BEGIN)
        if begin < 0:
            begin = len(self._pending) if last else _partial_start(self._pending, _BEGIN)
            return self._take(begin), []
        end = self._pending.rfind(_END)
        if end < 0 and not last:
            before_call = self._take(begin)
            return before_call.rstrip() if self.count else before_call, []
        end = len(self._pending) if last else end + len(_END)
        rest, calls = split_calls(self._take(end))
        self.count += len(calls)
        return rest, calls

    def _take(self, end: int) -> str:
        taken, self._pending = self._pending[:end], self._pending[end:]
        return taken


def _partial_start(text: str, mark: str) -> int:
    """Return where the longest end of ``text`` begins that is a proper prefix of ``mark``."""
    for start in range(max(0, len(text) - len(mark) + 1), len(text)):
        if mark.startswith(text[start:]):
            return start
    return len(text)
