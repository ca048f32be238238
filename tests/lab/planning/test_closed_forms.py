"""P1's formula in closed form, against the planner's for any curves."""

from __future__ import annotations

import numpy as np
import pytest

from hierspec.planner.estimates import Chain, ideal
from hierspec_lab.planning.corollary import corollary, rounds_from_survival
from hierspec_lab.planning.formula import expected_rounds, expected_tokens, formula

RATES = np.array([0.0, 1e-9, 0.1, 0.5, 0.8, 0.99, 1 - 1e-9, 1 - 1e-13, 1.0])


def test_closed_form_is_the_renewal():
    length, budget = np.arange(13)[:, None], np.arange(13)[None]
    closed = expected_rounds(RATES[:, None, None], length, budget)
    curves = RATES[:, None] ** np.arange(13)
    assert np.allclose(closed, rounds_from_survival(curves, 12), rtol=1e-14, atol=0)


def test_extreme_rates():
    length, budget = np.arange(1, 9)[:, None], np.arange(1, 20)[None]
    assert (expected_rounds(0.0, length, budget) == budget).all()  # a token a round
    assert (
        expected_rounds(1.0, length, budget) == -(-budget // (length + 1))
    ).all()  # T + 1 a round
    assert (expected_tokens([0.0, 1.0], 5) == [1.0, 6.0]).all()
    assert float(expected_tokens(0.8, 5)) == pytest.approx(sum(0.8**m for m in range(6)), rel=1e-15)


def test_formula_is_the_planners():
    costs, rates = [1.0, 5.0, 40.0], [[0, 0.6, 0.3], [0, 0, 0.8], [0, 0, 0]]
    planned = corollary(ideal(costs, rates), Chain((0, 1, 2), (3, 4)))
    assert formula(costs, [0.6, 0.8], [3, 4]) == pytest.approx(planned.ms_per_token, rel=1e-14)
    assert formula([40.0], [], []) == 40.0
    with pytest.raises(ValueError, match="one rate and one budget"):
        formula([1.0, 2.0], [0.5], [])
