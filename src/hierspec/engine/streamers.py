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


def tee_to_streamer(
    events: Iterable[TokenEvent], streamer: Any, prompt_ids: Sequence[int] = ()
) -> Iterator[TokenEvent]:
    """Yield one sequence's events and give each token to ``streamer``, which is ended in any case.

    Args:
        streamer: anything with ``put(tensor)`` and ``end()``.
        prompt_ids: given to it first, as ``generate`` does; may be empty for a streamer that does
            not skip the prompt.

    Raises:
        HierspecError: it is no streamer.
    """
    for method in ("put", "end"):
        if not callable(getattr(streamer, method, None)):
            raise HierspecError(
                f"a streamer needs put(token_ids) and end(); {type(streamer).__name__} has no "
                f"{method}(): pass one of transformers' streamers"
            )
    if len(prompt_ids):
        streamer.put(torch.tensor([list(prompt_ids)], device="cpu"))
    try:
        for event in events:
            streamer.put(torch.tensor([event.token_id], device="cpu"))
            yield event
    finally:
        streamer.end()
