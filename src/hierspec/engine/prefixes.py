"""Caches of texts that have ended, for new texts that begin alike.

A chat's next turn repeats the whole conversation, and many requests share a system prompt. What all
levels have cached of a common beginning is copied into the new sequence's slots, which takes
milliseconds where reading takes seconds. Kept texts are whole sequences, the least recently used
out first; live ones may be copied from as well. They are matched by their longest common beginning:
a scan, since a service keeps dozens of texts and a comparison of a thousand ids takes microseconds.

A text is matched only with texts of its own tenant, so that nobody can find out by the clock what
another has asked.

A batch that its caller has put together shares beginnings as well (:func:`share_beginnings`):
several samples of a prompt, or questions that follow the same examples, read them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import Concatenate, walk
from hierspec.lm.base import ForkingCacheOwner, LanguageModel, Query, Slot

from .caches import Slots
from .sequences import LiveSequence

MIN_TOKENS = 8  # shorter beginnings are read faster than looked for
# Tokens that are not read again, to be worth a call of its own; on an accelerator, where a call is
# bound by its launch, this many is a guess.
WORTH_A_CALL, WORTH_ON_ACCELERATOR = 32, 512


@dataclass(slots=True, eq=False)
class _Kept:
    tenant: str
    tokens: list[int]
    slots: Slots
    size: int


@dataclass(slots=True, eq=False)
class PrefixCache:
    """Kept texts, the least recently used first.

    Attributes:
        hits: sequences that found a beginning; ``queries``: those that looked for one.
        hit_tokens: prompt tokens found; ``query_tokens``: prompt tokens in all.
    """

    kept: list[_Kept] = field(default_factory=list[_Kept])
    hits: int = 0
    queries: int = 0
    hit_tokens: int = 0
    query_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of cache that kept texts hold."""
        return sum(each.size for each in self.kept)

    def begin(
        self, sequence: LiveSequence, tenant: str, live: Iterable[tuple[str, LiveSequence]]
    ) -> int:
        """Give a new sequence what is cached of its beginning → how many tokens of the target's.

        Args:
            live: other sequences, with their tenants.
        """
        prompt = sequence.tokens
        self.queries += 1
        self.query_tokens += len(prompt)
        best: Slots | None = None
        kept: _Kept | None = None
        longest = MIN_TOKENS - 1
        for each in self.kept:
            if each.tenant == tenant and (n := common(prompt, each.tokens)) > longest:
                longest, best, kept = n, each.slots, each
        owner = sequence.root.model.cache_owner
        for whose, other in live:
            if whose != tenant or other is sequence:
                continue
            slot = other.slots.get((id(owner), 0))
            n = common(prompt, slot[1].tokens) if slot is not None else 0
            if n > longest:
                longest, best, kept = n, other.slots, None
        if best is None:
            return 0
        if kept is not None:
            self.kept.remove(kept)
            self.kept.append(kept)
        _copy(best, sequence)
        found = (
            len(sequence.slots[id(owner), 0][1].tokens) if (id(owner), 0) in sequence.slots else 0
        )
        found = min(found, len(prompt) - 1)  # the last one is read for its scores
        self.hits += found > 0
        self.hit_tokens += found
        return found

    def keep(self, sequence: LiveSequence, tenant: str, room: int) -> None:
        """Keep an ended sequence's slots, if ``room`` tokens can hold them; else close it."""
        slots = {
            key: (owner, slot)
            for key, (owner, slot) in sequence.slots.items()
            if key[1] == 0 and isinstance(owner, ForkingCacheOwner) and isinstance(slot, Slot)
        }
        size = max((len(slot.tokens) for _, slot in slots.values()), default=0)
        if MIN_TOKENS <= size <= room:
            for key, (owner, slot) in slots.items():
                del sequence.slots[key]
                owner.compact(slot)  # short texts are many, and live ones have room to grow
            tokens = list(sequence.tokens)
            # A chat's last turn holds the turns before it.
            for other in [one for one in self.kept if one.tenant == tenant]:
                if common(tokens, other.tokens) == len(other.tokens):
                    self._drop(other)
            self.kept.append(_Kept(tenant, tokens, {**slots}, size))
            self.make_room(room)
        sequence.close()

    def make_room(self, most: int) -> None:
        """Give up texts, the least recently used first, until at most ``most`` tokens are held."""
        total = self.num_tokens
        while self.kept and total > most:
            total -= self.kept[0].size
            self._drop(self.kept[0])

    def clear(self) -> None:
        """Give everything up."""
        self.make_room(-1)

    def _drop(self, kept: _Kept) -> None:
        self.kept.remove(kept)
        for owner, slot in kept.slots.values():
            owner.close(slot)


def read(sequence: LiveSequence, end: int, first: int | None = None) -> torch.Tensor:
    """Let every model of a sequence's hierarchy read its text up to ``end``, at least 1.

    A drafter whose context is shorter than that takes no part in a text so long, and reads nothing.

    Returns the target's scores [end − first + 1, V] for the tokens after the first ``first``
    (default: ``end``, one row) to ``end`` of the text.
    """
    context, target = Context(sequence.tokens[:end]), sequence.root.model
    query = Query(sequence.slot(target), context, end if first is None else first)
    scores, seen = target.score([query]), {id(target.cache_owner)}
    for node in reversed(list(walk(sequence.root))):  # those above first: exits of theirs are done
        model = None if isinstance(node, Concatenate) else node.model
        if not isinstance(model, LanguageModel) or model.max_length < end:
            continue
        if id(model.cache_owner) not in seen:
            seen.add(id(model.cache_owner))
            model.score([Query(sequence.slot(model), context, end)])
    return scores


def share_beginnings(sequences: Iterable[LiveSequence]) -> None:
    """Read what new sequences of one hierarchy have in common once, and copy the caches.

    In the order of their tokens each sequence has most in common with its neighbour. What pays
    for a call of its own is read; the rest every sequence reads itself, in its first round.
    """
    order = sorted(sequences, key=lambda one: one.tokens)
    shared = [min(common(a.tokens, b.tokens), len(b.tokens) - 1) for a, b in pairwise(order)]
    held = 0  # of the sequence at hand; it is copied in any case
    on_cpu = bool(order) and order[0].root.model.device.type == "cpu"
    worth = WORTH_A_CALL if on_cpu else WORTH_ON_ACCELERATOR
    for k, (one, following) in enumerate(pairwise(order)):
        n = shared[k]
        if n > held and n >= MIN_TOKENS:
            alike = sum(1 for _ in takewhile(lambda length, n=n: length >= n, shared[k:]))
            if alike * (n - held) >= worth:
                read(one, n)
                held = n
        held = min(held, n)
        if held >= MIN_TOKENS:
            _copy(one.slots, following)
        else:
            held = 0


def _copy(slots: Slots, sequence: LiveSequence) -> None:
    """Give a new sequence what slots of another hold of its beginning."""
    for key, (owner, slot) in slots.items():
        if key[1] == 0 and isinstance(owner, ForkingCacheOwner) and isinstance(slot, Slot):
            beginning = owner.fork(slot, common(sequence.tokens, slot.tokens))
            sequence.slots[key] = (owner, beginning)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the leading tokens that two lists share, by comparing halves: no loop over tokens."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
