"""A pool of n-grams seen so far, which drafts what followed them. [after Fu et al. 2024, Lookahead]

Lookahead decoding (:mod:`hierspec_lab.methods.lookahead`) keeps n-grams that the target itself
produced, looks up those that begin with the text's last token, and verifies them. This drafter does
so at less expense:

- No row is computed for the pool's sake, where Lookahead lets the target predict several positions
  at once beside every verification (Jacobi iterations). Its n-grams come from the text so far, and
  from what the target would have chosen at the positions after a rejected token, whose rows the
  verification computed and threw away.
- One continuation is verified, not several.
- A continuation is put together token by token: after the longest n-gram known, the token that
  followed most often, of equals the latest.

Against prompt lookup, which copies the run after the *latest* match within one text: counts
decide, a continuation may cross from one passage into another, rejected drafts teach, and with
``shared`` all greedy texts of one engine do.

Nothing is scored: the distribution of every proposed token is one-hot.

A pool holds at most ``max_ngrams`` n-grams, of all lengths together, and 16 followers of each. A
full pool drops the n-gram that has been neither counted nor looked up for the longest time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions, likeliest
from hierspec.core.proposals import Proposal
from hierspec.drafters.base import CheckedDraft, LookUp
from hierspec.errors import HierspecError

MAX_NGRAMS = 1 << 18  # at about half a kilobyte each, some 130 MB; 65,000 tokens of text at 1 to 4
_MAX_ORDER = 32
_MAX_FOLLOWERS = 16

Followers = dict[int, int]  # token → how often it followed; the latest comes last


@dataclass(slots=True)
class Pool:
    """What followed which n-gram: ``grams`` maps n tokens to their followers, any n.

    Attributes:
        grams: the least recently used one comes first.
        max_ngrams: how many it keeps.
    """

    max_ngrams: int = MAX_NGRAMS
    grams: OrderedDict[tuple[int, ...], Followers] = field(default_factory=OrderedDict)

    def add(self, key: tuple[int, ...], token: int) -> None:
        """Count ``token`` once more after ``key``."""
        followers = self.grams.setdefault(key, {})
        self.grams.move_to_end(key)
        followers[token] = followers.pop(token, 0) + 1
        if len(followers) > _MAX_FOLLOWERS:
            del followers[min(followers, key=followers.__getitem__)]
        if len(self.grams) > self.max_ngrams:
            self.grams.popitem(last=False)

    def best_follower(self, key: tuple[int, ...]) -> int | None:
        """Return what followed ``key`` most often, of equals the latest; ``None`` for nothing."""
        followers = self.grams.get(key)
        if followers is None:
            return None
        self.grams.move_to_end(key)
        return max(reversed(followers), key=followers.__getitem__)


@dataclass(slots=True)
class PoolSlot:
    """A sequence's pool (or the shared one), and how many tokens of its text are in it."""

    pool: Pool
    indexed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class NgramPool(LookUp):
    """A drafter without a model.

    Attributes:
        ngram_min: length of the shortest n-gram that is looked up.
        ngram_max: length of the longest; longer ones are tried first.
        shared: one pool for all greedy sequences, earlier ones included. What they draft then
            depends on the others, and what they write does not. Sequences that sample keep pools
            of their own (:meth:`open_private`): a seed used again would find drafts that the same
            rng has written, and sampling from such drafts is not exact.
        max_ngrams: how many a pool keeps.
    """

    ngram_min: int
    ngram_max: int
    shared: bool = False
    name: str = "ngram_pool"
    max_ngrams: int = MAX_NGRAMS
    shared_pool: Pool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared_pool", Pool(self.max_ngrams))
        if not 1 <= self.ngram_min <= self.ngram_max <= _MAX_ORDER:
            raise HierspecError(
                f"an n-gram pool needs 1 ≤ ngram_min ≤ ngram_max ≤ {_MAX_ORDER}, "
                f"got {self.ngram_min} and {self.ngram_max}"
            )
        if self.max_ngrams < 1:
            raise HierspecError(f"an n-gram pool keeps at least one n-gram, got {self.max_ngrams}")

    def open(self) -> PoolSlot:
        """Return a slot for one sequence, with the shared pool where there is one."""
        return PoolSlot(self.shared_pool) if self.shared else self.open_private()

    def open_private(self) -> PoolSlot:
        return PoolSlot(Pool(self.max_ngrams))

    def close(self, slot: PoolSlot) -> None:
        """Free a sequence's own n-grams; shared ones are kept."""
        if slot.pool is not self.shared_pool:
            slot.pool.grams.clear()
        slot.indexed = 0

    def propose(self, context: Context, limit: int, slot: PoolSlot) -> tuple[int, ...]:
        """Return up to ``limit`` tokens that may follow ``context``; ``()`` where nothing is known.

        Args:
            context: committed tokens join the pool, once; pending ones are only looked up.
            limit: the most tokens returned.
        """
        self._extend(slot, context.committed)
        recent = context.tokens(max(0, len(context) - self.ngram_max))
        out: list[int] = []
        while len(out) < limit:
            token = self._next_token(slot.pool, recent)
            if token is None:
                break
            out.append(token)
            recent = [*recent, token][-self.ngram_max :]
        return tuple(out)

    def learn_from(
        self,
        text: Sequence[int],
        draft: Proposal,
        p: Distributions,
        num_accepted: int,
        checked: Sequence[CheckedDraft],
        slot: PoolSlot,
    ) -> None:
        """Add what the target would have chosen past the first rejected token."""
        rejected = p.rows(num_accepted + 1, len(draft) + 1)
        if len(rejected):
            self.learn(Context(text, draft.tokens), likeliest(rejected), slot)

    def learn(self, context: Context, choices: Sequence[int], slot: PoolSlot) -> None:
        """Add the target's own choices after the longest prefixes of ``context``.

        Args:
            choices: the last is the choice after all of ``context``, the one before it after all
                but one token, and so on.
        """
        ends = range(len(context) - len(choices) + 1, len(context) + 1)
        first = max(0, ends.start - self.ngram_max)
        tokens = context.tokens(first)
        for end, choice in zip(ends, choices, strict=True):
            self._add(slot.pool, tokens[: end - first], choice)

    def _next_token(self, pool: Pool, recent: list[int]) -> int | None:
        for n in range(min(self.ngram_max, len(recent)), self.ngram_min - 1, -1):
            token = pool.best_follower(tuple(recent[-n:]))
            if token is not None:
                return token
        return None

    def _extend(self, slot: PoolSlot, committed: Sequence[int]) -> None:
        for end in range(max(slot.indexed, 1), len(committed)):
            recent = committed[max(0, end - self.ngram_max) : end]
            self._add(slot.pool, recent, committed[end])
        slot.indexed = len(committed)

    def _add(self, pool: Pool, recent: Sequence[int], token: int) -> None:
        for n in range(self.ngram_min, min(self.ngram_max, len(recent)) + 1):
            pool.add(tuple(recent[-n:]), token)
