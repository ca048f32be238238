"""Caches of texts that have ended, for new texts with the same prefix.

A chat's next turn repeats the whole conversation, and many requests share a system prompt. What all
levels have cached of a common prefix is copied into the new sequence's slots, which takes
milliseconds where prefilling takes seconds. Cached texts are whole sequences, and the least
recently used is dropped first; live sequences are copied from as well. The longest common prefix is
found by a scan, since at most a few hundred texts are kept and comparing a thousand ids takes
microseconds.

A text is matched only with texts of its own tenant, so that response times do not reveal what
others have asked.

The sequences of one batch share prefixes as well (:func:`share_prefixes`): several samples of a
prompt, or questions that follow the same examples, prefill them once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import walk_levels
from hierspec.lm.base import ForkingCacheOwner, LanguageModel, Query, Slot

from .caches import Slots, close_slots, common_prefix_length
from .request import Request
from .sequences import LiveSequence

MIN_TOKENS = 8  # shorter prefixes are prefilled faster than searched and copied
_MAX_TEXTS = 256  # kept; more would be scanned for longer than they save
# A call that prefills a shared prefix must save sequences so many tokens. On an accelerator, where
# the launch of a call takes most of its time, the number is a guess.
MIN_SAVED_TOKENS, _MIN_SAVED_ON_ACCELERATOR = 32, 512


@dataclass(slots=True, eq=False)
class _CachedText:
    tenant: str
    tokens: list[int]
    slots: Slots
    num_cached: int


@dataclass(slots=True, eq=False)
class PrefixCache:
    """Cached texts, the least recently used first.

    Attributes:
        hit_tokens: prompt tokens copied; ``query_tokens``: prompt tokens in total.
    """

    cached_texts: list[_CachedText] = field(default_factory=list[_CachedText])
    hit_tokens: int = 0
    query_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(text.num_cached for text in self.cached_texts)

    def copy_prefix(self, request: Request, live: Iterable[Request]) -> int:
        """Copy the longest cached prefix to a new request → its number of tokens in the target.

        Args:
            live: requests to copy from as well.
        """
        prompt = request.tokens
        self.query_tokens += len(prompt)
        best: Slots | None = None
        best_text: _CachedText | None = None
        longest = MIN_TOKENS - 1
        for text in self.cached_texts:
            if text.tenant == request.tenant and (
                (length := common_prefix_length(prompt, text.tokens)) > longest
            ):
                longest, best, best_text = length, text.slots, text
        target_key = (id(request.root.model.cache_owner), 0)
        for source in live:
            if source.tenant != request.tenant or source is request:
                continue
            if target_key not in source.slots:
                continue
            length = common_prefix_length(prompt, source.slots[target_key][1].tokens)
            if length > longest:
                longest, best, best_text = length, source.slots, None
        if best is None:
            return 0
        if best_text is not None:
            self.cached_texts.remove(best_text)
            self.cached_texts.append(best_text)
        _copy_slots(best, request)
        copied = len(request.slots[target_key][1].tokens) if target_key in request.slots else 0
        copied = min(copied, len(prompt) - 1)  # the last token is read for its scores
        self.hit_tokens += copied
        return copied

    def keep(self, request: Request, room: int) -> None:
        """Keep an ended request's slots, if ``room`` tokens can hold them.

        At any time an exception may occur, each slot is the request's or a cached text's.
        """
        slots = {
            key: (owner, slot)
            for key, (owner, slot) in request.slots.items()
            if key[1] == 0 and isinstance(owner, ForkingCacheOwner) and isinstance(slot, Slot)
        }
        num_cached = max((len(slot.tokens) for _, slot in slots.values()), default=0)
        if MIN_TOKENS <= num_cached <= room:
            for owner, slot in slots.values():
                owner.compact(slot)  # live slots have room to grow, too much for many short texts
            tokens = list(request.tokens)
            # A chat's new turn includes its earlier turns.
            earlier = [
                text
                for text in self.cached_texts
                if text.tenant == request.tenant
                and common_prefix_length(tokens, text.tokens) == len(text.tokens)
            ]
            self.cached_texts.append(_CachedText(request.tenant, tokens, {**slots}, num_cached))
            for key in slots:
                del request.slots[key]
            for text in earlier:
                self._drop(text)
            self.limit_tokens(room)

    def limit_tokens(self, limit: int) -> None:
        """Drop texts, the least recently used first, until at most ``limit`` tokens are held, and
        no more texts than are worth a scan."""
        total = self.num_tokens
        while self.cached_texts and (total > limit or len(self.cached_texts) > _MAX_TEXTS):
            total -= self.cached_texts[0].num_cached
            self._drop(self.cached_texts[0])

    def _drop(self, text: _CachedText) -> None:
        self.cached_texts.remove(text)
        close_slots(text.slots)


def prefill(sequence: LiveSequence, end: int, first: int | None = None) -> torch.Tensor:
    """Let every model of a sequence's hierarchy prefill its text up to ``end``, at least 1.

    Drafters whose context is shorter than that do not draft for such a text, and prefill nothing.

    Returns the target's scores [end − first + 1, V] for the tokens after the first ``first``
    (default: ``end``, one row) to ``end`` of the text.
    """
    context, target = Context(sequence.tokens[:end]), sequence.root.model
    query = Query(sequence.slot(target), context, end if first is None else first)
    scores, prefilled_owners = target.score([query]), {id(target.cache_owner)}
    # Highest first: prefilling a model also fills the cache of its early exits.
    for level in reversed(list(walk_levels(sequence.root))):
        model = level.model
        if not isinstance(model, LanguageModel) or model.max_length < end:
            continue
        if id(model.cache_owner) not in prefilled_owners:
            prefilled_owners.add(id(model.cache_owner))
            model.score([Query(sequence.slot(model), context, end)])
    return scores


def share_prefixes(sequences: Iterable[LiveSequence]) -> None:
    """Prefill prefixes that new sequences of one hierarchy share once, and copy the caches.

    Sorted by tokens, each sequence shares its longest prefix with a neighbour. A prefix is
    prefilled beforehand if that saves enough; otherwise by every sequence in its first round.
    """
    ordered = sorted(sequences, key=lambda sequence: sequence.tokens)
    shared = [
        min(common_prefix_length(a.tokens, b.tokens), len(b.tokens) - 1)
        for a, b in pairwise(ordered)
    ]
    num_cached = 0  # tokens of the current sequence's shared prefix that its slots hold
    on_cpu = bool(ordered) and ordered[0].root.model.device.type == "cpu"
    min_saved = MIN_SAVED_TOKENS if on_cpu else _MIN_SAVED_ON_ACCELERATOR
    for i, (sequence, following) in enumerate(pairwise(ordered)):
        length = shared[i]
        if length > num_cached and length >= MIN_TOKENS:
            sharing = takewhile(lambda other, length=length: other >= length, shared[i:])
            if sum(1 for _ in sharing) * (length - num_cached) >= min_saved:
                prefill(sequence, length)
                num_cached = length
        num_cached = min(num_cached, length)
        if num_cached >= MIN_TOKENS:
            _copy_slots(sequence.slots, following)
        else:
            num_cached = 0


def _copy_slots(slots: Slots, sequence: LiveSequence) -> None:
    for key, (owner, slot) in slots.items():
        if key[1] == 0 and isinstance(owner, ForkingCacheOwner) and isinstance(slot, Slot):
            length = common_prefix_length(sequence.tokens, slot.tokens)
            sequence.announce_length(owner)
            sequence.add_slot(key, owner, owner.fork(slot, length))
