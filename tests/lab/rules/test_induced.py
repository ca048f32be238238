"""What a preferred path's tokens were drawn from; the tests of several drafts prove its rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tabular_cases import pair
from tabular_cases import several as tree

from hierspec.exact.certificate import certify_tree
from hierspec_lab.rules import induced

TIGHT = 1e-12


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("best_of_draws", lambda real: lambda p, q, m: (real(p, q, m)[0], real(p, q, m + 1)[1])),
        ("restrict", lambda real: lambda q, rank, token: q),
    ],
)
def test_preference_changes_what_a_token_was_drawn_from(monkeypatch, name, wrong):
    q, p = pair(3, 1, 27)
    assert certify_tree(tree(q, p, "induced-block", 3, 1), 3).tv < TIGHT
    monkeypatch.setattr(induced, name, wrong(getattr(induced, name)))
    assert certify_tree(tree(q, p, "induced-block", 3, 1), 3).tv > 1e-3


def test_the_best_of_several_draws():
    """Against all draws, written out; ties go by id, and what q cannot say is never chosen."""
    p = torch.tensor([0.1, 0.4, 0.3, 0.2, 0.0], dtype=torch.float64)
    q = torch.tensor([0.2, 0.4, 0.3, 0.0, 0.1], dtype=torch.float64)
    for m in (1, 2, 4):
        rank, law = induced.best_of_draws(p, q, m)
        want = torch.zeros(5, dtype=torch.float64)
        for tokens in np.ndindex(*(5,) * m):
            want[max(tokens, key=lambda y: int(rank[y]))] += q[list(tokens)].prod()
        assert torch.allclose(law, want, rtol=0, atol=1e-15)
        assert rank[1] != rank[2]
        assert rank[3] == 0
    tiny = torch.tensor([1e-18, 1 - 1e-18], dtype=torch.float64)
    assert induced.best_of_draws(tiny.flip(0), tiny, 3)[1][0] == pytest.approx(3e-18, rel=1e-9)


@pytest.mark.parametrize("m", [20, 64, 2000])
def test_the_best_of_very_many_draws(m):
    """Powers of a small mass vanish; what a token adds to one is still a number."""
    p = torch.tensor([0.5, 1e-9, 0.25, 0.25], dtype=torch.float64)
    q = torch.tensor([0.5, 1e-5, 0.25, 0.25 - 1e-5], dtype=torch.float64)
    _, law = induced.best_of_draws(p, q, m)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert law[2] == pytest.approx(0.75**m - 0.5**m, rel=1e-3)
    small = torch.tensor([1e-17, 3e-16, 1.0], dtype=torch.float64)
    _, law = induced.best_of_draws(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), small, m)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)


def test_ranks_lie_where_the_rows_do():
    """On an accelerator, that is; here torch is made to put what has no place elsewhere."""
    row = torch.tensor([0.25, 0.75], dtype=torch.float64)
    with torch.device("meta"):
        rank, law = induced.best_of_draws(row, row, 2)
    assert rank.tolist() == [0, 1]
    assert law.sum() == pytest.approx(1.0)
