"""Several early exits as one language model: each row ends at the first exit that is sure.

Wei et al. (2025, AdaDecode) draft a token at the first of several exits whose probability for it
reaches a floor; a token that no exit is sure of is the full model's. Here a row's scores are those
of the first exit whose *largest* probability does so, else of the last. Which exit that is depends
on the row's context alone, not on the token drawn from it. So the row is a law fixed before the
draw, every rule that is exact for a model is exact for this one, and the levels above read the very
law the token came from [MATH §2].

A draft that leaves unsure tokens to the target (``declines``) ends before such a row's token is
drawn. That, too, follows from the context alone, so output stays exact; how long a draft is depends
on its tokens, as with a window. Rows that no exit is sure of still have a law, the last exit's.

All exits are views of the target's trunk: a deeper exit goes on from the hidden states of the
shallower one, for all tokens at once that have not been there, and whatever it computes the target
need not compute again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from hierspec.core.context import Context
from hierspec.errors import HierspecError

from .base import LanguageModel, Query, Slot, takes_trees


class AdaptiveExit:
    """The language model of a list of exits and a floor.

    Args:
        exits: at least one, shallowest first, with one owner of slots.
        confidence: the floor of an exit's largest probability, above 0 and at most 1.
        declines: a draft ends where no exit is sure.

    Attributes:
        partial: whether some exit's head knows a part of the vocabulary only.
    """

    def __init__(
        self,
        exits: Sequence[LanguageModel],
        confidence: float,
        name: str,
        declines: bool = False,
    ) -> None:
        if not exits or not 0.0 < confidence <= 1.0:
            raise HierspecError(
                "an adaptive exit needs exits, and a confidence above 0 and at most 1; got "
                f"{len(exits)} exits and {confidence!r}"
            )
        self.exits = tuple(exits)
        self.confidence = confidence
        self.name, self.declines = name, declines
        self.partial = any(getattr(one, "partial", False) for one in exits)
        last = self.exits[-1]
        self.cache_owner, self.graphs = last.cache_owner, None
        self.vocab_size, self.max_length, self.device = (
            last.vocab_size,
            last.max_length,
            last.device,
        )

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
        return self.attempt(queries)[0]

    def attempt(self, queries: Sequence[Query]) -> tuple[torch.Tensor, list[bool]]:
        """The same, and of every row whether the exit it comes from is sure.

        Confidence is read at every query's own temperature; greedy ones, and those that say none,
        have the untempered one read.
        """
        counts = [query.num_rows for query in queries]
        scales = [query.temperature or 1.0 for query in queries]
        out = self.exits[0].score(queries)
        at = [sum(counts[:i]) for i in range(len(counts))]  # first row of every query
        open_rows = {i: list(range(n)) for i, n in enumerate(counts)}
        for deeper in self.exits[1:]:
            open_rows = self._unsure(out, open_rows, at, scales)
            if not open_rows:
                return out, [True] * len(out)
            # From the first row in doubt to the last one: what lies beyond need not go deeper.
            asked = [_between(queries[i], rows[0], rows[-1]) for i, rows in open_rows.items()]
            found = deeper.score(asked).split([query.num_rows for query in asked])
            for (i, rows), part in zip(open_rows.items(), found, strict=True):
                out[[at[i] + row for row in rows]] = part[[row - rows[0] for row in rows]]
        sure = [True] * len(out)
        for i, rows in self._unsure(out, open_rows, at, scales).items():
            for row in rows:
                sure[at[i] + row] = False
        return out, sure

    def unsure_after(self, tokens: Sequence[int]) -> bool:
        """Whether no exit is sure of what follows these tokens; untempered, on a fresh slot."""
        slot = self.open()
        try:
            return not self.attempt([Query(slot, Context(tokens), len(tokens))])[1][0]
        finally:
            self.close(slot)

    def _unsure(
        self,
        scores: torch.Tensor,
        rows: dict[int, list[int]],
        at: Sequence[int],
        scales: Sequence[float],
    ) -> dict[int, list[int]]:
        """Of these rows, by query, those whose largest probability is below the floor."""
        places = [at[i] + row for i, own in rows.items() for row in own]
        scale = [scales[i] for i, own in rows.items() for _ in own]
        picked = scores[places]
        tempered = picked / torch.tensor(scale, dtype=picked.dtype, device=picked.device)[:, None]
        sure = iter((tempered.softmax(-1).amax(-1) >= self.confidence).tolist())
        left = {i: [row for row in own if not next(sure)] for i, own in rows.items()}
        return {i: own for i, own in left.items() if own}


def _between(query: Query, first: int, last: int) -> Query:
    """The query's rows from ``first`` on, cut after the last token that row ``last`` sees.

    Before a tree nothing is cut: its nodes are stored behind the whole context.
    """
    context, start, length = query.context, query.start + first, query.start + last
    if query.tree is not None:
        return Query(query.slot, context, start, tree=query.tree.first_nodes(length - len(context)))
    base = len(context.committed)
    if length >= base:
        context = replace(context, pending=context.pending[: length - base])
    else:
        context = replace(context, committed=context.committed[:length], pending=())
    return Query(query.slot, context, start)
