"""Grammars as logits processors: every row of a draft is masked by what its own history allows.

The library (llguidance) keeps a parser's state; a draft asks for histories that never come to be.
So a processor goes back and forth between them: it drops what the new history contradicts, takes
what is missing, and masks. That makes it a function of its arguments, as drafts require.
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

_COMPACT: Any = {"whitespace_flexible": False}  # a small model may write blanks for ever


class Grammars:
    """Makes processors for one model's tokens.

    Args:
        vocab_size: ids that the target scores.
        eos_token_ids: what may end a text that the grammar accepts.
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

    def processor(self, grammar: str, num_prompt: int) -> GrammarProcessor:
        """Make a processor for one sequence, whose output begins after ``num_prompt`` tokens.

        Raises:
            ApiError: the grammar is invalid, or too large.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ApiError(f"the schema cannot be used: {matcher.get_error().splitlines()[0]}")
        return GrammarProcessor(matcher, num_prompt)


class GrammarProcessor:
    """Forbids every token that the grammar does not allow after a history.

    Histories that the grammar has refused already (a draft copied from the prompt may be one) are
    left alone: they have no probability, and nothing is read from them.
    """

    def __init__(self, matcher: Any, num_prompt: int) -> None:
        self._matcher, self._num_prompt = matcher, num_prompt
        self._taken: list[int] = []  # tokens that the matcher has consumed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        written = input_ids[0, self._num_prompt :].tolist()
        if not self._go_to(written):
            return scores
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise HierspecError(f"the grammar failed: {self._matcher.get_error().splitlines()[0]}")
        allowed = np.unpackbits(bits, bitorder="little").astype(bool)
        mask = torch.from_numpy(allowed[: scores.shape[1]]).to(scores.device)
        return scores.masked_fill(~mask, -math.inf)

    def _go_to(self, written: Sequence[int]) -> bool:
        """Move the matcher behind ``written``; return false if the grammar refuses a token."""
        taken, same = self._taken, 0
        while same < min(len(taken), len(written)) and taken[same] == written[same]:
            same += 1
        if same < len(taken):
            self._matcher.rollback(len(taken) - same)
            del taken[same:]
        more = list(written[same:])
        count = self._matcher.try_consume_tokens(more) if more else 0
        taken += more[:count]
        return count == len(more)

    def __repr__(self) -> str:
        return "the grammar of response_format or tools"


def json_schema(schema: Any) -> str:
    """Return the grammar of JSON with a schema.

    Raises:
        ApiError: the schema is no object.
    """
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the schema cannot be used: {error}", param="response_format") from None


def any_object() -> str:
    """Return the grammar of any JSON object."""
    return json_schema({"type": "object"})


def calls(functions: Sequence[tuple[str, Any]], begin: str, end: str, forced: bool) -> str:
    """Return the grammar of calls of functions (name, schema of the arguments).

    Args:
        begin: text before a call; ``end``: after it.
        forced: one call and nothing else; otherwise any text, and calls wherever one begins.
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
