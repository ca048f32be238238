"""Draws and races from rows of any width and number type; what is no distribution is refused."""

from __future__ import annotations

import math

import pytest
import torch

from hierspec.core import distributions
from hierspec.core.distributions import race, row_sums
from hierspec.core.rng import PhiloxRng


@pytest.mark.parametrize("v", [16384, 16385, 50257])
@pytest.mark.parametrize("kind", ["flat", "steep", "sparse", "last"])
def test_large_vocabularies_are_searched_alike(v, kind):
    """Inverse CDF by blocks of tokens against the cumulated sum over all of them."""
    generator = torch.Generator().manual_seed(v)
    probs = torch.rand(4, v, generator=generator, dtype=torch.float64)
    if kind == "steep":
        probs = probs**30
    if kind == "sparse":
        probs *= torch.rand(4, v, generator=generator) > 0.999
    if kind == "last":
        probs = torch.zeros(4, v, dtype=torch.float64)
        probs[:, -1] = 0.1
    for u in (torch.rand(4, generator=generator).tolist(), [0.0] * 4, [1.0 - 2**-53] * 4):
        column = torch.tensor(u, dtype=torch.float64).unsqueeze(-1)
        picked, total = distributions._search_blocks(probs, column)
        plain, plain_total = distributions._search(probs, column)
        assert torch.equal(picked, plain)
        assert torch.allclose(total, plain_total)
        ids = distributions.draw(probs, u)  # few rows: by NumPy
        assert ids == picked.squeeze(-1).tolist()
        assert all(probs[row, i] > 0 for row, i in enumerate(ids))
    with pytest.raises(ValueError, match="not finite"):
        distributions.draw(torch.zeros(1, v), [0.5])
    assert (
        distributions.draw(torch.zeros(1, v), [0.5], lambda row: probs[row])[0]
        == distributions.draw(probs[:1], [0.5])[0]
    )


@pytest.mark.parametrize("v", [50, 20000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_any_row_of_numbers_is_drawn_from(v, dtype):
    probs = torch.zeros(2, 2 * v, dtype=dtype)[:, ::2]
    probs[:, v - 3] = 0.5
    assert distributions.draw(probs.clone().requires_grad_(), [0.2, 0.9]) == [v - 3] * 2
    assert distributions.draw(probs, [0.0, 1.0 - 2**-53]) == [v - 3] * 2
    probs[1, 0] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        distributions.draw(probs, [0.2, 0.9])


def test_a_row_that_is_no_distribution():
    noise = PhiloxRng(0).noise
    assert race(torch.tensor([[0.0, 1.0, 0.0]]), noise, 0) == [1]
    for row in ([0.0, 0.0], [float("nan")] * 2):
        with pytest.raises(ValueError, match="not finite"):
            race(torch.tensor([row]), noise, 0)


@pytest.mark.parametrize("width", [50, 49_152, 151_936])
def test_a_rows_sum_has_the_same_bits_alone_and_among_others(width):
    """torch would share out the sum of a single long row among its threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows = torch.rand(8, width, generator=torch.Generator().manual_seed(1)).softmax(-1)
        alone = torch.cat([row_sums(row.unsqueeze(0)) for row in rows])
        assert torch.equal(row_sums(rows), alone)
        assert torch.equal(row_sums(rows[None]), alone[None])
    finally:
        torch.set_num_threads(threads)
