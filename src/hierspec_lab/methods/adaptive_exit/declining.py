"""A leaf whose model may decline to draft a token: the draft then ends before it. [AdaDecode]

It ends by what the context says, before the token is drawn. So each token that is handed up was
drawn from the distribution reported for it, whatever the draft's length [MATH §2].
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from hierspec.core.distributions import Distributions
from hierspec.core.nodes import Draft
from hierspec.drafters.model import GrowingDraft, ModelDrafter
from hierspec.sampling.scores import distributions
from hierspec.utils.reads import pick

from .model import AdaptiveExit


class DecliningExit(AdaptiveExit):
    """An adaptive exit that leaves tokens that no exit is sure of to the target."""

    declines = True

    def make_drafter(self, node: Draft) -> DecliningDrafter:
        return DecliningDrafter(node)


class DecliningDrafter(ModelDrafter):
    """A leaf whose model is a :class:`DecliningExit`."""

    model: DecliningExit

    def __init__(self, node: Draft[DecliningExit]) -> None:
        super().__init__(node)
        self._rows: list[Distributions] = []
        self._scores = torch.empty(0)

    def select_willing(self, drafts: Sequence[GrowingDraft], active: Sequence[int]) -> list[int]:
        """See :meth:`ModelDrafter.select_willing`. :meth:`rows` returns what is scored here."""
        if not active:
            return []
        jobs, queries = self.next_queries([drafts[i] for i in active])
        began = time.perf_counter()
        scores, sure = self.model.score_with_confidence(queries)
        self._count_forward(began)
        kept = [i for i, is_sure in enumerate(sure) if is_sure]
        self._scores = pick(scores, kept)
        self._rows = distributions([jobs[i] for i in kept], self._scores) if kept else []
        return [active[i] for i in kept]

    def rows(self, drafts: Sequence[GrowingDraft]) -> tuple[torch.Tensor, list[Distributions]]:
        """See :meth:`ModelDrafter.rows`, of the drafts that were selected as willing."""
        return self._scores, self._rows
