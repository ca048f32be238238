"""What a chat template can do with tools, found by trying it once.

Templates are programs. Some list tools and write calls and their results, some silently leave out
what they do not know, some refuse it, each in its own way: arguments that are not a text, ids of
another length, a system message, two messages in a row by the same side.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from hierspec.engine.detokenize import added_tokens, special_ids

from .call_formats import FORMATS, TAGGED, CallFormat


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a model's chat template can do.

    Attributes:
        calls: the format of calls that the model is asked for.
        lists_tools: the template is given the tools; otherwise a message lists them.
        writes_calls: it writes earlier calls; ``writes_several``: more than one in a message;
            ``writes_results``: their results.
        text_arguments: it wants arguments as text; ``short_ids``: ids of nine letters and digits.
        takes_system: it writes a system message.
        takes_neighbours: it writes two messages of a user in a row.
        shown_ids: special tokens that mark calls: a text must show them where calls are read.
    """

    calls: CallFormat = TAGGED
    lists_tools: bool = False
    writes_calls: bool = False
    writes_several: bool = False
    writes_results: bool = False
    text_arguments: bool = False
    short_ids: bool = False
    takes_system: bool = True
    takes_neighbours: bool = True
    shown_ids: frozenset[int] = frozenset()


_traits: WeakKeyDictionary[Any, tuple[str, TemplateTraits]] = WeakKeyDictionary()


def template_traits(tokenizer: Any) -> TemplateTraits:
    """Return what the tokenizer's chat template can do."""
    if tokenizer is None:
        return TemplateTraits()
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if tokenizer not in _traits or _traits[tokenizer][0] != template:
        traits = _try_out(tokenizer, template) if template else TemplateTraits()
        form, added = traits.calls, added_tokens(tokenizer)
        marks = (form.begin, form.end, form.before_name, form.after_name, form.after_arguments)
        special = special_ids(tokenizer) & added.keys()
        shown = frozenset(i for i in special if any(added[i].content in mark for mark in marks))
        _traits[tokenizer] = (template, replace(traits, shown_ids=shown))
    return _traits[tokenizer][1]


_USER = {"role": "user", "content": "one question"}
_RESULT = {"role": "tool", "tool_call_id": "call_tried_1", "name": "tried", "content": "the result"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "listed",
        "description": "Listed.",
        "parameters": {"type": "object", "properties": {"some_key": {"type": "string"}}},
    },
}
_ARGUMENTS = re.compile(r'\{\s*"some_key":\s*"some value"\s*\}')  # as JSON


def _try_out(tokenizer: Any, template: str) -> TemplateTraits:
    system = {"role": "system", "content": "one instruction"}
    answer = {"role": "assistant", "content": "one answer"}
    other = {"role": "user", "content": "another question"}
    takes: dict[str, Any] = {
        "takes_system": "one instruction" in _write(tokenizer, [system, _USER]),
        "takes_neighbours": "another question" in _write(tokenizer, [_USER, answer, _USER, other]),
    }
    if "tools" not in template:
        return TemplateTraits(**takes)
    form = _call_format(tokenizer, template)
    written = False
    for text_arguments, short_ids in itertools.product((False, True), repeat=2):
        text = _write(tokenizer, [_USER, *_tried(1, text_arguments, short_ids)])
        if "tried" not in text or "the result" not in text:
            continue
        written = written or "some value" in text
        if _ARGUMENTS.search(text) and (form.begin in text or form.bare):
            both = _write(tokenizer, [_USER, *_tried(2, text_arguments, short_ids)])
            several = len(_ARGUMENTS.findall(both)) == 2
            return TemplateTraits(
                form, True, True, several, True, text_arguments, short_ids, **takes
            )
    if written:  # in a format that is not read here
        return TemplateTraits(**takes)
    results = "the result" in _write(tokenizer, [_USER, answer, _RESULT])
    return TemplateTraits(form, True, writes_results=results, **takes)


def _tried(count: int, text_arguments: bool, short_ids: bool) -> list[dict[str, Any]]:
    arguments: Any = '{"some_key": "some value"}' if text_arguments else {"some_key": "some value"}
    function = {"name": "tried", "arguments": arguments}
    ids = [f"tried{i:04}" if short_ids else f"call_tried_{i}" for i in range(count)]
    calls = [{"id": id, "type": "function", "function": function} for id in ids]
    return [
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({**_RESULT, "tool_call_id": id} for id in ids),
    ]


def _write(tokenizer: Any, messages: Sequence[dict[str, Any]]) -> str:
    """Return what the template makes of messages, with a tool; nothing if it refuses them."""
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tools=[_TOOL], add_generation_prompt=True, tokenize=False
        )
    except Exception:  # templates raise what they like
        return ""
    return text if isinstance(text, str) else ""


def _call_format(tokenizer: Any, template: str) -> CallFormat:
    """Return the format that the template names, or else the model's own tokens."""
    tokens = " ".join(token.content for token in added_tokens(tokenizer).values())
    for known in (template, tokens):
        for form in FORMATS:
            if all(mark in known for mark in form.marks):
                return form
    return TAGGED
