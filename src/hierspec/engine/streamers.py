"""Token events for transformers' streamers (``TextStreamer``, ``TextIteratorStreamer``, …).

A streamer expects the prompt first (``skip_prompt=True`` drops it), then every token as a tensor,
then ``end()``, also when generation fails, since the thread that reads from it waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from hierspec.errors import HierspecError

from .results import TokenEvent


def validate_single_sequence(num_sequences: int) -> None:
    """Refuse a streamer unless there is exactly one sequence."""
    if num_sequences != 1:
        raise HierspecError("a streamer takes one sequence: stream prompts one at a time")


class StreamerAdapter:
    """Feeds one sequence's events to anything with ``put(tensor)`` and ``end()``.

    Args:
        streamer: of transformers.
        prompt_ids: given to the streamer first, as ``generate`` does; may be empty for a streamer
            that does not skip the prompt.
    """

    def __init__(self, streamer: Any, prompt_ids: Sequence[int] = ()) -> None:
        for method in ("put", "end"):
            if not callable(getattr(streamer, method, None)):
                raise HierspecError(
                    f"a streamer needs put(token_ids) and end(); {type(streamer).__name__} has no "
                    f"{method}(): pass one of transformers' streamers"
                )
        self.streamer = streamer
        self._ended = False
        if len(prompt_ids):
            streamer.put(torch.tensor([list(prompt_ids)]))

    def put(self, event: TokenEvent) -> None:
        """Give the streamer one token.

        Raises:
            HierspecError: an event of a batch's second or later sequence.
        """
        validate_single_sequence(event.sequence + 1)
        self.streamer.put(torch.tensor([event.token_id]))

    def end(self) -> None:
        """End the streamer; safe to call twice."""
        if not self._ended:
            self._ended = True
            self.streamer.end()


def tee_to_streamer(
    events: Iterable[TokenEvent], streamer: Any, prompt_ids: Sequence[int] = ()
) -> Iterator[TokenEvent]:
    """Yield the events and give each token to ``streamer``, which is ended in any case."""
    adapter = StreamerAdapter(streamer, prompt_ids)
    try:
        for event in events:
            adapter.put(event)
            yield event
    finally:
        adapter.end()
