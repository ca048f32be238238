"""Incremental detokenisation: text that never has to be taken back, at O(1) per token.

What a token adds to the text depends on its neighbours: a byte-level token may be half a
character, a sentencepiece-like decoder strips the first space of whatever it is given. So a short
*window* of recent tokens is decoded each time, and its text beyond the part already sent is new. A
trailing replacement character may still become a real one and waits.

Exact for byte-level BPE, invalid bytes included. Decoders with byte *fallback* judge a run of
byte tokens as a whole; here an invalid run after a valid character keeps that character, where
decoding everything at once would replace both.

Byte-level tokens are bytes whatever stands beside them, so their text is a table and an
incremental UTF-8 decoder, without asking the tokenizer at all (:class:`ByteDetokenizer`).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

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
        self._skipped = frozenset(special if skip_special_tokens else ())
        self._window = [i for i in _tail(prompt_ids) if i not in self._skipped]
        self._mark = 0  # a place in the window where a character ended: it may be cut there
        text = self._decode(self._window)
        self._sent = len(text.rstrip(_REPLACEMENT))  # characters of the window's text sent

    def add(self, token_id: int) -> str:
        """Add a token → the text that became final with it; may be empty."""
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
        """Return what was still held back, as it is; nothing follows."""
        text = self._decode(self._window)
        new = text[self._sent :]
        self._sent = len(text)
        return new

    def _cut(self, at: int, text: str) -> None:
        """Forget the window's first ``at`` tokens, if the rest still decodes to the same text."""
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


class ByteDetokenizer:
    """The same for byte-level BPE: every token's bytes, decoded as they come."""

    __slots__ = ("_decoder", "_skipped", "_table", "_tokenizer")

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._table, special = _table(tokenizer)
        self._skipped: frozenset[int] = special if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in _tail(prompt_ids):  # its last character may end in the output
            self.add(token_id)

    def add(self, token_id: int) -> str:
        """Add a token → the text that became final with it; may be empty."""
        if token_id in self._skipped:
            return ""
        found = self._table.get(token_id)
        if found is None:
            found = self._table[token_id] = _token_bytes(self._tokenizer, token_id)
        return self._decoder.decode(found)

    def flush(self) -> str:
        """Return what was still held back, as it is; nothing follows."""
        return self._decoder.decode(b"", final=True)


def detokenizer(
    tokenizer: Any, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True
) -> Detokenizer | ByteDetokenizer:
    """Choose the fastest exact detokenizer; arguments as of :class:`Detokenizer`."""
    kind = ByteDetokenizer if _is_byte_level(tokenizer) else Detokenizer
    return kind(tokenizer, prompt_ids, skip_special_tokens)


def token_bytes(tokenizer: Any, token_id: int) -> bytes:
    """Return one token's own bytes: perhaps half a character. Empty without a tokenizer."""
    if tokenizer is None:
        return b""
    if _is_byte_level(tokenizer):
        return _token_bytes(tokenizer, token_id)
    return _decoder(tokenizer, False)([token_id]).encode()


_Table = tuple[dict[int, bytes], frozenset[int]]  # tokens met so far; special ones
_tables: WeakKeyDictionary[Any, tuple[int, _Table]] = WeakKeyDictionary()


def _table(tokenizer: Any) -> _Table:
    """Return the tokenizer's table, shared by its streams until tokens are added to it."""
    backend = _backend(tokenizer)
    size = backend.get_vocab_size(with_added_tokens=True)
    if tokenizer not in _tables or _tables[tokenizer][0] != size:
        added = backend.get_added_tokens_decoder()
        special = frozenset(i for i, token in added.items() if token.special)
        _tables[tokenizer] = (size, ({}, special))
    return _tables[tokenizer][1]


def _backend(tokenizer: Any) -> Any:
    """Return the ``tokenizers.Tokenizer`` behind one of transformers."""
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def _is_byte_level(tokenizer: Any) -> bool:
    """Return whether decoding just joins bytes: known only of the library's own decoder."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel

    backend = _backend(tokenizer)
    if not isinstance(backend, Tokenizer) or not isinstance(backend.decoder, ByteLevel):
        return False
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer is backend
    methods: list[Any] = [getattr(type(tokenizer), name) for name in ("decode", "_decode")]
    # A subclass may decode otherwise.
    return all(
        method.__module__.startswith("transformers.tokenization_utils") for method in methods
    )


def _token_bytes(tokenizer: Any, token_id: int) -> bytes:
    """Return a byte-level token's bytes; none for an id outside the vocabulary."""
    token = _backend(tokenizer).id_to_token(token_id)
    if token is None:
        return b""
    alphabet = _alphabet()
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()  # an added token stands for itself


@cache
def _alphabet() -> dict[str, int]:
    """Map characters to the bytes they encode: printable ones themselves, others from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def _tail(prompt_ids: Sequence[int]) -> Sequence[int]:
    return prompt_ids[max(len(prompt_ids) - _PROMPT_TAIL, 0) :]


def _decoder(tokenizer: Any, skip_special_tokens: bool) -> Callable[[list[int]], str]:
    """Return ``ids -> text`` without the clean-up of spaces, which rewrites text already sent."""
    if tokenizer is None:
        return lambda ids: ""
    if hasattr(tokenizer, "clean_up_tokenization_spaces"):
        return lambda ids: tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
