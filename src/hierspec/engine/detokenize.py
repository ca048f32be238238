"""Incremental detokenisation: text that is never revised, at O(1) per token.

What a token adds to the text depends on its neighbours: a byte-level token may be half a
character, and a sentencepiece-like decoder strips the first space of its input. So a short
*window* of recent tokens is decoded each time, and its text beyond the part already returned is
new. A trailing replacement character may still become a real one and is held back.

Exact for byte-level BPE, invalid bytes included. Decoders with byte *fallback* decode a run of
byte tokens together; here an invalid run after a valid character keeps that character, where
decoding everything at once would replace both.

A byte-level token has the same bytes beside any others, so its text comes from a table and an
incremental UTF-8 decoder, without calling the tokenizer (:class:`ByteDetokenizer`).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from hierspec.lm.saved_tokenizer import SavedTokenizer

_REPLACEMENT = "\ufffd"
_PROMPT_TAIL = 16  # tokens of the prompt that the first window begins with
_WINDOW = 16  # tokens from which a window is cut as soon as possible
_STUCK = 32  # a window this long that ends in an incomplete character holds invalid bytes
_LONGEST_CHARACTER = 4  # bytes, hence tokens


class Detokenizer:
    """Text of one sequence, token by token.

    Args:
        tokenizer: of transformers or ``tokenizers``; ``None`` makes every text empty.
        prompt_ids: if given, text continues the prompt's (a leading space is kept); otherwise
            it equals decoding the output alone.
        skipped: tokens that are left out of the text.
    """

    __slots__ = ("_cut_position", "_decode", "_num_returned", "_skipped", "_window")

    def __init__(
        self, tokenizer: Any, prompt_ids: Sequence[int] = (), skipped: Set[int] = frozenset()
    ) -> None:
        self._decode, self._skipped = _decoder(tokenizer), skipped
        tail = prompt_ids[-_PROMPT_TAIL - _LONGEST_CHARACTER :]
        ids = [i for i in tail if i not in self._skipped]
        latest = max(len(ids) - _PROMPT_TAIL, 0)
        # One that begins within a character of byte tokens decodes to replacements of all of them.
        whole = (
            start
            for start in range(latest, -1, -1)
            if not self._complete_text(ids[start:]).startswith(_REPLACEMENT)
        )
        self._window = ids[next(whole, latest) :]
        self._cut_position = 0  # where in the window a character ended, so that it may be cut
        # characters of the window's text that were returned
        self._num_returned = len(self._complete_text(self._window))

    def add(self, token_id: int) -> str:
        """Add a token → the text that became final with it; may be empty."""
        if token_id in self._skipped:
            return ""  # decoders drop these first, so bytes on both sides still join
        self._window.append(token_id)
        text = self._decode(self._window)
        complete = text.rstrip(_REPLACEMENT)
        new = complete[self._num_returned :]
        self._num_returned = max(self._num_returned, len(complete))
        size = len(self._window)
        if len(complete) == len(text):
            if size >= _WINDOW and self._cut_position:
                self._cut(self._cut_position, complete)
                self._cut_position = len(self._window)
            elif size - self._cut_position >= _WINDOW // 2:
                self._cut_position = size
        elif size >= _STUCK and size % _WINDOW == 0:
            new += self._unstick(text)
        return new

    def flush(self) -> str:
        """Return the text that was held back, as it is; no more tokens may be added."""
        text = self._decode(self._window)
        new = text[self._num_returned :]
        self._num_returned = len(text)
        return new

    def _complete_text(self, ids: list[int]) -> str:
        """Return the text of a prompt's tokens, without a last character that is not complete."""
        ends = range(len(ids), max(len(ids) - _LONGEST_CHARACTER, -1), -1)
        texts = (self._decode(ids[:end]) for end in ends)
        whole = next((text for text in texts if not text.endswith(_REPLACEMENT)), None)
        return self._decode(ids) if whole is None else whole

    def _cut(self, position: int, text: str) -> None:
        """Drop the window's first ``position`` tokens, if the rest still decodes to its text."""
        rest = self._decode(self._window[position:])
        if rest and text.endswith(rest):
            self._window = self._window[position:]
            self._num_returned = len(rest)

    def _unstick(self, text: str) -> str:
        """Return text up to invalid bytes that no later token completes; cut the window there."""
        for position in range(len(self._window) - _LONGEST_CHARACTER, 0, -1):
            # Equal only where no character straddles the cut: all bytes of one that did are there.
            left = self._decode(self._window[:position])
            if left + self._decode(self._window[position:]) == text:
                new = left[self._num_returned :]
                self._window, self._cut_position = self._window[position:], 0
                self._num_returned = max(self._num_returned - len(left), 0)
                return new
        return ""


class ByteDetokenizer:
    """The same for byte-level BPE, by decoding each token's bytes; see :class:`Detokenizer`."""

    __slots__ = ("_decoder", "_skipped", "_table", "_tokenizer")

    def __init__(
        self, tokenizer: Any, prompt_ids: Sequence[int] = (), skipped: Set[int] = frozenset()
    ) -> None:
        self._tokenizer, self._skipped = tokenizer, skipped
        _, self._table, _ = _table(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in prompt_ids[-_PROMPT_TAIL:]:  # its last character may end in the output
            self.add(token_id)

    def add(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        data = self._table.get(token_id)
        if data is None:
            data = self._table[token_id] = _token_bytes(self._tokenizer, token_id)
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def detokenizer(
    tokenizer: Any, prompt_ids: Sequence[int] = (), shown_ids: frozenset[int] = frozenset()
) -> Detokenizer | ByteDetokenizer:
    """Choose the fastest exact detokenizer; special tokens but ``shown_ids`` are left out."""
    if _is_byte_level(tokenizer):
        return ByteDetokenizer(tokenizer, prompt_ids, special_texts(tokenizer).keys() - shown_ids)
    return Detokenizer(tokenizer, prompt_ids, special_ids(tokenizer) - shown_ids)


def added_tokens(tokenizer: Any) -> Mapping[int, Any]:
    backend = _backend(tokenizer)
    if hasattr(backend, "get_added_tokens_decoder"):
        return backend.get_added_tokens_decoder()
    return getattr(tokenizer, "added_tokens_decoder", None) or {}


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that decoders leave out of a text as special."""
    named: Iterable[int] = getattr(tokenizer, "all_special_ids", ()) or ()
    return frozenset(named) | {i for i, one in added_tokens(tokenizer).items() if one.special}


def token_bytes(tokenizer: Any, token_id: int) -> bytes:
    """Return one token's own bytes: perhaps half a character. Empty without a tokenizer."""
    if tokenizer is None:
        return b""
    if _is_byte_level(tokenizer):
        return _token_bytes(tokenizer, token_id)
    return _decoder(tokenizer)([token_id]).encode()


# by tokenizer: its size, bytes of tokens decoded so far, texts of its special tokens
_tables: WeakKeyDictionary[Any, tuple[int, dict[int, bytes], Mapping[int, str]]] = (
    WeakKeyDictionary()
)


def _table(tokenizer: Any) -> tuple[int, dict[int, bytes], Mapping[int, str]]:
    size = _backend(tokenizer).get_vocab_size(with_added_tokens=True)
    if tokenizer not in _tables or _tables[tokenizer][0] != size:
        _tables[tokenizer] = (size, {}, _special_texts(tokenizer))
    return _tables[tokenizer]


def special_texts(tokenizer: Any) -> Mapping[int, str]:
    """Return the texts of a tokenizer's special tokens, by id."""
    has_backend = hasattr(_backend(tokenizer), "get_added_tokens_decoder")
    return _table(tokenizer)[2] if has_backend else _special_texts(tokenizer)


def _special_texts(tokenizer: Any) -> Mapping[int, str]:
    return {i: one.content for i, one in added_tokens(tokenizer).items() if one.special}


def _backend(tokenizer: Any) -> Any:
    return getattr(tokenizer, "backend_tokenizer", tokenizer)


def _is_byte_level(tokenizer: Any) -> bool:
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel

    backend = _backend(tokenizer)
    if not isinstance(backend, Tokenizer) or not isinstance(backend.decoder, ByteLevel):
        return False
    if tokenizer is backend or isinstance(tokenizer, SavedTokenizer):
        return True
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return False
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
    return token.encode()  # an added token is its own text


@cache
def _alphabet() -> dict[str, int]:
    """Map characters to the bytes they encode: printable ones themselves, others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}


def _decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """Return ``ids -> text`` without the clean-up of spaces, which revises earlier text."""
    if tokenizer is None:
        return lambda ids: ""
    options: dict[str, Any] = {"skip_special_tokens": False}
    if hasattr(tokenizer, "clean_up_tokenization_spaces"):
        options["clean_up_tokenization_spaces"] = False
    return lambda ids: tokenizer.decode(ids, **options)
