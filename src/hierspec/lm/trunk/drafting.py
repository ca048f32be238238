"""A draft of known length by one model: every step knows beforehand where it will write.

So nothing of a step is prepared anew: no context is compared, no cache looked up. Between two steps
stands the pick of a token; on a device that can do it there, :mod:`hierspec.lm.trunk.fixed` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from hierspec.core.distributions import Distributions, concatenate
from hierspec.lm.backend import Span
from hierspec.lm.base import Drafted, Query
from hierspec.sampling.sampler import Sampler

if TYPE_CHECKING:
    from .trunk import Head, Trunk


@torch.inference_mode()
def draft(
    trunk: Trunk,
    queries: Sequence[Query],
    counts: Sequence[int],
    sampler: Sampler,
    uniforms: Sequence[Sequence[float]],
    index: int,
    head: Head | None,
) -> Drafted:
    """See :meth:`hierspec.lm.base.Drafter.draft`, by a trunk's exit."""
    scores = trunk.score(queries, index, head)
    slots = [query.slot for query in queries]
    for query, count in zip(queries, counts, strict=True):
        trunk.rewind(query.slot, len(query.context))
        trunk.make_room(query.slot, len(query.context) + count - 1)

    def after(going: Sequence[int], last: Sequence[int]) -> torch.Tensor:
        # Held before it is computed: the reverse would not survive an interruption.
        for i, token in zip(going, last, strict=True):
            slots[i].held.append(token)
        states = [slots[i].state for i in going]
        spans = [Span(state.cache, state.lengths[0], 1) for state in states]
        h = trunk.embed(last, spans)
        for segment in range(index + 1):
            h = trunk.pass_through(h, segment, states, spans)
        trunk.counters.head_rows += len(h)
        return (head or trunk.backend.head)(h)

    return picked(scores, after, counts, sampler, uniforms)


def picked(
    scores: torch.Tensor,
    after: Callable[[Sequence[int], Sequence[int]], torch.Tensor],
    counts: Sequence[int],
    sampler: Sampler,
    uniforms: Sequence[Sequence[float]],
) -> Drafted:
    """Tokens picked one after the other; sequences leave as they reach their counts.

    Args:
        scores: [B, V] of every sequence's first token.
        after: (sequences, the token just picked for each) → scores [n, V] of their next ones.
    """
    tokens: list[list[int]] = [[] for _ in counts]
    distributions: list[list[Distributions]] = [[] for _ in counts]
    going, calls, seconds = list(range(len(counts))), 1, 0.0
    while True:
        began = perf_counter()
        rng = [] if sampler.greedy else [uniforms[i][len(tokens[i])] for i in going]
        drawn, found = sampler.pick(scores, rng)
        for row, (i, token) in enumerate(zip(going, drawn, strict=True)):
            tokens[i].append(token)
            distributions[i].append(found if len(drawn) == 1 else found.rows(row, row + 1))
        seconds += perf_counter() - began
        going = [i for i in going if len(tokens[i]) < counts[i]]
        if not going:
            return Drafted(tokens, [concatenate(rows) for rows in distributions], calls, seconds)
        scores = after(going, [tokens[i][-1] for i in going])
        calls += 1
