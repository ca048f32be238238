"""Measure how well a network drafts on texts that it was not trained on.

It is teacher-forced: a draft begins at every position, and its later steps read the text. Decoding
meets the same contexts if the target wrote the text, at the same temperature.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hierspec.lm.backend import Backend
from hierspec.verifiers.formulas import overlap

from .batches import Batches, FeatureBatch
from .network import Eagle3Network
from .unroll import unroll

_ROWS = 512  # of scores over the target's vocabulary, computed at once


@torch.no_grad()
def measure(
    network: Eagle3Network,
    batches: Batches,
    backend: Backend,
    group: str,
    depth: int,
) -> dict[str, Any]:
    """Measure a network over all texts of a group.

    Returns ``acceptance``: per step of a draft, 1 − TV from the target's distribution at
    temperature 1; ``agreement``: per step, the share of rows where both choose the same
    likeliest token; ``known``: the target's mass on the draft vocabulary; ``tokens_per_call`` and
    ``greedy_tokens_per_call``: what
    a check of a draft of ``depth`` tokens yields on average, the target's own token included.
    """
    texts = sorted(batches.store.numbers(group), key=lambda i: len(batches.store.texts[i].ids))
    sums = torch.zeros(depth, 3, dtype=torch.float64)
    yields, mass, num_rows = torch.zeros(2, dtype=torch.float64), 0.0, 0
    for text_indices in batches.passes.pack(texts):
        batch = batches.read(text_indices)
        target, best, known_mass = _target_distributions(network, backend, batch)
        mass, num_rows = mass + float(known_mass.sum()), num_rows + len(known_mass)
        size = batch.is_predicted.numel()
        figures = [torch.zeros(size, 2) for _ in range(depth)]  # by step, of every row
        starts = batch.is_predicted.flatten().nonzero().squeeze(1)
        index_of_row = torch.zeros(size, dtype=torch.int64)
        index_of_row[starts] = torch.arange(len(starts))
        for step, (rows, scores) in enumerate(
            unroll(network, batch.features, batch.embedded, batch.is_predicted, depth)
        ):
            indices = index_of_row[rows]
            accepted = overlap(target[indices], scores.softmax(-1))
            agrees = (network.scored_ids[scores.argmax(-1)] == best[indices]).float()
            sums[step] += torch.stack((accepted, agrees, torch.ones_like(agrees)), 1).sum(0)
            figures[step][rows] = torch.stack((accepted, agrees), 1)
        # Of a draft that begins at a row, the figure of step i stands i rows further on.
        drafts = [step[(starts + i).clamp(max=size - 1)] for i, step in enumerate(figures)]
        yields += tokens_of_round(torch.stack(drafts, -1)).sum(0)
    means = (sums[:, :2] / sums[:, 2:].clamp(min=1)).T.tolist()
    sampled, greedy = (yields / max(num_rows, 1)).tolist()
    return {
        "texts": len(texts),
        "rows": num_rows,
        "acceptance": [round(x, 4) for x in means[0]],
        "agreement": [round(x, 4) for x in means[1]],
        "known": round(mass / max(num_rows, 1), 4),
        "tokens_per_call": round(sampled, 3),
        "greedy_tokens_per_call": round(greedy, 3),
    }


def _target_distributions(
    network: Eagle3Network, backend: Backend, batch: FeatureBatch
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the target's probabilities of draft tokens [n, D], its likeliest ids, and row sums."""
    probs, best = [], []
    for last in batch.last[batch.is_predicted].split(_ROWS):
        scores = backend.head(last.to(backend.dtype)).float()
        best.append(scores.argmax(-1))
        probs.append(scores.softmax(-1)[:, network.scored_ids])
    target = torch.cat(probs)
    return target, torch.cat(best), target.sum(-1)


def tokens_of_round(accepted: torch.Tensor) -> torch.Tensor:
    """Return 1 + a_1 + a_1 a_2 + … over the last axis: the tokens that a round yields on average.

    ``accepted`` [..., n] are the chances a_i that token i is accepted if those before it are.
    """
    return 1.0 + accepted.cumprod(-1).sum(-1)
