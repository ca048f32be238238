"""Weights of prefixes against the recursion that defines them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hierspec.verifiers.formulas import capped, capped_ratio, prefix_weights


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=1, max_size=12))
def test_prefix_weights_are_the_recursion(pairs):
    """Both forms of w against w_k = min(1, w_{k−1} r_k); and P4's r*_k = R_k / max(1, R_<k)."""
    p_x, q_x = zip(*pairs, strict=True)
    w, products = [1.0], [1.0]
    for p, q in pairs:
        w.append(min(1.0, w[-1] * p / q))
        products.append(products[-1] * p / q)
    assert prefix_weights(p_x, q_x) == pytest.approx(w, rel=1e-9)
    sums = torch.tensor(np.log([products]))
    assert capped(sums)[0].tolist() == pytest.approx(w, rel=1e-9)
    for k in range(1, len(w)):
        star = products[k] / max(1.0, *products[:k])
        assert min(1.0, star) == pytest.approx(w[k], rel=1e-9)


def test_ratios_keep_nan():
    assert capped_ratio(math.nan, 0.5) != capped_ratio(math.nan, 0.5)
    assert prefix_weights([math.nan, 0.5], [0.5, 0.5]) == [1.0, 0.0, 0.0]
