"""Draft what followed the longest known end of the text. [SuffixDecoding, Oliaro et al. 2024]

After the longest end of the text that has occurred before (at most ``max_order`` tokens), every
token that followed it is as likely as it was frequent: that is the drafter's distribution, sampled
where the request samples, and its most frequent token (of equals the latest) where it is greedy. A
context that nothing followed is shortened until something did. Tokens of a draft are matched like
text and never added to it, so nothing is undone when they are rejected.

A draft stops where its support is thin: before a token, when the shares of the likeliest tokens so
far multiply to less than ``MIN_SUPPORT``, or when ``DRAFTED_PER_MATCHED`` tokens were drafted for
each one that matched at its beginning. Either is known before the token is drawn, so that a level
above can verify the draft [MATH §2].

SuffixDecoding scores several continuations and verifies a tree of them; here one is drafted. It
keeps a second tree of earlier outputs; that is ``store``, off unless asked for, one per hierarchy;
only greedy requests and those under ``match`` use it. Elsewhere a repeated seed would draft its own
earlier output: the draft then depends on the verifier's random numbers, and the rule is not
lossless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    concatenate,
    draw,
    race,
)
from hierspec.errors import HierspecError

from .base import DraftCall, LookUp, LookUpDraft
from .suffix_automaton import SuffixAutomaton, SuffixMatch

MAX_ORDER = 32
MIN_SUPPORT = 0.25
DRAFTED_PER_MATCHED = 2
_LARGEST_ORDER = 256
_LARGEST_STORE = 1 << 24


@dataclass(slots=True, eq=False)
class Store:
    """Earlier outputs, of which the latest are kept: ``size`` tokens at most.

    Nothing can be taken out of an automaton: one of half the size is kept until the next is full.

    Attributes:
        ended_texts: to be added when the store is read, since a text may be ended by another thread
            than the one that drafts.
    """

    max_order: int
    size: int
    ended_texts: deque[list[int]] = field(default_factory=deque[list[int]])
    young: SuffixAutomaton = field(init=False)
    old: SuffixAutomaton = field(init=False)

    def __post_init__(self) -> None:
        self.young = SuffixAutomaton(self.max_order)
        self.old = SuffixAutomaton(self.max_order)

    def automata(self) -> tuple[SuffixAutomaton, ...]:
        """Return the automata to be searched, after adding all texts that have ended."""
        while self.ended_texts:
            text = self.ended_texts.popleft()[-max(self.size // 2, 1) :]
            if self.young.num_tokens + len(text) > self.size // 2:
                self.old, self.young = self.young, SuffixAutomaton(self.max_order)
            self.young.new_text()
            for token in text:
                self.young.append(token)
        return self.young, self.old


@dataclass(slots=True, eq=False)
class SuffixSlot:
    """What is kept of one sequence.

    Attributes:
        automaton: of its text.
        earlier_outputs: the hierarchy's, where the sequence reads and adds to them.
        text: the sequence's own list of tokens, of which the first ``prompt_length`` are no output.
    """

    automaton: SuffixAutomaton
    earlier_outputs: Store | None = None
    text: Sequence[int] = ()
    prompt_length: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Suffix(LookUp):
    """A drafter without a model; ``store`` tokens of earlier outputs are kept."""

    max_order: int = MAX_ORDER
    store: int = 0
    name: str = "suffix"
    earlier_outputs: Store = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.max_order <= _LARGEST_ORDER:
            raise HierspecError(
                f"suffix: max_order must be 1 to {_LARGEST_ORDER}, got {self.max_order}"
            )
        if not 0 <= self.store <= _LARGEST_STORE:
            raise HierspecError(
                f"suffix: store must be 0 to {_LARGEST_STORE} tokens, got {self.store}"
            )
        object.__setattr__(self, "earlier_outputs", Store(self.max_order, self.store))

    def open(self) -> SuffixSlot:
        earlier_outputs = self.earlier_outputs if self.store else None
        return SuffixSlot(SuffixAutomaton(self.max_order), earlier_outputs)

    def open_private(self) -> SuffixSlot:
        return SuffixSlot(SuffixAutomaton(self.max_order))

    def close(self, slot: SuffixSlot) -> None:
        """Forget a sequence's text; add its output to the earlier outputs, where they are kept."""
        if slot.earlier_outputs is not None and len(slot.text) > slot.prompt_length:
            slot.earlier_outputs.ended_texts.append(list(slot.text[slot.prompt_length :]))
        slot.automaton, slot.text = SuffixAutomaton(self.max_order), ()

    def propose(self, context: Context, limit: int, slot: SuffixSlot) -> tuple[int, ...]:
        return self._draft(context, limit, slot)[0]

    def draft(self, call: DraftCall, slot: SuffixSlot) -> LookUpDraft:
        context = call.job.context
        slot.text, slot.prompt_length = context.committed, call.job.prompt_length
        return self._draft(context.with_source(), call.limit, slot, call)

    def _draft(
        self, context: Context, limit: int, slot: SuffixSlot, call: DraftCall | None = None
    ) -> LookUpDraft:
        """Draft up to ``limit`` tokens, drawn as ``call`` asks; without one, the likeliest."""
        _extend(slot, context.committed)
        automata = [slot.automaton]
        if slot.earlier_outputs is not None:
            automata += slot.earlier_outputs.automata()
        recent = context.tokens(max(0, len(context) - self.max_order))
        matches = [automaton.match(recent) for automaton in automata]
        tokens: list[int] = []
        rows: list[Distributions] = []
        support = 1.0
        while len(tokens) < limit:
            context_match = _longest_match(automata, matches)
            if context_match is None:
                break
            length, followers = context_match
            if not tokens:
                limit = min(limit, DRAFTED_PER_MATCHED * length)
            total = sum(count for count, _ in followers.values())
            best = max(followers, key=followers.__getitem__)
            support *= followers[best][0] / total
            if support < MIN_SUPPORT:
                break
            token, row = best, None
            if call is not None and not call.job.params.greedy and len(followers) > 1:
                shares = _shares(followers, total)
                if call.job.noise is not None:
                    (token,) = race(shares, call.job.noise, call.job.start + len(tokens))
                else:
                    (token,) = draw(shares, call.rng.take(1))
                    row = DenseDistributions(shares)
            tokens.append(token)
            rows.append(row or OneHotDistributions((token,)))
            matches = [
                automaton.step(match, token)
                for automaton, match in zip(automata, matches, strict=True)
            ]
        return tuple(tokens), concatenate(rows)


def _extend(slot: SuffixSlot, committed: Sequence[int]) -> None:
    """Add tokens that have been committed since; a shorter text starts a new automaton."""
    if slot.automaton.num_tokens > len(committed):
        slot.automaton = SuffixAutomaton(slot.automaton.max_order)
    for token in committed[slot.automaton.num_tokens :]:
        slot.automaton.append(token)


def _longest_match(
    automata: Sequence[SuffixAutomaton], matches: Sequence[SuffixMatch]
) -> tuple[int, dict[int, tuple[int, int]]] | None:
    """Return the length of the longest context with followers (of equals the first), and these."""
    pairs = zip(automata, matches, strict=True)
    continued = [(automaton, automaton.shorten(match)) for automaton, match in pairs]
    automaton, longest = max(continued, key=lambda pair: pair[1].length)
    return (longest.length, automaton.followers(longest)) if longest.length else None


def _shares(followers: dict[int, tuple[int, int]], total: int) -> torch.Tensor:
    """Return each token's share of the occurrences, [1, highest id + 1] float64."""
    probs = torch.zeros(1, max(followers) + 1, dtype=torch.float64, device="cpu")
    probs[0, list(followers)] = torch.tensor(
        [count / total for count, _ in followers.values()], dtype=torch.float64, device="cpu"
    )
    return probs
