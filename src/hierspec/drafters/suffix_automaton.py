"""A suffix automaton that counts: what followed any run of tokens in a text that grows.

Blumer et al. (1985): one state for all runs of tokens that end at the same places, at most two
states a token, built token by token. Here every state also knows how often its runs occurred, and
when last. A token adds one to all states that end with it, so only runs of up to ``max_order`` + 1
tokens are counted, and states of longer runs alone are stepped over: a token costs at most that
many additions, however much a text repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class SuffixMatch(NamedTuple):
    """Where the last tokens of a text are found in an automaton.

    Attributes:
        state: 0, the root, where not even the last token is known.
        length: how many tokens match, at most ``max_order``.
    """

    state: int = 0
    length: int = 0


@dataclass(slots=True)
class SuffixAutomaton:
    """The automaton of one text, or of several one after another (:meth:`new_text`)."""

    max_order: int
    num_tokens: int = 0
    _next: list[dict[int, int]] = field(default_factory=lambda: [{}])
    _link: list[int] = field(default_factory=lambda: [0])
    _length: list[int] = field(default_factory=lambda: [0])  # of a state's longest run
    _count: list[int] = field(default_factory=lambda: [0])
    _latest: list[int] = field(default_factory=lambda: [0])
    _jump: list[int] = field(default_factory=lambda: [0])  # see _first_counted
    _last: int = 0

    def new_text(self) -> None:
        """Begin another text: the next token appended follows nothing."""
        self._last = 0

    def append(self, token: int) -> None:
        self._last = self._extend(token)
        self.num_tokens += 1
        state = self._first_counted(self._last)
        while state:
            self._count[state] += 1
            self._latest[state] = self.num_tokens
            state = self._link[state]

    def match(self, tokens: Sequence[int]) -> SuffixMatch:
        """Match the longest end of ``tokens`` that occurs, of at most ``max_order``."""
        match = SuffixMatch()
        for token in tokens[max(0, len(tokens) - self.max_order) :]:
            match = self.step(match, token)
        return match

    def step(self, match: SuffixMatch, token: int) -> SuffixMatch:
        state, length = match
        while state and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token not in self._next[state]:
            return SuffixMatch()
        state, length = self._next[state][token], min(length + 1, self.max_order)
        while self._length[self._link[state]] >= length:
            state = self._link[state]
        return SuffixMatch(state, length)

    def shorten(self, match: SuffixMatch) -> SuffixMatch:
        """Shorten a match until something followed it; to the root where nothing did."""
        state, length = match
        while state and not self._next[state]:
            state = self._link[state]
            length = self._length[state]
        return SuffixMatch(state, length)

    def followers(self, match: SuffixMatch) -> dict[int, tuple[int, int]]:
        """Return what followed the matched tokens: token → how often, and when last (1: first)."""
        return {
            token: (self._count[state], self._latest[state])
            for token, state in self._next[match.state].items()
        }

    def _extend(self, token: int) -> int:
        """Append ``token`` and return the state of the whole text."""
        last = self._last
        if token in self._next[last]:  # only where a text before this one began like it
            return self._split(last, token)
        new = self._new_state(self._length[last] + 1)
        state = last
        while token not in self._next[state]:
            self._next[state][token] = new
            if not state:
                return new
            state = self._link[state]
        self._link[new] = self._split(state, token)
        return new

    def _split(self, state: int, token: int) -> int:
        """Return the state whose longest run is ``state``'s and ``token``, split off if need be."""
        old = self._next[state][token]
        length = self._length[state] + 1
        if self._length[old] == length:
            return old
        new = self._new_state(length)
        self._next[new] = dict(self._next[old])
        self._link[new], self._link[old] = self._link[old], new
        self._count[new], self._latest[new] = self._count[old], self._latest[old]
        while self._next[state].get(token) == old:
            self._next[state][token] = new
            if not state:
                break
            state = self._link[state]
        return new

    def _new_state(self, length: int) -> int:
        state = len(self._next)
        self._next.append({})
        self._link.append(0)
        self._length.append(length)
        self._count.append(0)
        self._latest.append(0)
        self._jump.append(state)
        return state

    def _first_counted(self, state: int) -> int:
        """Find the first of a state and its links with a run short enough to be counted.

        Jumps past states whose runs are all too long are kept in ``_jump``, and lengthened each
        time: such a state stays too long, and so does what is split off between two of them.
        """
        skipped: list[int] = []
        while self._length[self._link[state]] > self.max_order:
            skipped.append(state)
            jump = self._jump[state]
            state = self._link[state] if jump == state else jump
        for long_state in skipped:
            self._jump[long_state] = state
        return state
