"""The naive rule asks the target for what follows a kept draft."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from tabular_cases import chain, models

from hierspec.core.distributions import DenseDistributions, draw
from hierspec.core.proposals import Proposal
from hierspec.core.requests import Row
from hierspec.core.rng import PhiloxRng
from hierspec.exact import model_law
from hierspec.verifiers.verify import verify_batch


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
