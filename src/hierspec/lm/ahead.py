"""A draft of known length by one model: every step knows beforehand where it will write.

So nothing of a step is prepared anew: no context is compared, no cache looked up. Between two steps
stands the pick of a token; on a device that can do it there, :mod:`hierspec.lm.fixed_trunk` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from hierspec.laws import Laws, concatenate
from hierspec.lm.backend import Span
from hierspec.lm.base import Drafted, Query
from hierspec.readings import Reading

if TYPE_CHECKING:
    from hierspec.lm.trunk import Head, Trunk


@torch.inference_mode()
def draft(
    trunk: Trunk,
    queries: Sequence[Query],
    counts: Sequence[int],
    reading: Reading,
    uniforms: Sequence[Sequence[float]],
    index: int,
    head: Head | None,
) -> Drafted:
    """See :meth:`hierspec.lm.base.Drafter.draft`; sequences leave as they reach their counts."""
    scores = trunk.score(queries, index, head)
    slots = [query.slot for query in queries]
    for query, count in zip(queries, counts, strict=True):
        trunk.rewind(query.slot, len(query.context))
        trunk.make_room(query.slot, len(query.context) + count - 1)
    tokens: list[list[int]] = [[] for _ in queries]
    laws: list[list[Laws]] = [[] for _ in queries]
    going, calls, seconds = list(range(len(queries))), 1, 0.0
    while True:
        began = perf_counter()
        dice = [] if reading.greedy else [uniforms[i][len(tokens[i])] for i in going]
        picked, found = reading.pick(scores, dice)
        for row, (i, token) in enumerate(zip(going, picked, strict=True)):
            tokens[i].append(token)
            laws[i].append(found if len(picked) == 1 else found.rows(row, row + 1))
        seconds += perf_counter() - began
        going = [i for i in going if len(tokens[i]) < counts[i]]
        if not going:
            return Drafted(tokens, [concatenate(rows) for rows in laws], calls, seconds)
        # Held before it is computed: the reverse would not survive an interruption.
        for i in going:
            slots[i].held.append(tokens[i][-1])
        states = [slots[i].state for i in going]
        spans = [Span(state.cache, state.lengths[0], 1) for state in states]
        h = trunk.embed([tokens[i][-1] for i in going], spans)
        for segment in range(index + 1):
            h = trunk.pass_through(h, segment, states, spans)
        scores = (head or trunk.backend.head)(h)
        trunk.counters.head_rows += len(h)
        calls += 1
