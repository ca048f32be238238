"""transformers' streamers get what ``generate`` gives them: prompt, tokens, end."""

from __future__ import annotations

from threading import Thread

import pytest
from fakes.engines import RecordingStreamer
from fakes.tokenizers import bytes_tokenizer
from transformers import TextIteratorStreamer, TextStreamer

from hierspec.engine.results import TokenEvent
from hierspec.engine.streamers import tee_to_streamer, validate_single_sequence


@pytest.fixture(scope="module")
def tokenizer():
    return bytes_tokenizer()


def events(ids, sequence=0):
    return [TokenEvent(t, "", i, "target", sequence=sequence) for i, t in enumerate(ids)]


def test_prompt_tokens_end_in_transformers_shapes():
    recorder = RecordingStreamer()
    given = events([4, 5])
    assert list(tee_to_streamer(given, recorder, [1, 2, 3])) == given
    assert recorder.calls == [[[1, 2, 3]], [4], [5], "end"]


def test_text_streamer_prints(tokenizer, capsys):
    prompt, output = tokenizer("def f")["input_ids"], tokenizer("(x): ok é")["input_ids"]
    list(tee_to_streamer(events(output), TextStreamer(tokenizer), prompt))
    assert capsys.readouterr().out == "def f(x): ok é\n"
    list(tee_to_streamer(events(output), TextStreamer(tokenizer, skip_prompt=True), prompt))
    assert capsys.readouterr().out == "(x): ok é\n"


def test_iterator_streamer_across_threads(tokenizer):
    prompt, output = tokenizer("a")["input_ids"], tokenizer("b c\nd")["input_ids"]
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=10)
    thread = Thread(target=lambda: list(tee_to_streamer(events(output), streamer, prompt)))
    thread.start()
    assert "".join(streamer) == "b c\nd"
    thread.join()


def test_it_ends_when_generation_fails_or_is_abandoned():
    def failing():
        yield from events([7])
        raise RuntimeError("out of memory")

    recorder = RecordingStreamer()
    with pytest.raises(RuntimeError):
        list(tee_to_streamer(failing(), recorder))
    assert recorder.calls == [[7], "end"]
    recorder = RecordingStreamer()
    abandoned = tee_to_streamer(events([7, 8]), recorder)
    next(abandoned)
    abandoned.close()
    assert recorder.calls == [[7], "end"]


def test_mistakes():
    with pytest.raises(ValueError, match="one at a time"):
        validate_single_sequence(2)
    with pytest.raises(ValueError, match=r"int has no put\(\)"):
        next(tee_to_streamer(events([1]), 3))
