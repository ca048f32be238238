"""Incremental detokenisation: text that never has to be taken back, at O(1) per token.

What a token adds to the text depends on its neighbours: a byte-level token may be half a
character, a sentencepiece-like decoder strips the first space of whatever it is given. So a short
*window* of recent tokens is decoded each time, and what it says beyond the part already sent is
new. A trailing replacement character may still become a real one and waits.

Exact for byte-level BPE, invalid bytes included. Decoders with byte *fallback* judge a run of
byte tokens as a whole; here an invalid run after a valid character keeps that character, where
decoding everything at once would replace both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

_REPLACEMENT = "\ufffd"
_PROMPT_TAIL = 16  # tokens of the prompt that the first window may lean on
_WINDOW = 16  # a window of this many tokens is cut as soon as it may be
_STUCK = 32  # a window this long without a whole character at its end holds invalid bytes
_LONGEST_CHARACTER = 4  # bytes, hence tokens


class Detokenizer:
    """Text of one sequence, token by token.

    Args:
        tokenizer: of transformers or ``tokenizers``; ``None`` makes every text empty.
        prompt_ids: with them, text continues the prompt's (a leading space is kept); without,
            it equals decoding the output alone.
        skip_special_tokens: leave special tokens out of the text.
    """

    __slots__ = ("_decode", "_mark", "_sent", "_skipped", "_window")

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._decode = _decoder(tokenizer, skip_special_tokens)
        special: Iterable[int] = getattr(tokenizer, "all_special_ids", ()) or ()
        self._skipped = frozenset(special) if skip_special_tokens else frozenset()
        tail = prompt_ids[max(len(prompt_ids) - _PROMPT_TAIL, 0) :]
        self._window = [i for i in tail if i not in self._skipped]
        self._mark = 0  # a place in the window where a character ended: it may be cut there
        text = self._decode(self._window)
        self._sent = len(text.rstrip(_REPLACEMENT))  # characters of the window's text sent

    def add(self, token_id: int) -> str:
        """The text that became final with this token; may be empty."""
        if token_id in self._skipped:
            return ""  # decoders drop these first, so bytes on both sides still join
        self._window.append(token_id)
        text = self._decode(self._window)
        whole = text.rstrip(_REPLACEMENT)
        new = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        size = len(self._window)
        if len(whole) == len(text):
            if size >= _WINDOW and self._mark:
                self._cut(self._mark, whole)
                self._mark = len(self._window)
            elif size - self._mark >= _WINDOW // 2:
                self._mark = size
        elif size >= _STUCK and size % _WINDOW == 0:
            new += self._unstick(text)
        return new

    def flush(self) -> str:
        """What was still held back, as it is; nothing follows."""
        text = self._decode(self._window)
        new = text[self._sent :]
        self._sent = len(text)
        return new

    def _cut(self, at: int, text: str) -> None:
        """Forget the window's first ``at`` tokens, if the rest still says the same."""
        rest = self._decode(self._window[at:])
        if rest and text.endswith(rest):
            self._window = self._window[at:]
            self._sent = len(rest)

    def _unstick(self, text: str) -> str:
        """Give up on old invalid bytes at the window's end, so that it stays short."""
        for at in range(len(self._window) - _LONGEST_CHARACTER, 0, -1):
            # Equal only where no character straddles the cut: one that did would show, since
            # all the bytes it could have are there.
            left, right = self._decode(self._window[:at]), self._decode(self._window[at:])
            if left + right == text:
                new = left[self._sent :]
                self._window, self._mark = self._window[at:], 0
                self._sent = max(self._sent - len(left), 0)
                return new
        return ""


def _decoder(tokenizer: Any, skip_special_tokens: bool) -> Callable[[list[int]], str]:
    """``ids -> text`` without the clean-up of spaces, which rewrites text already sent."""
    if tokenizer is None:
        return lambda ids: ""
    if hasattr(tokenizer, "clean_up_tokenization_spaces"):
        return lambda ids: tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
