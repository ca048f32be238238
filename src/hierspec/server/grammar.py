"""Grammars as logits processors: every row of a draft is masked by what its own history allows.

The library (llguidance) keeps the state of one parser, but drafts ask for the histories of tokens
that may be rejected later. So a processor moves its parser to the history it is called with: it
rolls back tokens that differ and consumes those that are missing. That makes it a function of its
arguments, as drafts require.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hierspec.engine.caches import common_prefix_length
from hierspec.engine.detokenize import added_tokens, special_ids
from hierspec.errors import HierspecError
from hierspec.lm.saved_tokenizer import SavedTokenizer

from .call_formats import ARGUMENT_KEYS, BLANK, BLANKS, TAGGED, CallFormat, find_opening
from .errors import ApiError
from .templates import template_traits

_COMPACT: Any = {"whitespace_flexible": False}  # else a small model may write blanks for ever
_SHORT_BLANK = r"[ \n]"  # of a model that must call


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a text must be.

    Attributes:
        grammar: of the whole text; with ``calls``, of what follows the mark before calls.
        calls: constrain calls alone, wherever the text makes them.
        names: functions that calls may name.
        repeats: other text and more calls may follow a call.
    """

    grammar: str
    calls: CallFormat | None = None
    names: tuple[str, ...] = ()
    repeats: bool = False


class Grammars:
    """Makes processors for one model's tokens.

    To a grammar a token is what the text shows of it: an added token is its own text, and a
    special one is nothing, except those that mark calls.

    Args:
        vocab_size: ids that the target scores.
        eos_token_ids: tokens that may end a text once the grammar accepts it.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise HierspecError(
                "response_format and tools need a grammar library: pip install 'hierspec[server]'"
            ) from None
        ends = sorted(eos_token_ids)
        if not ends:
            raise ApiError("this model has no end-of-text token, which a grammar needs")
        size = max(vocab_size, len(tokenizer))
        try:
            # of transformers, whose class the library asks for
            whole = tokenizer.transformers if isinstance(tokenizer, SavedTokenizer) else tokenizer
            base = from_tokenizer(whole, n_vocab=size, eos_token=ends)
        except Exception as error:  # the library raises what it likes
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ApiError(
                f"response_format and tools cannot be used with this model's tokenizer: {reason}"
            ) from None
        hidden = (special_ids(tokenizer) - template_traits(tokenizer).shown_ids) | eos_token_ids
        words = _Words(tokenizer, base, hidden, ends, size)
        self._tokenizer = LLTokenizer(TokenizerWrapper(words), eos_token=ends)
        shown = enumerate(words.tokens[:size])
        self._words = [b"" if i in hidden else word for i, word in shown]

    def processor(self, constraint: Constraint, prompt_len: int) -> GrammarProcessor:
        """Make a processor for one sequence, whose output begins after ``prompt_len`` tokens.

        Raises:
            ApiError: the grammar is invalid, or too large.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, constraint.grammar, log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().splitlines()[0]
            raise ApiError(f"the schema cannot be used: {reason}", param="response_format")
        return GrammarProcessor(matcher, prompt_len, constraint, self._words)


class _Words:
    """A model's tokens as the bytes they are in a text, then every byte as a token of its own.

    Args:
        base: the library's view of the tokenizer, to which every added token is special.
        hidden: tokens that no text shows.
        size: of the vocabulary; ids beyond the tokenizer's are no tokens.
    """

    bos_token_id = None

    def __init__(
        self, tokenizer: Any, base: Any, hidden: Collection[int], ends: Sequence[int], size: int
    ) -> None:
        self.eos_token_id = ends[0]
        self.special_token_ids = [i for i in sorted(hidden) if i < size]
        self._base, self._hidden = base, frozenset(hidden)
        words = [base.decode_bytes([i]) if i < len(tokenizer) else b"" for i in range(size)]
        for i, token in added_tokens(tokenizer).items():
            words[i] = token.content.encode()
        self.tokens = words + [bytes([byte]) for byte in range(256)]

    def __call__(self, text: str | bytes) -> list[int]:
        """Return a text's tokens as a model would write them, without hidden ones."""
        raw = text if isinstance(text, bytes) else text.encode()
        ids: list[int] = self._base.tokenize_bytes(raw)
        if self._hidden.isdisjoint(ids) and b"".join(self.tokens[i] for i in ids) == raw:
            return ids
        return self._base.greedy_tokenize(raw.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a text stands after a token; its characters are bytes.

    Attributes:
        tail: outside calls, the end of the text from where a call may have begun.
        is_first: no text but calls has come before the tail.
        call: in a call, its text up to the token from which on the call is masked. A text that
            the grammar is of as a whole is like one call.
        first: that token's place in the history.
        is_refused: a token of the call is not what its mask allows: a draft's, from the prompt.
    """

    tail: str = ""
    is_first: bool = True
    call: str | None = None
    first: int = 0
    is_refused: bool = False


class GrammarProcessor:
    """Forbids what the grammar does not allow, in the whole text or in calls; other text is free.

    Scores after a history that the grammar refuses (a draft copied from the prompt may be one) are
    left unchanged: its probability is 0, so nothing reads them.

    Args:
        words: the bytes that every token adds to the text; a token of each byte follows.
    """

    def __init__(
        self, matcher: Any, prompt_len: int, constraint: Constraint, words: Sequence[bytes]
    ) -> None:
        self._matcher, self._prompt_len, self._words = matcher, prompt_len, words
        self._consumed: list[int] = []  # by the matcher
        self._form, self._repeats = (constraint.calls or TAGGED).in_bytes(), constraint.repeats
        self._names = constraint.names
        self._history: list[int] = []
        # After none, one, … of the history's tokens.
        self._places = [_Place(call="" if constraint.calls is None else None)]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token_ids = input_ids[0, self._prompt_len :].tolist()
        num_common = common_prefix_length(self._history, token_ids)
        del self._history[num_common:], self._places[num_common + 1 :]
        for token in token_ids[num_common:]:
            self._history.append(token)
            self._places.append(self._after(self._places[-1], token))
        place = self._places[-1]
        if place.call is None or place.is_refused or not self._load(place):
            return scores
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise HierspecError(f"the grammar failed: {self._matcher.get_error().splitlines()[0]}")
        allowed = np.unpackbits(bits, bitorder="little").astype(bool)
        mask = torch.from_numpy(allowed[: scores.shape[1]]).to(scores.device)
        return scores.masked_fill(~mask, -math.inf)

    def _after(self, place: _Place, token: int) -> _Place:
        """Return the place after the history's last token, which is ``token``."""
        word = self._words[token]
        if place.call is None:
            return self._free(place.tail + word.decode("latin-1"), place.is_first)
        if place.is_refused or not self._load(place):
            return replace(place, is_refused=True)
        end = self._form.end
        if not (self._repeats and end and self._matcher.is_accepting()):
            return place
        # The call is complete, and the token may go on beyond its end.
        recent = b"".join(self._words[i] for i in self._history[-len(end) :]).decode("latin-1")
        found = recent.find(end, max(len(recent) - len(word) - len(end) + 1, 0))
        return self._free(recent[found + len(end) :], place.is_first)

    def _free(self, tail: str, is_first: bool) -> _Place:
        """Return the place after text outside calls, in which a call may begin."""
        while True:
            start, inside = find_opening(tail, self._form, self._names, is_first)
            is_first = is_first and not tail[:start].strip()
            if inside is None:
                return _Place(tail[start:], is_first)
            call = tail[inside:].lstrip(BLANKS)
            place = _Place(is_first=is_first, call=call, first=len(self._history))
            if self._load(place):
                return place
            tail, is_first = call, False  # it has the mark of a call and is none

    def _load(self, place: _Place) -> bool:
        """Move the matcher to a place in a call; return false if the text is not a call's."""
        assert place.call is not None
        call = [len(self._words) + ord(character) for character in place.call]
        call += self._history[place.first :]
        num_common = common_prefix_length(self._consumed, call)
        if num_common < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - num_common)
            del self._consumed[num_common:]
        missing = call[num_common:]
        count = self._matcher.try_consume_tokens(missing) if missing else 0
        self._consumed += missing[:count]
        return count == len(missing)

    def __repr__(self) -> str:
        return "the grammar of response_format or tools"


def schema_constraint(schema: Any) -> Constraint:
    """Return the constraint to JSON that follows a schema.

    Raises:
        ApiError: the schema cannot be used.
    """
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the schema cannot be used: {error}", param="response_format") from None
    return Constraint(grammar)


def calls_constraint(
    form: CallFormat,
    functions: Sequence[tuple[str, Any]],
    *,
    forced: bool = False,
    several: bool = True,
    answer: Any = None,
) -> Constraint:
    """Return the constraint on calls of functions (name, schema of the arguments).

    Args:
        forced: one call and nothing else; otherwise any text, with calls anywhere in it.
        several: more than one call may be made; otherwise a call ends the text.
        answer: a schema; the text is calls, or JSON that follows it.
    """
    from llguidance import LLMatcher

    several = several and not forced
    blank = _SHORT_BLANK if forced else BLANK
    rules = [f"BLANK: /{blank}/", *_call_rules(form, functions, " " if forced else blank)]
    calls: list[str] = []
    if not form.before_name:
        more = '(BLANK? "," BLANK? object)*' if several else ""
        calls.append(f'"[" BLANK? object {more} BLANK? "]"')
        calls.append('object (";" BLANK? object)*' if form.bare and several else "object")
    if form.named:
        mark = "" if form.before_name else _quoted(form.begin)
        calls.append(f"named (BLANK? {mark} named)*" if several else "named")
    end = f"BLANK? {_quoted(form.end)}" if form.end else ""
    rules.append(f"calls: ({' | '.join(calls)}) {end}")
    names = tuple(name for name, _ in functions)
    if forced or answer is not None:
        begin = _quoted("" if form.bare else form.begin)
        start = f"{begin} BLANK? calls"
        if answer is not None:
            rules.append(f"answer: %json {json.dumps(answer | {'x-guidance': _COMPACT})}")
            start += f" (BLANK? {start})*" if several and form.end else ""
            start = f"answer | {start}"
        grammar = LLMatcher.grammar_from_lark("\n".join([f"start: {start}", *rules]))
        return Constraint(grammar)
    if several and form.end:
        rules += ["start: calls REST", "REST: /(?s:.*)/"]
    else:
        rules.append("start: calls")
    grammar = LLMatcher.grammar_from_lark("\n".join(rules))
    return Constraint(grammar, form, names, repeats=several)


def _call_rules(form: CallFormat, functions: Sequence[tuple[str, Any]], blank: str) -> list[str]:
    """Return the rules of one call, as JSON (``object``) and as a name and arguments.

    Args:
        blank: what may stand between the parts of arguments, as a regular expression.
    """
    options = {"whitespace_flexible": True, "whitespace_pattern": blank}
    rules: list[str] = []
    objects: list[str] = []
    named: list[str] = []
    number = "(ID BLANK?)? " if form.id_key else ""
    for i, (name, schema) in enumerate(functions):
        whole = {"type": "object", **(schema or {}), "x-guidance": options}
        rules.append(f"arguments_{i}: %json {json.dumps(whole)}")
        first = (
            f'{_quoted(json.dumps(form.name_key))} BLANK? ":" BLANK? {_quoted(json.dumps(name))}'
        )
        second = f'key BLANK? ":" BLANK? arguments_{i}'
        objects.append(f'"{{" BLANK? {number}{first} BLANK? "," BLANK? {second} BLANK? "}}"')
        before = _quoted(form.before_name + name + form.after_name)
        named.append(f"{before} arguments_{i} {_quoted(form.after_arguments)}")
    if form.named:
        rules.append(f"named: {' | '.join(named)}")
    if form.id_key:
        rules.append(f'ID: /"{form.id_key}": ?"[0-9]{{1,3}}",/')
    if not form.before_name:
        rules.append(f"object: {' | '.join(objects)}")
        rules.append(f"key: {' | '.join(_quoted(json.dumps(key)) for key in ARGUMENT_KEYS)}")
    return rules


def _quoted(text: str) -> str:
    """Write a text as grammars have it; nothing for an empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""
