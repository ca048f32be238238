"""Grammars as logits processors: every row of a draft is masked by what its own history allows.

The library (llguidance) keeps the state of one parser, but drafts ask for the histories of tokens
that may be rejected later. So a processor moves its parser to the history it is called with: it
rolls back tokens that differ and consumes those that are missing. That makes it a function of its
arguments, as drafts require.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hierspec.errors import HierspecError

from .errors import ApiError

_COMPACT: Any = {"whitespace_flexible": False}  # else a small model may write blanks for ever


class Grammars:
    """Makes processors for one model's tokens.

    Args:
        vocab_size: ids that the target scores.
        eos_token_ids: tokens that may end a text once the grammar accepts it.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise HierspecError(
                "response_format and tools need a grammar library: pip install 'hierspec[server]'"
            ) from None
        ends = sorted(eos_token_ids)
        if not ends:
            raise ApiError("this model has no end-of-text token, which a grammar needs")
        size = max(vocab_size, len(tokenizer))
        self._tokenizer = from_tokenizer(tokenizer, n_vocab=size, eos_token=ends)

    def processor(self, grammar: str, prompt_len: int) -> GrammarProcessor:
        """Make a processor for one sequence, whose output begins after ``prompt_len`` tokens.

        Raises:
            ApiError: the grammar is invalid, or too large.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ApiError(f"the schema cannot be used: {matcher.get_error().splitlines()[0]}")
        return GrammarProcessor(matcher, prompt_len)


class GrammarProcessor:
    """Forbids every token that the grammar does not allow after a history.

    Scores after a history that the grammar refuses (a draft copied from the prompt may be one) are
    left unchanged: its probability is 0, so nothing reads them.
    """

    def __init__(self, matcher: Any, prompt_len: int) -> None:
        self._matcher, self._prompt_len = matcher, prompt_len
        self._consumed: list[int] = []  # by the matcher

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._advance_to(input_ids[0, self._prompt_len :].tolist()):
            return scores
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise HierspecError(f"the grammar failed: {self._matcher.get_error().splitlines()[0]}")
        allowed = np.unpackbits(bits, bitorder="little").astype(bool)
        mask = torch.from_numpy(allowed[: scores.shape[1]]).to(scores.device)
        return scores.masked_fill(~mask, -math.inf)

    def _advance_to(self, token_ids: list[int]) -> bool:
        """Move the matcher to the end of ``token_ids``; return false if it refuses one of them."""
        consumed, num_common = self._consumed, 0
        for a, b in zip(consumed, token_ids, strict=False):
            if a != b:
                break
            num_common += 1
        if num_common < len(consumed):
            self._matcher.rollback(len(consumed) - num_common)
            del consumed[num_common:]
        missing = token_ids[num_common:]
        count = self._matcher.try_consume_tokens(missing) if missing else 0
        consumed += missing[:count]
        return count == len(missing)

    def __repr__(self) -> str:
        return "the grammar of response_format or tools"


def schema_grammar(schema: Any) -> str:
    """Return the grammar of JSON that follows a schema.

    Raises:
        ApiError: the schema cannot be used.
    """
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the schema cannot be used: {error}", param="response_format") from None


def object_grammar() -> str:
    """Return the grammar of any JSON object."""
    return schema_grammar({"type": "object"})


def calls_grammar(functions: Sequence[tuple[str, Any]], begin: str, end: str, forced: bool) -> str:
    """Return the grammar of calls of functions (name, schema of the arguments).

    Args:
        begin: text before a call; ``end``: after it.
        forced: one call and nothing else; otherwise any text, with calls anywhere in it.
    """
    from llguidance import LLMatcher, StructTag

    tags = [
        StructTag(
            trigger=begin,
            begin=f'{begin}\n{{"name": {json.dumps(name)}, "arguments": ',
            grammar=json.dumps((schema or {"type": "object"}) | {"x-guidance": _COMPACT}),
            end=f"}}\n{end}",
        )
        for name, schema in functions
    ]
    if not forced:
        return LLMatcher.grammar_from_lark(StructTag.to_grammar(tags, assume_special=False))
    rules = [
        f"call_{i}: {json.dumps(tag.begin)} %json {tag.grammar} {json.dumps(tag.end)}"
        for i, tag in enumerate(tags)
    ]
    start = " | ".join(f"call_{i}" for i in range(len(tags)))
    return LLMatcher.grammar_from_lark("\n".join([f"start: {start}", *rules]))
