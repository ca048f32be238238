"""Drafting on the host: score a row, pick a token, and go on with it.

The loop of every model that drafts by itself and does not pick its tokens on the device, as
:class:`hierspec.lm.trunk.cuda_graphs.CudaGraphTrunk` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from hierspec.core.distributions import Distributions, concatenate
from hierspec.lm.base import Drafted
from hierspec.sampling.sampler import Sampler


def draft_by_steps(
    scores: torch.Tensor,
    after: Callable[[Sequence[int], Sequence[int]], torch.Tensor],
    counts: Sequence[int],
    sampler: Sampler,
    uniforms: Sequence[Sequence[float]],
) -> Drafted:
    """Pick ``counts[b]`` tokens for each of B sequences; each leaves when it has them.

    Args:
        scores: [B, V] of every sequence's first token.
        after: (sequences, the token just picked for each) → scores [n, V] of their next ones.
        uniforms: see :meth:`hierspec.lm.base.Drafter.draft`.
    """
    tokens: list[list[int]] = [[] for _ in counts]
    distributions: list[list[Distributions]] = [[] for _ in counts]
    going, calls, seconds = list(range(len(counts))), 1, 0.0
    while True:
        began = perf_counter()
        rng = [] if sampler.greedy else [uniforms[i][len(tokens[i])] for i in going]
        picked, found = sampler.pick(scores, rng)
        for row, (i, token) in enumerate(zip(going, picked, strict=True)):
            tokens[i].append(token)
            distributions[i].append(found if len(picked) == 1 else found.rows(row, row + 1))
        seconds += perf_counter() - began
        going = [i for i in going if len(tokens[i]) < counts[i]]
        if not going:
            return Drafted(tokens, [concatenate(rows) for rows in distributions], calls, seconds)
        scores = after(going, [tokens[i][-1] for i in going])
        calls += 1
