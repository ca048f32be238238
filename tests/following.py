"""Drafts of models that continue step by step, picked with given uniforms."""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.core.distributions import Distributions, concatenate
from hierspec.lm.base import DeviceDrafts


def drafted(scores, after, counts: Sequence[int], sampler, uniforms) -> DeviceDrafts:
    """Continue a :meth:`~hierspec.lm.base.StepwiseModel.score_stepwise` to ``counts`` tokens."""
    tokens: list[list[int]] = [[] for _ in counts]
    distributions: list[list[Distributions]] = [[] for _ in counts]
    going, calls = list(range(len(counts))), 1
    while True:
        rng = [] if sampler.greedy else [uniforms[i][len(tokens[i])] for i in going]
        drawn, found = sampler.pick(scores, rng)
        for row, (i, token) in enumerate(zip(going, drawn, strict=True)):
            tokens[i].append(token)
            distributions[i].append(found.rows(row, row + 1))
        going = [i for i in going if len(tokens[i]) < counts[i]]
        if not going:
            return DeviceDrafts(tokens, [concatenate(rows) for rows in distributions], calls)
        scores = after(going, [tokens[i][-1] for i in going])
        calls += 1
