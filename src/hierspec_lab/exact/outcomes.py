"""What a rule may decide, with probabilities: how much of a draft it keeps, how its tests go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal
from hierspec.core.rules import Stop, Verifier
from hierspec.verifiers.acceptance import tests_of


def tau_probabilities(order: Literal["forward", "backward"], h: torch.Tensor) -> torch.Tensor:
    """Return P(τ = k), k = 0..n, from h [..., n] → [..., n+1]; padding has h = 0, gets P = 0."""
    ones = h.new_ones(*h.shape[:-1], 1)
    if order == "forward":
        return torch.cat([ones, h.cumprod(-1)], -1) * torch.cat([1 - h, ones], -1)
    none_later = (1 - h).flip(-1).cumprod(-1).flip(-1)  # no pass at k, k+1, …, n
    return torch.cat([ones, h], -1) * torch.cat([none_later, ones], -1)


def outcomes(
    rule: Verifier, drafts: Sequence[Proposal], p: Sequence[Distributions]
) -> list[tuple[float, Stop]]:
    """Enumerate every way the rule's tests may go, with its probability."""
    results: list[tuple[float, Stop]] = []
    paths: list[tuple[float, tuple[bool, ...]]] = [(1.0, ())]
    while paths:
        chance, answers = paths.pop()
        choice = tests_of(rule, drafts, p)
        try:
            h = next(choice)
            for answer in answers:
                h = choice.send(answer)
            while True:
                passed = h > 0.0
                if 0.0 < h < 1.0:
                    paths.append((chance * (1.0 - h), (*answers, False)))
                    chance *= h
                answers = (*answers, passed)
                h = choice.send(passed)
        except StopIteration as stop:
            results.append((chance, stop.value))
    return results
