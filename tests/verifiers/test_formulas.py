"""Weights of prefixes against the recursion that defines them; forms for floats and tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hierspec.core.rules import Batch
from hierspec.verifiers import formulas
from hierspec.verifiers.block import Block
from hierspec.verifiers.formulas import (
    capped,
    capped_ratio,
    capped_ratios,
    draft_token_probs,
    overlap,
    prefix_weights,
    scan_from_end,
    total_variation,
)

PROBS = (0.0, 1e-300, 0.1, 0.5, 1.0)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_capped_ratios_are_those_of_floats(dtype):
    p, q = torch.cartesian_prod(*[torch.tensor(PROBS, dtype=dtype)] * 2).unbind(1)
    found = capped_ratios(p, q)
    assert found.dtype == dtype
    pairs = zip(p.tolist(), q.tolist(), strict=True)
    assert found.tolist() == [pytest.approx(capped_ratio(*pair)) for pair in pairs]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("passes_at", range(5))
def test_a_scan_from_the_end_makes_the_tests_of_the_batch(seed, passes_at):
    n, generator = 4, torch.Generator().manual_seed(seed)
    p, q = (torch.rand(1, n + i, 6, generator=generator).double() for i in (1, 0))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    tokens = torch.randint(6, (1, n), generator=generator)
    batch = Batch(p, q, tokens, torch.tensor([n]))
    expected = Block().acceptance(batch)

    def excess(k: int, w: float) -> float:
        return float(formulas.excess(p[0, k], q[0, k], w))

    p_x, q_x = (rows[0].tolist() for rows in draft_token_probs(batch))
    scan = scan_from_end(prefix_weights(p_x, q_x), excess)
    found = [next(scan)]
    try:
        while True:
            found.append(scan.send(n + 1 - len(found) == passes_at))
    except StopIteration as stop:
        kept, w = stop.value
    assert found == pytest.approx(expected.h[0].tolist()[::-1][: n + 1 - max(passes_at, 1)])
    assert (kept, w) == (passes_at, pytest.approx(float(expected.w[0, passes_at])))


def test_the_overlap_is_one_less_the_total_variation():
    p, q = torch.rand(2, 5, 7, dtype=torch.float64).softmax(-1)
    distance = total_variation(p, q)
    assert torch.allclose(overlap(p, q), 1.0 - distance)
    assert total_variation(p.numpy(), q.numpy()) == pytest.approx(distance.numpy())
