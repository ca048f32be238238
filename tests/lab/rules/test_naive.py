"""The naive rule asks the target for what follows a kept draft."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from tabular_cases import V, chain, models

from hierspec.core.distributions import DenseDistributions, draw
from hierspec.core.proposals import Proposal
from hierspec.core.requests import Row
from hierspec.core.rng import PhiloxRng
from hierspec.core.rules import Verifier
from hierspec.core.windows import EntropyWindow
from hierspec.exact.certificate import certify_tree
from hierspec.exact.output import model_law
from hierspec.verifiers.verify import verify_batch
from hierspec_lab.rules.naive import Naive


def test_naive_follows_up_with_real_rows():
    """`complete` on dense laws and draws: the first three tokens are the target's (χ², 10⁻⁶)."""
    q, p = models("random", 2, seed=38)
    above = chain([q, p], ["naive"], [3])
    count, die = 4000, PhiloxRng(5)

    def table(model, texts):
        return DenseDistributions(torch.stack([model.distribution(text) for text in texts]))

    seen: dict[tuple[int, ...], int] = {}
    rows_asked = 0
    for _ in range(count):
        tokens: tuple[int, ...] = ()
        for _ in range(3):
            tokens += tuple(draw(table(q, [tokens]).probs, die.take(1)))
        texts = [tokens[:i] for i in range(4)]
        draft = Proposal(tokens, table(q, texts[:3]), (0,) * 3, (0,) * 3, (math.nan,) * 3)
        verdict = verify_batch(above.rule, [draft], [table(p, texts)], [die])[0]
        coroutine, answer = above.rule.complete(above, (), draft, verdict), None
        while True:
            try:
                request = coroutine.send(answer)
            except StopIteration as stop:
                verdict = stop.value
                break
            if isinstance(request, Row):
                answer = table(request.node.model, [request.pending])
                rows_asked += 1
            else:
                answer = draw(request.distribution.probs, die.take(1))[0]
        emitted = verdict.emitted
        assert len(emitted) == len(emitted.distributions) >= 3
        seen[emitted.tokens[:3]] = seen.get(emitted.tokens[:3], 0) + 1
    assert rows_asked > 0
    expected = model_law(p, 3) * count
    statistic = sum((seen.get(t, 0) - e) ** 2 / e for t, e in np.ndenumerate(expected))
    assert expected.min() > 5
    assert stats.chi2.sf(statistic, expected.size - 1) > 1e-6


class NeverFollowsUp(Naive):
    """Naive branch resampling without its follow-up tokens."""

    complete = Verifier.complete


def worst(make) -> float:
    return max(certify_tree(make(seed), V).tv for seed in range(3))


def test_without_its_follow_up_tokens_it_is_lossy():
    assert worst(lambda seed: chain(models("random", 2, seed=seed), [NeverFollowsUp()], [3])) > 1e-3


def test_naive_needs_a_length_fixed_beforehand():
    """The reason for which `check` refuses it: a stop that depends on the tokens makes it lossy."""
    windows = [EntropyWindow(threshold=0.8)]
    make = lambda seed: chain(models("random", 2, seed=seed), ["naive"], [3], windows)  # noqa: E731
    assert worst(make) > 1e-3


def test_naive_needs_overshoot_cut():
    def make(seed):
        root = chain(models("random", 3, seed=seed), ["block", "tokenwise"], [2, 2])
        return chain(models("random", 1, seed=seed + 9), ["naive"], [], below=root.below)

    assert worst(make) > 1e-3
