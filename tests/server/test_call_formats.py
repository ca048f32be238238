"""Calls found in texts: in every format, however the text comes in, wherever it ends."""

from __future__ import annotations

import json

import pytest

from hierspec.server.call_formats import FORMATS, TAGGED, CallStream, write_calls

BARE = FORMATS[-1]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ONE = [("f", '{"a": 1}')]


def read(text, reason, form=TAGGED, hidden=()):
    """(text outside calls, calls, why the answer ends), the same however the text is cut up."""
    found = []
    for size in (len(text) or 1, 1, 2, 7):
        stream = CallStream(form, ["f"], hidden)
        shown, calls = "", []
        for start in range(0, len(text), size):
            more, some = stream.feed(text[start : start + size])
            shown, calls = shown + more, calls + some
        more, some = stream.feed("", reason)
        made = [(call.function.name, call.function.arguments) for call in calls + some]
        assert stream.count == len(made)
        found.append((shown + more, made, stream.finish_reason))
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("  plain \n", "  plain \n", []),
        ("", "", []),
        ("Let me see.\n\n" + CALL, "Let me see.", ONE),
        (CALL + "\nDone.", "Done.", ONE),
        (CALL + "\n and \n" + CALL + "\n", "and", ONE * 2),
        ("a\n\n" + CALL + "\n\nb", "a\n\n\n\nb", ONE),
        (CALL.replace("\n", ""), "", ONE),
        (CALL.replace("1", '"}\\n</tool_call>"'), "", [("f", '{"a": "}\\n</tool_call>"}')]),
        (CALL.replace("1", r'"\ud83d é"'), "", [("f", r'{"a": "\ud83d é"}')]),
        (CALL.replace("arguments", "parameters"), "", ONE),
        (CALL.replace('{"a": 1}', '"{\\"a\\": 1}"'), "", ONE),
        (CALL.replace('{"a": 1}', "{}"), "", [("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (f"<tool_call>[{CALL[12:-13]}, {CALL[12:-13]}]</tool_call>", "", ONE * 2),
        ("Write <tool_call> like </tool_call>.", "Write <tool_call> like </tool_call>.", []),
        ("a < b <tool", "a < b <tool", []),
    ],
)
def test_calls_and_the_text_around_them(text, shown, calls):
    assert read(text, "stop") == (shown, calls, "tool_calls" if calls else "stop")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.begin} {len(form.marks)}")
def test_every_format_wherever_it_is_cut(form):
    calls = [("f", '{"a": "é}]"}'), ("f", "{}")]
    text = write_calls(form, calls)
    assert read(text, "stop", form) == ("", calls, "tool_calls")
    if not form.bare:
        assert read("So: " + text, "stop", form) == ("So:", calls, "tool_calls")
    whole = 0
    for cut in range(1, len(text)):
        shown, found, reason = read(text[:cut], "length", form)
        if not form.bare:  # what begins as a call may be any JSON
            assert shown == "", cut
        assert found == calls[: len(found)]
        assert reason == "length" or len(found) == 1, cut  # all of the text may be one call
        whole = max(whole, len(found))
    assert whole < 2


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.begin} {len(form.marks)}")
@pytest.mark.parametrize("name", ["Bash", "getBalance", "f.-_1"])
def test_names_of_any_letters(form, name):
    text = write_calls(form, [(name, "{}")])
    stream = CallStream(form, ["f", name, "Ba"])
    shown, (call,) = stream.feed(text, "stop")
    assert (shown, call.function.name, stream.finish_reason) == ("", name, "tool_calls")


def test_an_answer_cut_after_its_calls():
    assert read(CALL, "length") == ("", ONE, "tool_calls")  # nothing is missing
    assert read(CALL + "\nDo", "length") == ("Do", ONE, "length")
    assert read(CALL + "\n" + CALL[:30], "length") == ("", ONE, "length")
    assert read(CALL + "\n" + CALL[:30], "stop") == ("", ONE, "stop")  # by a stop string


@pytest.mark.parametrize(
    "text", ['{"name": "Bob", "age": 1}', '{"a": 1}', "[1, 2]", 'It is {"name": "f", "x": 1}', "{"]
)
def test_json_that_is_no_call_is_text(text):
    assert read(text, "stop", BARE) == (text, [], "stop")


@pytest.mark.parametrize("between", ["; ", ";", "\n", ""])
@pytest.mark.parametrize("after", ["", '"', " and ", "<|python_tag|"])
def test_text_among_calls_without_a_mark_is_kept(between, after):
    call = '{"name": "f", "parameters": {"a": 1}}'
    text = f"{call}{between}{call}{after}<|python_tag|>{call}"
    assert read(text, "stop", BARE) == (after.strip(), ONE * 3, "tool_calls")


def test_special_marks_are_no_text():
    hidden = ("<|python_tag|>",)
    assert read("<|python_tag|>print(1)", "stop", BARE, hidden) == ("print(1)", [], "stop")
    call = '<|python_tag|>{"name": "f", "parameters": {"a": 1}}'
    assert read(call, "stop", BARE, hidden) == ("", ONE, "tool_calls")
    assert json.loads(write_calls(BARE, ONE))["parameters"] == {"a": 1}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.begin} {len(form.marks)}")
@pytest.mark.parametrize("word", ["{x", "[1", "{\t", '{"x": 1}', "words", '[{"name": "g"', "{  "])
def test_what_no_call_begins_with_is_text(form, word):
    """The grammar leaves a text free whose first token behind the mark no call begins with."""
    text = f"Well {form.begin}{word} and more."
    assert read(text, "stop", form) == (text, [], "stop")
    call = write_calls(form, ONE)
    if not form.bare:
        assert read(f"{text} {call}", "stop", form) == (text, ONE, "tool_calls")
