"""Prompt lookup: the text so far is the draft model. [Saxena 2023; vLLM's ``ngram`` method]

Takes the last n tokens, n from ``prompt_lookup_max`` down to ``prompt_lookup_min``, looks for
their most recent earlier occurrence and proposes what followed it. Where that runs into the end
of the text it goes on copying from the proposal itself, as LZ77 does, so that a loop can be
continued without end. Nothing is scored: the distribution of every proposed token is one-hot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hierspec.core.context import Context
from hierspec.errors import HierspecError

from .base import LookUp

_MAX_ORDER = 32


@dataclass(slots=True)
class LookupIndex:
    """Where every n-gram of one sequence's committed text ends last; grows with the text.

    ``ends[n]`` maps an n-gram to the largest position e with ``committed[e-n:e]`` equal to it,
    among e ≤ ``indexed``.
    """

    ends: dict[int, dict[tuple[int, ...], int]] = field(default_factory=dict)
    indexed: int = 0


@dataclass(frozen=True, slots=True)
class PromptLookup(LookUp):
    """A drafter without a model."""

    prompt_lookup_min: int
    prompt_lookup_max: int
    name: str = "prompt_lookup"

    def __post_init__(self) -> None:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if not 1 <= low <= high <= _MAX_ORDER:
            raise HierspecError(
                "prompt lookup needs 1 ≤ prompt_lookup_min ≤ prompt_lookup_max "
                f"≤ {_MAX_ORDER}, got {low} and {high}"
            )

    def open(self) -> LookupIndex:
        return LookupIndex()

    def close(self, slot: LookupIndex) -> None:
        slot.ends.clear()
        slot.indexed = 0

    def propose(
        self, context: Context, limit: int, slot: LookupIndex | None = None
    ) -> tuple[int, ...]:
        """Return up to ``limit`` tokens that may follow ``context``; ``()``: nothing matches."""
        if limit <= 0:
            return ()
        if slot is None or slot.indexed > len(context.committed):
            slot = LookupIndex()
        self._extend(slot, context)
        # All that is not indexed, and enough before it for the longest n-gram that ends there.
        origin = max(slot.indexed + 1 - self.prompt_lookup_max, 0)
        recent = context.tokens(origin)
        for n in range(min(self.prompt_lookup_max, len(context)), self.prompt_lookup_min - 1, -1):
            gram = recent[len(recent) - n :]
            for end in range(len(recent) - 1, max(slot.indexed - origin, n - 1), -1):
                if recent[end - n : end] == gram:
                    return _copy(context, origin + end, limit)
            latest = slot.ends[n].get(tuple(gram))
            if latest is not None:
                return _copy(context, latest, limit)
        return ()

    def _extend(self, slot: LookupIndex, context: Context) -> None:
        """Add committed n-grams, but not those at the very end, which would match themselves."""
        committed = context.committed
        upto = len(committed) - 1
        for n in range(self.prompt_lookup_min, self.prompt_lookup_max + 1):
            ends = slot.ends.setdefault(n, {})
            for end in range(max(slot.indexed + 1, n), upto + 1):
                ends[tuple(committed[end - n : end])] = end
        slot.indexed = max(slot.indexed, upto)


def _copy(context: Context, position: int, limit: int) -> tuple[int, ...]:
    base = len(context.committed)
    if position + limit <= base:
        return tuple(context.committed[position : position + limit])
    out = context.tokens(position)[:limit]
    for i in range(limit - len(out)):
        out.append(out[i])
    return tuple(out)
