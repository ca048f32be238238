"""The target without parts that differ from sequence to sequence, and change between rounds.

The parts left out for a sequence are kept in its slot, and the drafter chooses them before a round
(:mod:`hierspec.drafters.skip_search`). Sequences that leave out the same parts share forwards. All
draft on the target's cache, so a new choice makes no cached keys and values useless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hierspec.core.context import Context

from .backend import Span
from .base import Following, Query, Slot
from .layer_skip import Skip, SkippingBackend
from .trunk.self_draft import SelfDraft
from .trunk.trunk import SharesSlots, Trunk

_MAX_MODELS = 64  # cached, of one choice each


class TrialTokens(NamedTuple):
    """Tokens that a choice is tried on: those of ``committed`` from ``first`` (at least 1) on.

    The target must have seen all tokens before ``first``; it need not have seen the last one.
    """

    slot: Slot
    committed: Sequence[int]
    first: int


@dataclass(slots=True)
class _Choice:
    """The parts left out of a sequence's drafts: a guest of its slot.

    Attributes:
        length: of the committed text at the choice; -1 where it was made for another text.
    """

    skip: Skip
    length: int = -1

    def rewind(self, length: int) -> None:
        """See :class:`hierspec.lm.base.Guest`; a choice does not depend on drafted tokens."""

    def forget_committed(self) -> None:
        """See :class:`hierspec.lm.base.Guest`."""
        self.length = -1

    def fork(self, length: int) -> _Choice:
        """See :class:`hierspec.lm.base.Guest`."""
        return _Choice(self.skip)


class VaryingSkip(SharesSlots):
    """The language model of a trunk's transformer without the parts chosen for each sequence.

    Args:
        trunk: the target's.
        initial: the parts left out before the first choice.

    Attributes:
        leaf: it only drafts, for drafters choose.
    """

    leaf = True

    def __init__(self, trunk: Trunk, initial: Skip, name: str) -> None:
        backend = trunk.backend
        self.trunk, self.initial, self.name = trunk, initial, name
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.device = backend.device
        self._models: dict[Skip, SelfDraft] = {}
        self._without(initial)  # refuses a model that cannot leave these out

    def skip_of(self, slot: Slot) -> Skip:
        """Return the parts that a sequence leaves out."""
        found = slot.guests.get(id(self))
        return found.skip if isinstance(found, _Choice) else self.initial

    def needs_choice(self, slot: Slot, length: int) -> bool:
        """Return whether nothing was chosen yet for a text of that length: a round begins."""
        found = slot.guests.get(id(self))
        return not isinstance(found, _Choice) or found.length != length

    def choose(self, slot: Slot, skip: Skip, length: int) -> None:
        """Leave these parts out of a sequence's drafts until its text is longer."""
        slot.guests[id(self)] = _Choice(skip, length)

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        groups = self._groups(queries)
        if len(groups) == 1:
            return self._without(groups[0][0]).score(queries)
        parts: list[torch.Tensor] = [torch.empty(0)] * len(queries)
        for skip, at in groups:
            own = self._without(skip).score([queries[i] for i in at])
            for i, part in zip(at, own.split([queries[i].num_rows for i in at]), strict=True):
                parts[i] = part
        return torch.cat(parts)

    def follow(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, Following]:
        """See :meth:`hierspec.lm.base.FollowingModel.follow`."""
        groups = self._groups(queries)
        if len(groups) == 1:
            return self._without(groups[0][0]).follow(queries, counts)
        begun: list[torch.Tensor] = [torch.empty(0)] * len(queries)
        further: list[tuple[dict[int, int], Following]] = []
        for skip, at in groups:
            model = self._without(skip)
            own, after = model.follow([queries[i] for i in at], [counts[i] for i in at])
            for i, row in zip(at, own, strict=True):
                begun[i] = row
            further.append(({i: number for number, i in enumerate(at)}, after))

        def after_all(going: Sequence[int], last: Sequence[int]) -> torch.Tensor:
            rows: list[torch.Tensor] = [torch.empty(0)] * len(going)
            for numbers, after in further:
                mine = [place for place, i in enumerate(going) if i in numbers]
                if mine:
                    own = after([numbers[going[p]] for p in mine], [last[p] for p in mine])
                    for place, row in zip(mine, own, strict=True):
                        rows[place] = row
            return torch.stack(rows)

        return torch.stack(begun), after_all

    @torch.inference_mode()
    def match_shares(self, texts: Sequence[TrialTokens], skip: Skip) -> list[float]:
        """Return for each text the share of its tokens that the target without ``skip`` chooses.

        That is SWIFT's matchness: each token after those written before it, all in one forward. The
        slots are left as they are.
        """
        backend, spans, ids = SkippingBackend(self.trunk.backend, skip), [], []
        for slot, committed, first in texts:
            tokens = list(committed[first - 1 : -1])
            # On a copy: its keys and values are not the target's.
            scratch = backend.new_cache(len(committed) - 1)
            backend.copy(slot.state.cache, scratch, first - 1)
            spans.append(Span(scratch, first - 1, len(tokens)))
            ids += tokens
        h = backend.layers(self.trunk.embed(ids, spans), 0, backend.num_layers, spans)
        choices = backend.head(h).argmax(-1).tolist()
        out: list[float] = []
        for _, committed, first in texts:
            own, choices = choices[: len(committed) - first], choices[len(committed) - first :]
            kept = sum(a == b for a, b in zip(own, committed[first:], strict=True))
            out.append(kept / len(own))
        return out

    def num_cached(self, slot: Slot, committed: Sequence[int]) -> int:
        """Return how many leading tokens of a text have the target's keys and values in a slot."""
        if slot.state is None:
            return 0
        return min(slot.overlap(Context(committed), len(committed)), slot.state.lengths[-1])

    def _groups(self, queries: Sequence[Query]) -> list[tuple[Skip, list[int]]]:
        """Group the queries' indices by the parts left out, in the order of each first query."""
        groups: dict[Skip, list[int]] = {}
        for i, query in enumerate(queries):
            groups.setdefault(self.skip_of(query.slot), []).append(i)
        return list(groups.items())

    def _without(self, skip: Skip) -> SelfDraft:
        if skip not in self._models:
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()
            self._models[skip] = SelfDraft(self.trunk, SkippingBackend(self.trunk.backend, skip))
        return self._models[skip]

    def __repr__(self) -> str:
        return f"VaryingSkip({self.name!r}, V={self.vocab_size})"
