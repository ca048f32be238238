"""A leaf that looks, between rounds, for the parts of the target it can best draft without. [SWIFT]

When a text has grown since its last draft, one more candidate is scored on its last tokens
(:meth:`~.varying.VaryingSkip.measure_matches`), and the best set so far drafts
until the text grows again. What is left out in a round thus depends on what was committed before
it, and on nothing in the round: given the past, a round is that of a fixed hierarchy, and output
stays exact under every rule.

Texts may share a search, as SWIFT's stream of inputs does, but greedy ones only: what is learnt
from a sampled text depends on the rng that wrote it, which a later text may use again. Where
several of them are in one batch, a candidate is scored on all their tokens at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from hierspec.core.nodes import Draft
from hierspec.drafters.base import DraftCall, Drafts
from hierspec.drafters.model import ModelDrafter
from hierspec.lm.base import Slot
from hierspec.lm.trunk.trunk import Trunk

from .search import SearchSettings, SkipSearch
from .varying import RecentTokens, VaryingSkip


class SkipSearches:
    """The searches of a level: a text's own, or one for all texts that may learn from others.

    A text gets its search as it gets its slot in a model's cache: to the engine this is a cache
    owner (:class:`hierspec.lm.base.CacheOwner`), and a search is a slot.

    Attributes:
        shared: whether there is one for all.
        shared_search: that one; otherwise it stays as it began.
    """

    def __init__(self, settings: SearchSettings, depth: int, shared: bool = False) -> None:
        self.settings, self.depth, self.shared = settings, depth, shared
        self.shared_search = self._new_search()

    @property
    def cache_owner(self) -> SkipSearches:
        return self

    def open(self) -> SkipSearch:
        """Return a new search for one text, or the one shared by all."""
        return self.shared_search if self.shared else self._new_search()

    def open_private(self) -> SkipSearch:
        """Return a search that no other text adds to."""
        return self._new_search()

    def close(self, slot: SkipSearch) -> None:
        """Leave everything as it is: a text's own search ends with it."""

    def _new_search(self) -> SkipSearch:
        return SkipSearch(self.settings, self.depth)


class SearchedSkip(VaryingSkip):
    """A :class:`~.varying.VaryingSkip` whose choices are searched for."""

    rows_differ = "searches for layers to leave out on all texts"

    def __init__(self, trunk: Trunk, searches: SkipSearches, name: str) -> None:
        super().__init__(trunk, searches.shared_search.best, name)
        self.searches = searches

    def make_drafter(self, node: Draft) -> SearchingDrafter:
        return SearchingDrafter(node)


class SearchingDrafter(ModelDrafter):
    """A leaf whose model is a :class:`SearchedSkip`."""

    model: SearchedSkip

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        began = time.perf_counter()
        scored = self._choose([call for call in calls if self._is_new(call)])
        seconds = time.perf_counter() - began if scored else 0.0
        drafts = super().draft(calls)
        return Drafts(drafts.proposals, drafts.forwards + scored, drafts.seconds + seconds)

    def _choose(self, calls: Sequence[DraftCall]) -> int:
        """Choose what the coming round leaves out; return how many candidates were scored."""
        by_search: dict[int, tuple[SkipSearch, list[DraftCall]]] = {}
        for call in calls:
            search: SkipSearch = call.slot(self.model.searches, 0)
            by_search.setdefault(id(search), (search, []))[1].append(call)
        scored = 0
        for search, group in by_search.values():
            texts = [text for call in group if (text := self._recent_tokens(call, search))]
            if texts:
                if search.is_due:
                    candidate = search.next_candidate()
                    shares = self.model.measure_matches(texts, candidate)
                    search.record(candidate, sum(shares) / len(shares))
                    scored += 1
                # Last, and nothing after it fails: a call that is repeated finds it all undone, or
                # all done.
                search.count_round()
            for call in group:
                length = len(call.job.context.committed)
                self.model.choose(self._slot(call), search.best, length)
        return scored

    def _recent_tokens(self, call: DraftCall, search: SkipSearch) -> RecentTokens | None:
        """Return the last committed tokens after the prompt; ``None`` while they are too few."""
        committed, count = call.job.context.committed, search.settings.context_window
        first = len(committed) - count
        # The first token written depends on the prompt alone; SWIFT leaves it out, too.
        if first <= call.job.prompt_length:
            return None
        slot = self._slot(call)
        is_cached = self.model.count_cached(slot, committed) + 1 >= first
        return RecentTokens(slot, committed, first) if is_cached else None

    def _is_new(self, call: DraftCall) -> bool:
        return self.model.needs_choice(self._slot(call), len(call.job.context.committed))

    def _slot(self, call: DraftCall) -> Slot:
        return call.slot(self.model, 0)
