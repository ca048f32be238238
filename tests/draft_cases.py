"""Drafts drawn from random laws and their verifiers' laws; the facts of a verdict."""

from __future__ import annotations

import math

import torch

from hierspec.core.distributions import DenseDistributions
from hierspec.core.proposals import Proposal
from hierspec.core.rules import Batch
from hierspec.verifiers.registry import get, names

RULES = sorted({get(name).name for name in names()})


def rows(generator: torch.Generator, n: int, v: int, dtype: torch.dtype, zeros: bool):
    weights = -torch.rand(n, v, generator=generator, dtype=torch.float64).log()
    if zeros:
        weights = weights * (torch.rand(n, v, generator=generator) > 0.4)
        weights[:, 0] += 1e-3
    return (weights / weights.sum(-1, keepdim=True)).to(dtype)


def random_case(seed: int, n: int, v: int = 5, dtype=torch.float64, zeros=False):
    """A draft drawn from its own laws, and the verifier's laws."""
    generator = torch.Generator().manual_seed(seed)
    q = rows(generator, n, v, dtype, zeros)
    p = rows(generator, n + 1, v, dtype, zeros)
    tokens = torch.multinomial(q, 1, generator=generator).squeeze(-1).tolist() if n else []
    return proposal(tokens, DenseDistributions(q)), DenseDistributions(p)


def proposal(tokens, distributions) -> Proposal:
    n = len(tokens)
    return Proposal(tuple(tokens), distributions, (0,) * n, (0,) * n, (math.nan,) * n)


def batch(draft: Proposal, p: DenseDistributions) -> Batch:
    v = p.width
    q = draft.distributions.dense(v) if len(draft) else p.probs.new_zeros(0, v)
    tokens = torch.tensor([draft.tokens], dtype=torch.long).reshape(1, -1)
    return Batch(p.probs[None], q[None], tokens, torch.tensor([len(draft)]))


def facts(verdict):
    emitted = verdict.emitted
    return (verdict.num_accepted, emitted.tokens, emitted.owners, emitted.origins)
