"""Stand-ins for what writes texts, and for who reads them as they are written."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from fakes.tokenizers import FirstLetters


class FakeVllmEngine:
    """Writes (0, 1, 2, …): the prompt in two bites, then two tokens a step."""

    def __init__(self):
        self.steps, self.left = 0, []

    def add_request(self, name, prompt, params):
        self.written, self.left = 0, [0, 1] + [2] * (params.max_tokens // 2)
        self.prompt, self.params = prompt, params

    def has_unfinished_requests(self):
        return bool(self.left)

    def step(self):
        self.written = min(self.params.max_tokens, self.written + self.left.pop(0))
        if not self.written:
            return []
        tokens = SimpleNamespace(token_ids=list(range(self.written)))
        return [SimpleNamespace(outputs=[tokens])]


class Talker:
    """A hierarchy that answers at once; the number of the call is in the answer."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls, self.stop_at = 0, stop_at
        self.tokenizer = FirstLetters()

    def generate_batch(self, prompts: list[list[int]], seed: int, **_: Any) -> list[Any]:
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return [
            SimpleNamespace(
                text=f"said {seed} for {i} at length", token_ids=[1, seed, i], finish_reason="stop"
            )
            for i in range(len(prompts))
        ]


class Reader:
    """A sink that keeps what it is told."""

    def __init__(self, pause: float = 0.0) -> None:
        self.events, self.ended, self.pause = [], None, pause
        self.done = threading.Event()

    def __call__(self, progress) -> None:
        time.sleep(self.pause)
        self.events += progress.events
        if progress.ended is not None:
            self.ended = progress.ended
            self.done.set()

    def wait(self):
        assert self.done.wait(120), "never ended"
        return self.ended


def read(engine, *requests, pause: float = 0.0) -> list[Reader]:
    """Give these requests to an engine → what reads each."""
    readers = [Reader(pause) for _ in requests]
    for request, reader in zip(requests, readers, strict=True):
        request.sink = reader
    engine.add(requests)
    return readers


class RecordingStreamer(BaseStreamer):
    """A streamer of transformers that keeps what it is given: calls as they are, and their ids."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.ids: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        assert value.dtype == torch.long
        self.calls.append(value.tolist())
        self.ids += value.flatten().tolist()

    def end(self) -> None:
        self.calls.append("end")
