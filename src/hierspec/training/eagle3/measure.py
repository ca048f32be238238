"""How well a network drafts on texts that it was not trained on.

Teacher-forced: a draft begins at every position, and its later steps read the text. Decoding meets
the same contexts if the target wrote the text, at the same temperature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hierspec.lm.eagle3.network import Eagle3Network

from .batches import Batches, FeatureBatch
from .unroll import unroll

_ROWS = 512  # of scores over the target's vocabulary held at once


@torch.no_grad()
def measure(
    network: Eagle3Network,
    batches: Batches,
    backend: Any,
    group: str,
    depth: int,
    report: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Measure a network over all texts of a group.

    Returns ``acceptance``: per step of a draft, 1 − TV from the target's distribution at
    temperature 1; ``agreement``: per step, the share of equal likeliest tokens; ``known``: the
    target's mass on the draft vocabulary; ``tokens_per_call`` and ``greedy_tokens_per_call``: what
    a check of a draft of ``depth`` tokens yields on average, the target's own token included.
    """
    texts = sorted(batches.store.numbers(group), key=lambda i: len(batches.store.texts[i].ids))
    groups = batches.passes.groups(texts)
    sums = torch.zeros(depth, 3, dtype=torch.float64)
    yields, mass, rows = torch.zeros(2, dtype=torch.float64), 0.0, 0
    for number, members in enumerate(groups):
        report(number / len(groups))
        batch = batches.read(members)
        target, best, known = _target_distributions(network, backend, batch)
        mass, rows = mass + float(known.sum()), rows + len(known)
        # The yield of a draft that begins at a row is made of products of its steps.
        at_all = [torch.zeros(batch.counts.numel(), 2) for _ in range(depth)]
        places = batch.counts.flatten().nonzero().squeeze(1)
        where = torch.zeros(batch.counts.numel(), dtype=torch.int64)
        where[places] = torch.arange(len(places))
        for step, (there, scores) in enumerate(
            unroll(network, batch.features, batch.embedded, batch.counts, depth)
        ):
            own = where[there]
            accepted = torch.minimum(target[own], scores.softmax(-1)).sum(-1)
            agrees = (network.known_ids[scores.argmax(-1)] == best[own]).float()
            sums[step] += torch.stack((accepted, agrees, torch.ones_like(agrees)), 1).sum(0)
            at_all[step][there] = torch.stack((accepted, agrees), 1)
        run = torch.ones(len(places), 2)
        gained = torch.ones(len(places), 2)
        for step in range(depth):
            beyond = (places + step).clamp(max=batch.counts.numel() - 1)
            run = run * at_all[step][beyond]
            gained += run
        yields += gained.sum(0)
    counted = sums[:, 2].clamp(min=1)
    means = (sums[:, :2] / counted[:, None]).T.tolist()
    sampled, greedy = (yields / max(rows, 1)).tolist()
    return {
        "texts": len(texts),
        "rows": rows,
        "acceptance": [round(x, 4) for x in means[0]],
        "agreement": [round(x, 4) for x in means[1]],
        "known": round(mass / max(rows, 1), 4),
        "tokens_per_call": round(sampled, 3),
        "greedy_tokens_per_call": round(greedy, 3),
    }


def _target_distributions(
    network: Eagle3Network, backend: Any, batch: FeatureBatch
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the target's draft-vocabulary distributions [n, D], its likeliest ids, known mass."""
    probs, best = [], []
    for last in batch.last[batch.counts].split(_ROWS):
        whole = backend.head(last.to(backend.dtype)).float()
        best.append(whole.argmax(-1))
        probs.append(whole.softmax(-1)[:, network.known_ids])
    target = torch.cat(probs)
    return target, torch.cat(best), target.sum(-1)
