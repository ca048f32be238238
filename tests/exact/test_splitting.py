"""Random numbers that split: what a program compares its draws with is enumerated."""

from __future__ import annotations

import pytest
import torch
from engine_law import outcome_law
from engine_paths import patched

from hierspec.core import distributions as distributions


def test_what_is_compared_is_enumerated():
    def program(rng):
        a, b = rng.take(2).tolist()
        first = "low" if a < 0.3 else "mid" if not a * 2.0 > 1.4 else "high"
        return first, b >= 0.9 if first == "mid" else None

    found = outcome_law(program)
    assert found == {
        ("low", None): pytest.approx(0.3),
        ("high", None): pytest.approx(0.3),
        ("mid", True): pytest.approx(0.04),
        ("mid", False): pytest.approx(0.36),
    }


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), None])
@pytest.mark.parametrize("function", ["searchsorted", "bucketize"])
def test_a_search_in_one_row_is_enumerated(function, shape):
    def program(rng):
        (number,) = rng.take(1).tolist()
        if shape is not None:
            number = torch.tensor(float(number), dtype=torch.float64).reshape(shape)
        row = torch.tensor([0.3, 0.4, 1.0], dtype=torch.float64)
        both = (row, number) if function == "searchsorted" else (number, row)
        return int(getattr(torch, function)(*both, right=True))

    assert outcome_law(program) == pytest.approx({0: 0.3, 1: 0.1, 2: 0.6})


@pytest.mark.parametrize(
    "search",
    [
        lambda u, row: torch.lt(input=u, other=row).logical_not(),
        lambda u, row: torch.ge(u, other=row),
        lambda u, row: torch.searchsorted(sorted_sequence=row, input=u),
        lambda u, row: torch.bucketize(u, boundaries=row),
    ],
)
def test_operands_may_be_named(search):
    def program(rng):
        (number,) = rng.take(1).tolist()
        u = torch.tensor([float(number)], dtype=torch.float64)
        return int(search(u, torch.tensor([0.3], dtype=torch.float64)))

    assert outcome_law(program) == pytest.approx({0: 0.3, 1: 0.7})


def test_what_is_no_box_is_refused():
    def program(rng):
        a, b = rng.take(2).tolist()
        return a < b

    with pytest.raises(ValueError, match="two uniforms"):
        outcome_law(program)


@pytest.mark.parametrize("few", [-1, 4])
@pytest.mark.parametrize("large", [2, 1000])
def test_a_draw_has_its_law(few, large):
    probs = torch.tensor([[0.0, 0.2, 0.0, 1.1, 0.7, 0.0]], dtype=torch.float64)
    with patched(
        (distributions, "_FEW_ROWS", few),
        (distributions, "_LARGE_VOCAB", large),
        (distributions, "_BLOCK", 2),
    ):
        found = outcome_law(lambda rng: distributions.draw(probs, rng.take(1))[0])
    assert found == {i: pytest.approx(float(probs[0, i]) / 2.0) for i in (1, 3, 4)}
