"""How models write calls of functions: the formats that are read, and calls found in a text.

A format is a mark before the calls and perhaps one after them. Between them stand calls as JSON,
one or a list of them, or names each followed by their arguments. What is read of a call is its
name and the text of its arguments as the model wrote it.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

from .wire.chat import FunctionCall, ToolCall

ARGUMENT_KEYS = ("arguments", "parameters")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
BLANKS = " \t\r\n"
_SKIP = re.compile(rf"[{BLANKS}]*")
BLANK = (
    r"\n {1,12}|[ \n]"  # between a call's parts: as models were trained to write, indented or not
)
_MAY_BLANK = re.compile(f"(?:{BLANK})?")
_BARE_BEGINNING = re.compile(  # what may go on to be a call without a mark
    r'[\s;]*(\[\s*)?(\{\s*("[a-z]*("\s*(:\s*("[\w-]*("\s*)?)?)?)?)?)?'
)
_READ = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One way of writing calls.

    Attributes:
        begin: the mark before calls.
        end: the mark after them; empty: they end the text.
        marks: texts by which a model with this format is known, in its chat template or its tokens.
        name_key: of a call as JSON; ``id_key``: its number, which may come first.
        bare: calls may also be the whole text, without ``begin``.
        named: calls are (without ``before_name``: may be) names and arguments, as in
            ``before_name``, name, ``after_name``, arguments, ``after_arguments``.
    """

    begin: str
    end: str = ""
    marks: tuple[str, ...] = ()
    name_key: str = "name"
    id_key: str = ""
    bare: bool = False
    named: bool = False
    before_name: str = ""
    after_name: str = ""
    after_arguments: str = ""

    def in_bytes(self) -> CallFormat:
        """Return the format with a character for every byte of its UTF-8."""
        texts = {
            field.name: getattr(self, field.name).encode().decode("latin-1")
            for field in fields(self)
            if isinstance(getattr(self, field.name), str)
        }
        return replace(self, **texts)

    def may_begin(self, text: str, position: int, names: Collection[str]) -> bool | None:
        """Return whether calls go on with a text behind the mark; ``None``: too short to say.

        Args:
            position: where the mark ends.
            names: functions that calls may name.
        """
        position = _skip_blanks(text, position)
        if self.before_name:
            if text.startswith(self.before_name, position):
                return True
            return None if self.before_name.startswith(text[position:]) else False
        if position == len(text):
            return None
        key = ("{", "", json.dumps(self.name_key), "", ":", "")
        quoted = tuple(map(json.dumps, names))
        beginnings: list[tuple[tuple[str, ...], tuple[str, ...]]] = [(key, quoted)]
        if self.id_key:
            beginnings.append((("{", ""), (json.dumps(self.id_key),)))
        beginnings += [(("[", "", *parts), last) for parts, last in beginnings]
        if self.named:
            beginnings.append(((), tuple(name + self.after_name for name in names)))
        return any(_goes_on(text, position, *beginning) for beginning in beginnings)


TAGGED = CallFormat("<tool_call>", "</tool_call>", ("<tool_call>",))  # Hermes', Qwen's, SmolLM's
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL, _DEEPSEEK_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
FORMATS = (  # of two that are known by the same text the one that is known by more comes first
    CallFormat(
        *_DEEPSEEK,
        marks=(_DEEPSEEK[0], "```json"),
        named=True,
        before_name=f"{_DEEPSEEK_CALL}function<｜tool▁sep｜>",
        after_name="\n```json\n",
        after_arguments=f"\n```{_DEEPSEEK_END}",
    ),
    CallFormat(
        *_DEEPSEEK,
        marks=(_DEEPSEEK[0],),
        named=True,
        before_name=_DEEPSEEK_CALL,
        after_name="<｜tool▁sep｜>",
        after_arguments=_DEEPSEEK_END,
    ),
    CallFormat("[TOOL_CALLS]", marks=("[TOOL_CALLS]", "[ARGS]"), named=True, after_name="[ARGS]"),
    CallFormat("[TOOL_CALLS]", marks=("[TOOL_CALLS]",)),
    CallFormat("<|tool_call|>", "<|/tool_call|>", ("<|tool_call|>", "<|/tool_call|>")),  # Phi-4
    CallFormat("<|tool_call|>", marks=("<|tool_call|>",)),  # Granite 3
    CallFormat(  # Command R7B
        "<|START_ACTION|>", "<|END_ACTION|>", ("<|START_ACTION|>",), "tool_name", "tool_call_id"
    ),
    TAGGED,
    CallFormat("<|python_tag|>", marks=("<|python_tag|>",), bare=True),  # Llama 3.1
)


def find_opening(
    text: str, form: CallFormat, names: Collection[str], is_first: bool
) -> tuple[int, int | None]:
    """Find where calls begin, or may begin if more text follows; else the end of the text.

    Args:
        names: functions that calls may name.
        is_first: no text but calls has come before.

    Returns:
        where their mark begins, or the first call if there is none; and where what follows the mark
        begins, ``None`` where calls only may begin.
    """
    begin, position = form.begin, 0
    if form.bare and is_first:
        found = _bare_call(tuple(names)).match(text)
        if found is not None:
            return found.start(1), found.start(1)
        if _BARE_BEGINNING.fullmatch(text):
            return 0, None
    while (start := text.find(begin, position)) >= 0:
        inside = start + len(begin)
        follows = form.may_begin(text, inside, names)
        if follows is not False:
            return start, inside if follows else None
        position = inside
    return _partial_start(text, begin), None


@functools.lru_cache(maxsize=64)  # names come from requests
def _bare_call(names: tuple[str, ...]) -> re.Pattern[str]:
    """Match the beginning of a text that is a call without a mark; group 1 begins where it does."""
    blank = _MAY_BLANK.pattern
    any_name = f'"(?:{"|".join(map(re.escape, names))})"'
    parts = [rf"(?:\[{blank})?\{{", '"name"', ":", any_name, ",", '(?="|$)']
    return re.compile(rf"[\s;]*({blank.join(parts)})")


def _goes_on(text: str, position: int, parts: Sequence[str], last: tuple[str, ...]) -> bool:
    """Return whether a text goes on as parts and one of ``last``, or may once more follows.

    An empty part is perhaps a blank.
    """
    for part in parts:
        if not part:
            found = _MAY_BLANK.match(text, position)
            assert found is not None
            position = found.end()
        elif text.startswith(part, position):
            position += len(part)
        else:
            return part.startswith(text[position:])
    rest = text[position : position + max(map(len, last), default=0)]
    return any(rest.startswith(one) or one.startswith(rest) for one in last)


class CallStream:
    """Splits a text, as it comes, into calls and the text outside them.

    Blanks between text and a call are left out where no text follows. A call that the end of the
    text cuts is left out with its mark.

    Args:
        form: the format of calls.
        names: functions that calls may name.
        hidden: marks that are special tokens, which no text shows.

    Attributes:
        count: calls found so far.
        finish_reason: why the answer ends, once the text has: ``"tool_calls"`` if it made calls
            and was not cut.
    """

    def __init__(
        self,
        form: CallFormat = TAGGED,
        names: Collection[str] = (),
        hidden: Collection[str] = (),
    ) -> None:
        self._form, self._names, self._hidden = form, names, tuple(hidden)
        self._pending, self._blanks = "", ""
        self._searched = 0  # characters of pending text in which the end of a call was looked for
        self._line = "\n"  # the last character before pending text; a line begins after a call
        self._has_text, self._text_after, self._cut = False, False, False
        self.count = 0
        self.finish_reason: str | None = None

    def feed(self, new: str, reason: str | None = None) -> tuple[str, list[ToolCall]]:
        """Take new text; return text to send, and complete calls.

        Args:
            reason: why nothing follows, as in ``finish_reason``; ``None``: more may follow.
        """
        self._pending += new
        last = reason is not None
        texts: list[str] = []
        calls: list[ToolCall] = []
        while True:
            text, is_call = self._free_text(last, reason == "length")
            texts.append(self._shown(text))
            if not is_call:
                break
            found = self._read(last)
            if found is None:
                if last:
                    self._cut, self._pending = True, ""
                break
            more, end = found
            self._take(end)
            self._text_after, self._line = False, "\n"
            calls += more
            self.count += len(more)
        if last:
            if not self.count and not self._cut:
                texts.append(self._blanks)
            is_cut = self._cut or (reason == "length" and self._text_after)
            self.finish_reason = "tool_calls" if self.count and not is_cut else reason
        return "".join(texts), calls

    def _free_text(self, last: bool, is_cut: bool) -> tuple[str, bool]:
        """Take text up to what is or may be the beginning of a call → text, whether it is one."""
        start, inside = find_opening(self._pending, self._form, self._names, not self._has_text)
        if inside is not None:
            return self._take(start), True
        if not last:
            starts = (_partial_start(self._pending, mark) for mark in self._hidden)
            return self._take(min(start, *starts, len(self._pending))), False
        rest = self._pending[start:]
        # One character of a mark, in the middle of a line, is more likely text; so is any JSON.
        line = self._line + self._pending[:start]
        mark = self._form.begin
        if rest.startswith(mark):
            self._cut = True
        elif mark.startswith(rest):
            self._cut = is_cut and len(rest) > (0 if line.endswith("\n") else 1)
        else:
            self._cut = is_cut and f'"{self._form.name_key}"' in rest
        if not self._cut or not rest:
            self._cut = False
            return self._take(len(self._pending)), False
        before = self._take(start)
        self._pending = ""
        return before, False

    def _shown(self, text: str) -> str:
        """Return text to send: blanks are held back until text follows."""
        for mark in self._hidden:
            text = text.replace(mark, "")
        text = self._blanks + text
        if self.count and not self._has_text:
            text = text.lstrip(BLANKS + ";" if self._form.bare else None)
        shown = text.rstrip()
        self._blanks = text[len(shown) :]
        if shown:
            self._has_text = self._text_after = True
        return shown

    def _take(self, end: int) -> str:
        taken, self._pending = self._pending[:end], self._pending[end:]
        if taken:
            self._line, self._searched = taken[-1], 0
        return taken

    def _read(self, last: bool) -> tuple[list[ToolCall], int] | None:
        """Read the calls that pending text begins with → calls, where they end."""
        text, form = self._pending, self._form
        end = form.end or form.after_arguments
        start = max(self._searched - max(len(end), 1) + 1, 0)
        self._searched = len(text)
        if not last and not any(mark in text[start:] for mark in ([end] if end else "}]")):
            return None
        position = len(form.begin) if text.startswith(form.begin) else 0
        try:
            return _read_section(text, position, form)
        except (ValueError, IndexError, RecursionError):
            return None


def write_calls(form: CallFormat, calls: Sequence[tuple[str, str]]) -> str:
    """Write calls, each a name and arguments as JSON, as the format has them."""
    if form.named:
        texts = [
            f"{form.before_name}{name}{form.after_name}{arguments}{form.after_arguments}"
            for name, arguments in calls
        ]
        # Without a mark before names each of them needs the mark before calls.
        return form.begin + ("\n" if form.before_name else form.begin).join(texts) + form.end
    key = "parameters" if form.bare or form.id_key else "arguments"
    texts = [f'{{"{form.name_key}": {json.dumps(name)}, "{key}": {text}}}' for name, text in calls]
    if form.bare:
        return "; ".join(texts)
    if form == TAGGED:
        return "\n".join(f"{form.begin}\n{text}\n{form.end}" for text in texts)
    return f"{form.begin}[{', '.join(texts)}]{form.end}"


def _read_section(text: str, position: int, form: CallFormat) -> tuple[list[ToolCall], int]:
    """Read the calls between a format's marks.

    Raises:
        ValueError, IndexError: they are not calls, or not complete.
    """
    calls: list[ToolCall] = []
    position = _skip_blanks(text, position)
    if text[position] == "[":
        close = ","
        while close == ",":
            call, position = _read_object(text, _skip_blanks(text, position + 1), form)
            calls.append(call)
            position = _skip_blanks(text, position)
            close = text[position]
        position = _expect(text, position, "]")
    elif text[position] == "{":
        call, position = _read_object(text, position, form)
        calls.append(call)
    else:
        while True:
            call, position = _read_named(text, position, form)
            calls.append(call)
            after = _skip_blanks(text, position)
            if not form.before_name or not text.startswith(form.before_name, after):
                break
            position = after
    if form.end:
        position = _expect(text, _skip_blanks(text, position), form.end)
    return calls, position


def _read_object(text: str, position: int, form: CallFormat) -> tuple[ToolCall, int]:
    name, arguments = None, "{}"
    position = _expect(text, position, "{")
    while True:
        key, position = _READ.raw_decode(text, _skip_blanks(text, position))
        position = _skip_blanks(text, _expect(text, _skip_blanks(text, position), ":"))
        value, end = _READ.raw_decode(text, position)
        if key == form.name_key:
            name = value
        elif key in ARGUMENT_KEYS:
            arguments = value if isinstance(value, str) else text[position:end]
        position = _skip_blanks(text, end)
        if text[position] != ",":
            break
        position += 1
    position = _expect(text, position, "}")
    if not isinstance(name, str):
        raise ValueError("a call without a name")
    return _call(name, arguments), position


def _read_named(text: str, position: int, form: CallFormat) -> tuple[ToolCall, int]:
    position = _expect(text, position, form.before_name)
    found = _NAME.match(text, position)
    if found is None:
        raise ValueError("a call without a name")
    position = _expect(text, found.end(), form.after_name)
    position = _skip_blanks(text, position)
    _, end = _READ.raw_decode(text, position)
    return _call(found[0], text[position:end]), _expect(text, end, form.after_arguments)


def _call(name: str, arguments: str) -> ToolCall:
    function = FunctionCall(name=name[:256], arguments=arguments)
    return ToolCall(id=f"call_{secrets.token_hex(12)}", function=function)


def _skip_blanks(text: str, position: int) -> int:
    found = _SKIP.match(text, position)
    assert found is not None
    return found.end()


def _expect(text: str, position: int, what: str) -> int:
    if not text.startswith(what, position):
        raise ValueError(f"expected {what!r}")
    return position + len(what)


def _partial_start(text: str, mark: str) -> int:
    """Return where the longest end of ``text`` begins that is a proper prefix of ``mark``."""
    for start in range(max(0, len(text) - len(mark) + 1), len(text)):
        if mark.startswith(text[start:]):
            return start
    return len(text)
