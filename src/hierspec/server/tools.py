"""Tools: how they are described to a model, and how its calls are read from its text.

A chat template that knows tools is given them as they are. Any other gets a system message that
lists them and asks for calls in ``<tool_call>`` tags (Hermes' format, which Qwen's and many other
models are trained on); earlier calls and their results are written the same way. Calls are read in
that format only.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from .errors import ApiError
from .grammar import calls
from .wire.chat import FunctionCall, NamedTool, Tool, ToolCall

BEGIN, END = "<tool_call>", "</tool_call>"
_CALL = re.compile(rf"{BEGIN}\s*(\{{.*?\}})\s*{END}", re.DOTALL)


def knows_tools(tokenizer: Any) -> bool:
    """Tell whether the chat template supports tools."""
    return "tools" in str(getattr(tokenizer, "chat_template", None) or "")


def tools_as_text(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Write a conversation for a template that does not know tools: they become text."""
    listed = "\n".join(json.dumps(_plain(tool)) for tool in tools)
    lines = [
        "You may call one or more of these functions, each given as JSON:",
        f"<tools>\n{listed}\n</tools>",
        "For each call, answer with a JSON object in tags:",
        f'{BEGIN}\n{{"name": "the function", "arguments": {{}}}}\n{END}',
    ]
    text = "\n".join(lines)
    out: list[dict[str, Any]] = []
    for message in messages:
        message = dict(message)
        if message.get("tool_calls"):
            made = [
                f"{BEGIN}\n{json.dumps(each['function'])}\n{END}" for each in message["tool_calls"]
            ]
            message["content"] = "\n".join([message.get("content") or "", *made]).strip()
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


def for_template(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [_plain(tool) for tool in tools]


def grammar_of(tools: Sequence[Tool], choice: str | NamedTool | None) -> str | None:
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
    return calls(functions, BEGIN, END, forced=choice != "auto")


def split_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Split a text into what is no call, and the calls; an invalid call stays text."""
    found: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        try:
            data = json.loads(match[1])
            name, arguments = data["name"], data.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return match[0]
        if not isinstance(name, str):
            return match[0]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = FunctionCall(name=name[:256], arguments=text)
        found.append(ToolCall(id=f"call_{secrets.token_hex(12)}", function=call))
        return ""

    rest = _CALL.sub(take, text)
    return (rest.strip() if found else rest), found


class CallStream:
    """The text of a stream without its calls; text that may be part of a call is held back."""

    def __init__(self) -> None:
        self._held = ""
        self.count = 0

    def feed(self, text: str, last: bool = False) -> tuple[str, list[ToolCall]]:
        """Take new text; return text to send, and complete calls; ``last``: nothing follows."""
        self._held += text
        at = self._held.find(BEGIN)
        if at < 0:
            keep = 0 if last else _beginning(self._held, BEGIN)
            sent = self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
            return sent, []
        end = self._held.rfind(END)
        if end < 0 and not last:
            sent, self._held = self._held[:at], self._held[at:]
            return sent.rstrip() if self.count else sent, []
        end = len(self._held) if last else end + len(END)
        rest, found = split_calls(self._held[:end])
        self._held = self._held[end:]
        self.count += len(found)
        return rest, found


def _beginning(text: str, mark: str) -> int:
    """Return the length of the longest end of ``text`` that is a proper prefix of ``mark``."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


def _plain(tool: Tool) -> dict[str, Any]:
    return tool.model_dump(exclude_none=True)
