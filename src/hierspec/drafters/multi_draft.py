"""Several drafts of one place: multi-draft speculative decoding.

Drafts that agree so far share a query; one that parts from the others goes on in its own slot
(:meth:`hierspec.engine.sequences.LiveSequence.slot`), so that no two of a call share one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from hierspec.core.distributions import (
    DenseDistributions,
    Distributions,
    OneHotDistributions,
    draw,
)
from hierspec.core.rng import Rng

from .base import DraftCall, Drafts
from .model import Growing, ModelDrafter


class MultiDrafter(ModelDrafter):
    """A leaf that makes ``num_drafts`` drafts for every call; one where it is greedy."""

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        self.forwards, self.seconds = 0, 0.0
        _, roots = self.rows([Growing(call) for call in calls])
        drafts: list[list[Growing]] = []
        for call, row in zip(calls, roots, strict=True):
            found = first_tokens(row, self.node.num_drafts, self.node.distinct, call.rng)
            drafts.append(
                [
                    Growing(call, number, [token], [own])
                    for number, (token, own) in enumerate(zip(*found, strict=True))
                ]
            )
        everyone = [draft for own in drafts for draft in own]
        self.grow(everyone, self.asking(everyone))
        proposals = [[draft.proposal(self.node.index) for draft in own] for own in drafts]
        return Drafts(
            [dataclasses.replace(own[0], alternatives=tuple(own[1:])) for own in proposals],
            self.forwards,
            self.seconds,
        )

    def rows(self, drafts: Sequence[Growing]) -> tuple[torch.Tensor, list[Distributions]]:
        """The same, equal drafts of a call asked for once."""
        asked: dict[tuple[int, tuple[int, ...]], int] = {}
        unique: list[Growing] = []
        at: list[int] = []
        for draft in drafts:
            key = (id(draft.call), tuple(draft.tokens))
            if key not in asked:
                asked[key] = len(unique)
                unique.append(draft)
            at.append(asked[key])
        scores, rows = super().rows(unique)
        return scores, [rows[i] for i in at]


def first_tokens(
    row: Distributions, num_drafts: int, distinct: bool, rng: Rng
) -> tuple[list[int], list[Distributions]]:
    """The drafts' first tokens, and what each was drawn from given those before it.

    Distinct tokens are drawn from the distribution without those drawn already; there are fewer
    than ``num_drafts`` where it runs out of tokens. A one-hot row is asked once: the same token
    again could not be kept.
    """
    if isinstance(row, OneHotDistributions):
        return list(row.ids), [row]
    if not distinct:
        rows = row.dense(row.width).expand(num_drafts, -1)
        return draw(rows, rng.take(num_drafts)), [row] * num_drafts
    tokens: list[int] = []
    distributions: list[Distributions] = []
    left = row.dense(row.width)[0].double()
    while len(tokens) < num_drafts and (total := float(left.sum())) != 0.0:
        left = left / total  # of NaN, which drawing refuses, where the row was no distribution
        token = draw(left.unsqueeze(0), rng.take(1))[0]
        tokens.append(token)
        distributions.append(DenseDistributions(left.unsqueeze(0)))
        left = left.clone()
        left[token] = 0.0
    return tokens, distributions
