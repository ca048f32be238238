"""Random problems for P1's formula."""

import numpy as np

from hierspec.planner.estimates import Estimates, ideal


def random_problem(random, models=None, top=3, measured=False, gaps=False):
    """Costs over five orders of magnitude; independent acceptances, or any falling curves."""
    count = models or int(random.integers(2, 6))
    costs = np.sort(10 ** random.uniform(-3, 2, count))
    rates = random.random((count, count))
    rates[random.random((count, count)) < 0.08] = 1.0
    rates[random.random((count, count)) < 0.08] = 0.0
    if gaps:
        rates[random.random((count, count)) < 0.25] = np.nan
    plain = ideal(costs.tolist(), rates.tolist(), max_budget=top, longest=64 if models else top)
    if not measured:
        return plain
    shape = (count, count, top)
    curves = np.cumprod(random.random(shape) ** 0.5, -1)
    survival = np.concatenate((np.ones((count, count, 1)), curves), -1)
    survival[np.isnan(plain.survival)] = np.nan
    lengths = np.arange(top + 1)
    per_token = random.random((count, count, 1))
    return Estimates(
        plain.names,
        survival,
        plain.draft_ms * (1 + 0.1 * random.random(top + 1)),
        plain.verify_ms * (1 + per_token * lengths),
        plain.plain_ms,
        top,
    )
