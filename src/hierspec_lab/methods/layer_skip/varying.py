"""The target without parts that differ from sequence to sequence, and change between rounds.

The parts left out for a sequence are kept in its slot, and the drafter chooses them before a round
(:mod:`.drafter`). Sequences that leave out the same parts share forwards. All
draft on the target's cache, so cached keys and values stay valid after a new choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hierspec.core.context import Context
from hierspec.lm.backend import Span
from hierspec.lm.base import NextScores, Query, Slot
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import SlotSharingModel, Trunk

from .skipping import Skip, SkippingBackend

_MAX_MODELS = 64  # cached, one for each choice


class RecentTokens(NamedTuple):
    """Tokens that a choice is scored on: those of ``committed`` from ``first`` (at least 1) on.

    The target must have seen all tokens before ``first``; it need not have seen the last one.
    """

    slot: Slot
    committed: Sequence[int]
    first: int


@dataclass(slots=True)
class _Choice:
    """The parts left out of a sequence's drafts, attached to its slot.

    Attributes:
        length: of the committed text when they were chosen; -1 where that was another text.
    """

    skip: Skip
    length: int = -1

    def rewind(self, length: int) -> None:
        """Keep the choice, which does not depend on drafted tokens."""

    def forget_committed(self) -> None:
        """See :class:`hierspec.lm.base.AttachedState`."""
        self.length = -1

    def fork(self, length: int) -> _Choice:
        """See :class:`hierspec.lm.base.AttachedState`."""
        return _Choice(self.skip)


class VaryingSkip(SlotSharingModel):
    """The language model of a trunk's transformer without the parts chosen for each sequence.

    Args:
        trunk: the target's.
        initial: the parts left out before the first choice.

    Attributes:
        leaf: it only drafts, since drafters choose the parts.
    """

    leaf = True

    def __init__(self, trunk: Trunk, initial: Skip, name: str) -> None:
        backend = trunk.backend
        self.trunk, self.initial, self.name = trunk, initial, name
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.device = backend.device
        self._models: dict[Skip, SelfDraft] = {}
        self._model_without(initial)  # refuses a model that cannot leave these out

    def skip_of(self, slot: Slot) -> Skip:
        """Return the parts that a sequence leaves out."""
        choice = slot.attached.get(id(self))
        return choice.skip if isinstance(choice, _Choice) else self.initial

    def needs_choice(self, slot: Slot, length: int) -> bool:
        """Return whether no parts were chosen yet for a text of that length, as a round begins."""
        choice = slot.attached.get(id(self))
        return not isinstance(choice, _Choice) or choice.length != length

    def choose(self, slot: Slot, skip: Skip, length: int) -> None:
        """Leave these parts out of a sequence's drafts until its text is longer."""
        slot.attached[id(self)] = _Choice(skip, length)

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        groups = self._groups(queries)
        if len(groups) == 1:
            return self._model_without(groups[0][0]).score(queries)
        parts: list[torch.Tensor] = [torch.empty(0)] * len(queries)
        for skip, indices in groups:
            scores = self._model_without(skip).score([queries[i] for i in indices])
            split = scores.split([queries[i].num_rows for i in indices])
            for i, part in zip(indices, split, strict=True):
                parts[i] = part
        return torch.cat(parts)

    def score_stepwise(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, NextScores]:
        """See :meth:`hierspec.lm.base.StepwiseModel.score_stepwise`."""
        groups = self._groups(queries)
        if len(groups) == 1:
            return self._model_without(groups[0][0]).score_stepwise(queries, counts)
        first_rows: list[torch.Tensor] = [torch.empty(0)] * len(queries)
        group_steps: list[tuple[dict[int, int], NextScores]] = []
        for skip, indices in groups:
            scores, group_scores = self._model_without(skip).score_stepwise(
                [queries[i] for i in indices], [counts[i] for i in indices]
            )
            for i, row in zip(indices, scores, strict=True):
                first_rows[i] = row
            group_steps.append(({i: j for j, i in enumerate(indices)}, group_scores))

        def next_scores(indices: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
            rows: list[torch.Tensor] = [torch.empty(0)] * len(indices)
            for index_in_group, group_scores in group_steps:
                members = [k for k, i in enumerate(indices) if i in index_in_group]
                if members:
                    scores = group_scores(
                        [index_in_group[indices[k]] for k in members], [tokens[k] for k in members]
                    )
                    for k, row in zip(members, scores, strict=True):
                        rows[k] = row
            return torch.stack(rows)

        return torch.stack(first_rows), next_scores

    @torch.inference_mode()
    def measure_matches(self, texts: Sequence[RecentTokens], skip: Skip) -> list[float]:
        """Return for each text the share of its tokens that the target without ``skip`` chooses.

        That is SWIFT's matchness: each token given those written before it, all in one forward. The
        slots are left as they are.
        """
        backend, spans, ids = SkippingBackend(self.trunk.backend, skip), [], []
        for slot, committed, first in texts:
            tokens = list(committed[first - 1 : -1])
            # On a copy, because this forward's keys and values are not the target's.
            scratch = backend.new_cache(len(committed) - 1)
            backend.copy(slot.state.cache, scratch, first - 1)
            spans.append(Span(scratch, first - 1, len(tokens)))
            ids += tokens
        h = backend.layers(self.trunk.embed(ids, spans), 0, backend.num_layers, spans)
        choices = backend.head(h).argmax(-1).tolist()
        shares: list[float] = []
        for _, committed, first in texts:
            n = len(committed) - first
            matches = sum(a == b for a, b in zip(choices[:n], committed[first:], strict=True))
            shares.append(matches / n)
            choices = choices[n:]
        return shares

    def count_cached(self, slot: Slot, committed: Sequence[int]) -> int:
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

    def _model_without(self, skip: Skip) -> SelfDraft:
        if skip not in self._models:
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()
            self._models[skip] = SelfDraft(self.trunk, SkippingBackend(self.trunk.backend, skip))
        return self._models[skip]

    def __repr__(self) -> str:
        return f"VaryingSkip({self.name!r}, V={self.vocab_size})"
