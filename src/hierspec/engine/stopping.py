"""When a generation ends, exact to the token: limits, end-of-text tokens, stop strings.

Stop strings may begin and end in the middle of a token or of a draft. Text that may turn out to
be the beginning of one is held back, so streamed text is never revised, and the token that
completes one is the last token of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from hierspec.errors import HierspecError

from .detokenize import detokenizer


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When to stop, and whether stop strings and special tokens are kept in the text.

    Attributes:
        eos_token_ids: any of these tokens ends the output (``"stop"``); it stays in the token ids
            and is left out of the text.
        stop: strings that end the output (``"stop"``).
        max_new_tokens: the most output tokens (``"length"``).
        max_length: the most prompt and output tokens together (``"length"``).
        ignore_eos: treat end-of-text tokens as any other.
        include_stop_str: keep the stop string at the end of the text.
        skip_special_tokens: leave special tokens out of the text.
    """

    eos_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    max_length: int | None = None
    ignore_eos: bool = False
    include_stop_str: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            raise HierspecError(f"stop must be a tuple of strings; write stop=({self.stop!r},)")
        for text in cast("tuple[Any, ...]", self.stop):
            if not isinstance(text, str) or not text:
                raise HierspecError(f"stop must hold non-empty strings, got {text!r}")
        for name in ("max_new_tokens", "max_length"):
            limit = getattr(self, name)
            if limit is not None and (not isinstance(limit, int) or limit < 1):
                raise HierspecError(f"{name} must be an integer ≥ 1 or None, got {limit!r}")

    def max_output_tokens(self, prompt_length: int) -> int | None:
        """Return how many output tokens a prompt of this length allows; ``None``: no limit.

        Raises:
            HierspecError: the prompt leaves no room within ``max_length``.
        """
        limits = [] if self.max_new_tokens is None else [self.max_new_tokens]
        if self.max_length is not None:
            if prompt_length >= self.max_length:
                raise HierspecError(
                    f"the prompt has {prompt_length} tokens and max_length is {self.max_length}; "
                    "shorten the prompt, raise max_length, or use max_new_tokens"
                )
            limits.append(self.max_length - prompt_length)
        return min(limits, default=None)


class TextStream:
    """The text of one output, fed token by token, up to the first condition that ends it.

    Args:
        tokenizer: of transformers or ``tokenizers``; ``None`` leaves all texts empty.
        conditions: ``None``: nothing ends the stream.
        prompt_ids: if given, the text continues the prompt's (:mod:`hierspec.engine.detokenize`).
        prompt_length: for ``max_length``; ``len(prompt_ids)`` by default.

    Attributes:
        num_tokens: how many tokens were fed, the one that ended the stream included.
        finish_reason: ``None``, then ``"stop"`` or ``"length"``.
    """

    __slots__ = (
        "_detokenizer",
        "_held_back",
        "_max_tokens",
        "_parts",
        "conditions",
        "finish_reason",
        "num_tokens",
    )

    def __init__(
        self,
        tokenizer: Any,
        conditions: StopConditions | None = None,
        prompt_ids: Sequence[int] = (),
        prompt_length: int | None = None,
    ) -> None:
        self.conditions = conditions or StopConditions()
        if tokenizer is None and self.conditions.stop:
            raise HierspecError("stop strings need a tokenizer; pass one, or stop at token ids")
        length = len(prompt_ids) if prompt_length is None else prompt_length
        self._max_tokens = self.conditions.max_output_tokens(length)
        skip_special_tokens = self.conditions.skip_special_tokens
        self._detokenizer = detokenizer(tokenizer, prompt_ids, skip_special_tokens)
        self._held_back = ""  # decoded text that may be the beginning of a stop string
        self._parts: list[str] = []
        self.num_tokens = 0
        self.finish_reason: str | None = None

    @property
    def text(self) -> str:
        """All text that became final so far."""
        return "".join(self._parts)

    def feed(self, token_id: int) -> tuple[str, str | None]:
        """Add a token → (text that became final, why the output ends here or ``None``)."""
        assert self.finish_reason is None, "the stream has ended"
        self.num_tokens += 1
        conditions = self.conditions
        if token_id in conditions.eos_token_ids and not conditions.ignore_eos:
            self.finish_reason = "stop"
            return self._end(), "stop"
        delta = self._release(self._detokenizer.add(token_id))
        if self.finish_reason is None and self.num_tokens == self._max_tokens:
            self.finish_reason = "length"
            delta += self._end()
        return delta, self.finish_reason

    def finish(self) -> str:
        """Return the text that was held back, because something else ended the output."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason = "cancelled"
        return self._end()

    def _end(self) -> str:
        """Return all remaining text; an incomplete last character may complete a stop string."""
        delta = self._release(self._detokenizer.flush())
        rest, self._held_back = self._held_back, ""
        self._parts.append(rest)
        return delta + rest

    def _release(self, new: str) -> str:
        """Add ``new`` to the held back text → all of it that cannot be part of a stop string."""
        text = self._held_back + new
        conditions = self.conditions
        end = None
        if new and conditions.stop:
            # The first to begin; of those, the first to end.
            matches = [(start, len(s)) for s in conditions.stop if (start := text.find(s)) >= 0]
            if matches:
                start, length = min(matches)
                end = start + length if conditions.include_stop_str else start
        if end is not None:
            self.finish_reason = "stop"
            text, self._held_back = text[:end], ""
        elif conditions.stop:
            end = len(text) - _partial_stop_length(text, conditions.stop)
            text, self._held_back = text[:end], text[end:]
        self._parts.append(text)
        return text


def _partial_stop_length(text: str, stop: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of ``text`` that is a stop string's proper prefix."""
    longest = 0
    for s in stop:
        for size in range(min(len(s) - 1, len(text)), longest, -1):
            if text.endswith(s[:size]):
                longest = size
                break
    return longest
