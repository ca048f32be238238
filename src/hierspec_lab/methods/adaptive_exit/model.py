"""Several early exits as one language model: each row ends at the first exit that is confident.

Wei et al. (2025, AdaDecode) draft a token at the first of several exits whose probability for it
reaches a threshold; the full model decides a token that no exit is confident of. Here a row's
scores are those of the first exit whose *largest* probability does so, else of the last. Which exit
that is depends on the row's context alone, not on the token drawn from it. So the distribution is
fixed before the draw, every rule that is exact for a model is exact for this one, and the levels
above read the very distribution that the token was drawn from [MATH §2].

A draft that leaves unsure tokens to the target (:mod:`.declining`) ends before
such a row's token is drawn. That, too, follows from the context alone, so output stays exact; the
length of a draft depends on its tokens, as with a window. Rows that no exit is sure of have the
last exit's distribution.

All exits are views of the target's trunk: a deeper exit continues from the hidden states of the
shallower one, in one pass for all tokens that it has not seen, and the target need not compute any
of these again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.base import LanguageModel, Query, Slot, takes_trees
from hierspec.lm.trees import Tree
from hierspec.utils.reads import pick, sent


class AdaptiveExit:
    """The language model made of several exits and a threshold.

    Args:
        exits: at least one, shallowest first, with the same owner of slots.
        confidence: the largest probability from which on an exit is sure, above 0 and at most 1.

    Attributes:
        partial: whether some exit's head scores a part of the vocabulary only.
    """

    def __init__(self, exits: Sequence[LanguageModel], confidence: float, name: str) -> None:
        if not exits or not 0.0 < confidence <= 1.0:
            raise HierspecError(
                "an adaptive exit needs exits, and a confidence above 0 and at most 1; got "
                f"{len(exits)} exits and {confidence!r}"
            )
        self.exits = tuple(exits)
        self.confidence = confidence
        self.name = name
        self.partial = any(getattr(exit_, "partial", False) for exit_ in exits)
        last = self.exits[-1]
        self.cache_owner, self.graphs = last.cache_owner, None
        self.vocab_size, self.max_length = last.vocab_size, last.max_length
        self.device = last.device

    @property
    def trees(self) -> bool:
        """Whether it scores a token tree in one call."""
        return all(map(takes_trees, self.exits))

    def open(self) -> Slot:
        return self.cache_owner.open()

    def close(self, slot: Slot) -> None:
        self.cache_owner.close(slot)

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        return self._score(queries)[0]

    def score_with_confidence(self, queries: Sequence[Query]) -> tuple[torch.Tensor, list[bool]]:
        """Return the scores, and for every row whether the exit it comes from is sure.

        Confidence is that at the query's own temperature; untempered where that is 0 or unknown.
        """
        out, unsure = self._score(queries)
        starts, temperatures = _starts_and_temperatures(queries)
        sure = [True] * len(out)
        for i, rows in self._unsure_rows(out, unsure, starts, temperatures).items():
            for row in rows:
                sure[starts[i] + row] = False
        return out, sure

    def _score(self, queries: Sequence[Query]) -> tuple[torch.Tensor, dict[int, list[int]]]:
        """Return the scores, and the rows by query that come from the last exit.

        Which exit runs next depends on what the one before it has computed, so each but the last is
        waited for.
        """
        starts, temperatures = _starts_and_temperatures(queries)
        out = self.exits[0].score(queries)
        unsure = {i: list(range(query.num_rows)) for i, query in enumerate(queries)}
        for deeper in self.exits[1:]:
            unsure = self._unsure_rows(out, unsure, starts, temperatures)
            if not unsure:
                break
            # From the first unsure row to the last one: others need not go deeper.
            restricted = [_restrict(queries[i], rows[0], rows[-1]) for i, rows in unsure.items()]
            split = deeper.score(restricted).split([query.num_rows for query in restricted])
            for (i, rows), part in zip(unsure.items(), split, strict=True):
                places = sent([starts[i] + row for row in rows], torch.long, out.device)
                out.index_copy_(0, places, pick(part, [row - rows[0] for row in rows]))
        return out, unsure

    def is_unsure_after(self, tokens: Sequence[int]) -> bool:
        """Return whether no exit is sure of the token after these; untempered, on a new slot."""
        slot = self.open()
        try:
            return not self.score_with_confidence([Query(slot, Context(tokens), len(tokens))])[1][0]
        finally:
            self.close(slot)

    def _unsure_rows(
        self,
        scores: torch.Tensor,
        candidates: dict[int, list[int]],
        starts: Sequence[int],
        temperatures: Sequence[float],
    ) -> dict[int, list[int]]:
        """Return the ``candidates``, rows by query, whose largest probability is too low."""
        pairs = [(i, row) for i, rows in candidates.items() for row in rows]
        if not pairs:
            return {}
        logits = pick(scores, [starts[i] + row for i, row in pairs])
        temperature = sent([temperatures[i] for i, _ in pairs], logits.dtype, logits.device)
        probs = (logits / temperature[:, None]).softmax(-1)
        unsure: dict[int, list[int]] = {}
        for (i, row), sure in zip(pairs, (probs.amax(-1) >= self.confidence).tolist(), strict=True):
            if not sure:
                unsure.setdefault(i, []).append(row)
        return unsure


def _starts_and_temperatures(queries: Sequence[Query]) -> tuple[list[int], list[float]]:
    """Return each query's first row among all, and its temperature or else 1."""
    starts = [0, *accumulate(query.num_rows for query in queries)]
    return starts[:-1], [query.temperature or 1.0 for query in queries]


def _restrict(query: Query, first: int, last: int) -> Query:
    """Cut a query to its rows ``first`` to ``last``, and to the tokens that those read.

    With a tree the context is not cut: nodes are stored behind all of it.
    """
    context, start, length = query.context, query.start + first, query.start + last
    if query.tree is not None:
        tokens, parents = query.tree.tokens, query.tree.parents
        count = max(length - len(context), 0)
        return Query(query.slot, context, start, tree=Tree(tokens[:count], parents[:count]))
    return Query(query.slot, context.first(length), start)
