"""``leading`` keeps what is among the first of the verifier's scores."""

from __future__ import annotations

import math

import pytest
import torch
from draft_cases import facts, proposal, random_case, rows
from fakes.randomness import NoUniforms
from hypothesis import given, settings
from hypothesis import strategies as st

from hierspec.core.distributions import DenseDistributions, MixedDistributions, OneHotDistributions
from hierspec.core.rng import PhiloxRng
from hierspec.verifiers.registry import get
from hierspec.verifiers.verify import verify_batch
from hierspec_lab.rules.leading import leading_tokens


def test_its_option_makes_it_another_rule():
    with pytest.raises(ValueError, match="at least 1"):
        get("leading", top_m=0)
    assert get("leading", top_m=2) == get("leading", top_m=2) != get("leading")


def test_greedy_leading_reads_scores_and_breaks_ties_by_id():
    scores = torch.tensor([[5.0, 4.0, 4.0, 1.0], [0.0, 2.0, 2.0, 2.0], [3.0, 2.0, 1.0, 0.0]])
    rule = get("leading", top_m=2)
    choices = OneHotDistributions((0, 1, 0))
    for tokens, tau in (((1, 2), 2), ((2, 1), 0), ((1, 3), 1), ((0, 1), 2)):
        draft = proposal(tokens, OneHotDistributions(tokens))
        verdict = verify_batch(rule, [draft], [choices], [NoUniforms()], [scores])[0]
        assert verdict.num_accepted == tau
        assert verdict.emitted.tokens == (*tokens[:tau], choices.ids[tau])
        assert verdict.emitted.distributions.ids == verdict.emitted.tokens


@pytest.mark.parametrize("top_m", [2, 3, 4, 9])
def test_greedy_leading_of_a_verifier_narrower_than_its_draft(top_m):
    """A drafted id past its vocabulary is not among its leading_tokens, however many count."""
    scores = torch.tensor([[5.0, 4.0, -math.inf], [0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    choices = OneHotDistributions((0, 2, 0))
    for tokens, tau in (((1, 5), 1), ((3, 1), 0), ((1, 1), 2), ((2, 0), 0)):
        draft = proposal(tokens, OneHotDistributions(tokens))
        rule = get("leading", top_m=top_m)
        verdict = verify_batch(rule, [draft], [choices], [NoUniforms()], [scores])[0]
        assert verdict.num_accepted == tau
        assert verdict.emitted.tokens == (*tokens[:tau], choices.ids[tau])


@settings(max_examples=60, deadline=None)
@given(
    top_m=st.integers(1, 9),
    widths=st.tuples(st.integers(2, 7), st.integers(2, 7)),
    hot=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_leaders_depend_neither_on_the_path_nor_on_the_draft(top_m, widths, hot, seed):
    """One-hot, mixed and dense drafts; verifiers wider and narrower: the tokens kept are those
    among the first m of the verifier's own scores.
    """
    own, drafted = widths
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, own, generator=generator, dtype=torch.float64)
    scores[torch.rand(4, own, generator=generator) < 0.2] = -math.inf
    scores[:, 0] = 0.0
    q = rows(generator, 3, drafted, torch.float64, False)
    tokens = torch.multinomial(q, 1, generator=generator).squeeze(-1).tolist()
    pieces = MixedDistributions((DenseDistributions(q[:1]), OneHotDistributions(tuple(tokens[1:]))))
    p = (
        DenseDistributions(scores.softmax(-1))
        if hot
        else OneHotDistributions(tuple(scores.argmax(-1).tolist()))
    )
    expected = 0
    for row, token in zip(scores.tolist(), tokens, strict=False):
        best = sorted(range(own), key=lambda i: (-row[i], i))[:top_m]
        if token not in best or row[token] == -math.inf:
            break
        expected += 1
    rule, wide = get("leading", top_m=top_m), random_case(seed, 3, 9)
    for law in (DenseDistributions(q), OneHotDistributions(tuple(tokens)), pieces):
        draft = proposal(tokens, law)
        alone = verify_batch(rule, [draft], [p], [PhiloxRng(0)], [scores])[0]
        assert alone.num_accepted == expected
        rng, both = [PhiloxRng(0), PhiloxRng(1)], [scores, wide[1].probs.log()]
        together = verify_batch(rule, [draft, wide[0]], [p, wide[1]], rng, both)[0]
        assert facts(together) == facts(alone)
        for i, token in enumerate(tokens[:expected]):
            # A wider row may be summed in another order: a unit of the last digit.
            assert together.emitted.distributions.prob(i, token) == pytest.approx(
                alone.emitted.distributions.prob(i, token), rel=1e-14
            )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 9))
def test_leaders_are_a_stable_sort(values, m):
    scores = torch.tensor([values], dtype=torch.float32)
    best = sorted(range(len(values)), key=lambda i: (-values[i], i))[:m]
    assert sorted(leading_tokens(scores, m)[0].tolist()) == sorted(best)


def test_leading_reads_scores_rather_than_laws():
    """Top-m of the untempered scores; padding of a wider vocabulary is never among them."""
    draft, p = random_case(9, 2, 4)
    scores = torch.full((3, 4), -5.0)
    scores[0, draft.tokens[0]] = 0.0
    rule = get("leading")
    die = PhiloxRng(0)
    verdict = verify_batch(rule, [draft], [p], [die], [scores])[0]
    assert verdict.num_accepted >= 1
