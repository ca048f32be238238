"""Traps of floating point: underflow, rounding, zeros and what is not a number."""

from __future__ import annotations

import math

import pytest
import torch
from draft_cases import RULES, batch, proposal, random_case
from fakes.randomness import FixedUniforms

from hierspec.core.distributions import DenseDistributions
from hierspec.core.proposals import Proposal
from hierspec.core.rng import PhiloxRng
from hierspec.verifiers.block import Block
from hierspec.verifiers.formulas import capped, log_products
from hierspec.verifiers.registry import get
from hierspec.verifiers.verify import verify, verify_batch

RATIOS = [rule for rule in RULES if rule not in ("leading", "match")]  # they weigh p against q


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_long_drafts_underflow_nothing(rule, dtype):
    """300 tokens with ratios far from 1: products of 1e±600 and no NaN."""
    n = 300
    q = torch.tensor([[0.98, 0.01, 0.01]], dtype=dtype).repeat(n, 1)
    p = torch.tensor([[0.01, 0.98, 0.01]], dtype=dtype).repeat(n + 1, 1)
    for tokens in ([0] * n, [1] * n, [0, 1] * (n // 2), [0] * 150 + [1] * 150):
        draft = proposal(tokens, DenseDistributions(q))
        accepted = get(rule).acceptance(batch(draft, DenseDistributions(p)))
        assert torch.isfinite(accepted.h).all()
        assert ((accepted.h >= 0) & (accepted.h <= 1)).all()
        assert torch.isfinite(accepted.w).all()
        for tau in (0, 1, 150, 299, 300):
            row = get(rule).correction(
                batch(draft, DenseDistributions(p)), accepted, torch.tensor([tau])
            )[0]
            assert torch.isfinite(row).all()
            assert row.sum() > 0
        verdict = verify_batch(get(rule), [draft], [DenseDistributions(p)], [PhiloxRng(0)])[0]
        assert 0 <= verdict.num_accepted <= n
    rising = proposal([0] * 150 + [1] * 150, DenseDistributions(q))
    sums = log_products(batch(rising, DenseDistributions(p)))
    assert float(sums[0, 150]) < -680  # the plain product is about 1e−299
    assert float(capped(sums)[0, 300]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RATIOS)
@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2**-53])
def test_equal_laws_keep_everything(rule, dtype, u):
    draft, _ = random_case(3, 6, 7, dtype)
    p = DenseDistributions(torch.cat([draft.distributions.probs, draft.distributions.probs[:1]]))
    for verdict in (
        verify(get(rule), draft, p, FixedUniforms(*[u] * 7)),
        verify_batch(get(rule), [draft], [p], [FixedUniforms(*[u] * 7)])[0],
    ):
        assert verdict.num_accepted == 6
        assert len(verdict.emitted) == 7


@pytest.mark.parametrize("rule", [r for r in RULES if r != "leading"])
def test_an_impossible_token_is_never_emitted(rule):
    """u = 0 must not let a token through that p forbids, nor draw one."""
    p = DenseDistributions(torch.tensor([[0.0, 0.5, 0.5], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0]]))
    q = DenseDistributions(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]))
    for tokens in ((0, 0), (1, 2), (0, 2)):
        for verdict in (
            verify(get(rule), proposal(tokens, q), p, FixedUniforms(0.0, 0.0, 0.0)),
            verify_batch(get(rule), [proposal(tokens, q)], [p], [FixedUniforms(0.0, 0.0, 0.0)])[0],
        ):
            assert all(p.prob(i, t) > 0 for i, t in enumerate(verdict.emitted.tokens))


@pytest.mark.parametrize("rule", RATIOS)
def test_a_token_its_drafter_calls_impossible(rule):
    """q(x) = 0 can only come of rounding; the ratio is 'large', not a NaN."""
    q = DenseDistributions(torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64))
    p = DenseDistributions(torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=torch.float64))
    draft = proposal((0, 1), q)
    accepted = get(rule).acceptance(batch(draft, p))
    assert torch.isfinite(accepted.h).all()
    assert float(accepted.h[0, 1]) == 1.0
    verdict = verify_batch(get(rule), [draft], [p], [FixedUniforms(0.9, 0.9, 0.5)])[0]
    assert verdict.num_accepted == 2


def test_rejection_where_the_residual_vanishes_emits_from_p():
    """Rounding may reject where p = q; then p itself is what is left."""
    p = DenseDistributions(torch.tensor([[0.3, 0.7], [0.5, 0.5]], dtype=torch.float64))
    slightly = torch.tensor([[0.3, 0.7]], dtype=torch.float64) * (1 + 1e-15)
    draft = proposal((0,), DenseDistributions(slightly))
    u = 1.0 - 2**-53
    for verdict in (
        verify(get("tokenwise"), draft, p, FixedUniforms(u, 0.9)),
        verify_batch(get("tokenwise"), [draft], [p], [FixedUniforms(u, 0.9)])[0],
    ):
        assert verdict.num_accepted == 0
        assert verdict.emitted.tokens == (1,)


def test_scores_that_are_not_numbers_are_refused():
    p = DenseDistributions(torch.full((2, 3), math.nan))
    draft = proposal((0,), DenseDistributions(torch.tensor([[1.0, 0.0, 0.0]])))
    with pytest.raises(ValueError, match="not finite"):
        verify_batch(get("tokenwise"), [draft], [p], [PhiloxRng(0)])


@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive", "leading"])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_nan_never_passes_for_a_law(rule, row):
    """On an accelerator nobody looks at scores before they are decided on."""
    q = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    p = torch.tensor([[0.5, 0.5, 0.0]] * 3)
    p[row] = torch.nan
    draft = Proposal((0, 0), DenseDistributions(q), (0, 0), (0, 0), (0.0, 0.0))
    scores = p.log()
    outcomes = set()
    for seed in range(40):
        try:
            verdict = verify(get(rule), draft, DenseDistributions(p), PhiloxRng(seed), scores)
        except ValueError:
            outcomes.add("told")
            continue
        # Rows after the last token that was decided on are nobody's business.
        assert len(verdict.emitted) <= row
        outcomes.add("before it")
    assert "told" in outcomes


def test_float32_rows_give_float32_accurate_laws():
    draft, p = random_case(5, 4, 50)
    exact = Block().acceptance(batch(draft, p))
    single = Block().acceptance(
        batch(
            proposal(draft.tokens, DenseDistributions(draft.distributions.probs.float())),
            DenseDistributions(p.probs.float()),
        )
    )
    assert single.h.dtype == torch.float64
    assert torch.allclose(single.h, exact.h, atol=1e-5)
