"""One verdict, whatever the path, the company, the kinds of laws and their widths."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from draft_cases import RULES, batch, facts, proposal, random_case, rows
from fakes.randomness import NoUniforms
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tabular_cases import V

from hierspec.core import distributions
from hierspec.core.distributions import DenseDistributions, MixedDistributions, OneHotDistributions
from hierspec.core.proposals import Proposal
from hierspec.core.rng import PhiloxRng
from hierspec.core.rules import Acceptance, Batch, tau_probabilities
from hierspec.verifiers.registry import get
from hierspec.verifiers.verify import verify, verify_batch


@settings(max_examples=60, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**20),
    single=st.booleans(),
    zeros=st.booleans(),
    bonus=st.booleans(),
)
def test_company_and_shortcuts_change_nothing(rule, lengths, seed, single, zeros, bonus):
    """Ragged batches give what each draft gets alone, and what the reference form says."""
    dtype = torch.float32 if single else torch.float64
    cases = [random_case(seed + i, n, 5, dtype, zeros) for i, n in enumerate(lengths)]
    drafts, p = [c[0] for c in cases], [c[1] for c in cases]

    def rng():
        return [PhiloxRng(seed, i) for i in range(len(cases))]

    node = {"bonus": bonus, "index": 1}
    together = verify_batch(get(rule), drafts, p, rng(), **node)
    alone = [
        verify_batch(get(rule), [d], [law], [die], **node)[0]
        for d, law, die in zip(drafts, p, rng(), strict=True)
    ]
    reference = [
        verify(get(rule), d, law, die, **node) for d, law, die in zip(drafts, p, rng(), strict=True)
    ]
    for a, b, c in zip(together, alone, reference, strict=True):
        assert facts(a) == facts(b) == facts(c)
        width = 5
        assert torch.equal(
            a.emitted.distributions.dense(width), b.emitted.distributions.dense(width)
        )
        assert torch.equal(
            a.emitted.distributions.dense(width), c.emitted.distributions.dense(width)
        )
        assert len(a.emitted.distributions) == len(a.emitted)


def test_an_acceptance_that_is_replaced_on_a_rule_decides():
    rule, (draft, p) = copy.copy(get("tokenwise")), random_case(3, 4)
    rule.acceptance = lambda batch: Acceptance(
        torch.zeros(1, 4).double(), torch.ones(1, 5).double()
    )
    for seed in range(9):
        (verdict,) = verify_batch(rule, [draft], [p], [PhiloxRng(seed)])
        assert verdict.num_accepted == 0


@settings(max_examples=40, deadline=None)
@given(rule=st.sampled_from(RULES), n=st.integers(0, 5), seed=st.integers(0, 2**20))
def test_padding_never_reaches_acceptance(rule, n, seed):
    """Rows past a draft's end may hold anything finite, or another draft's laws."""
    draft, p = random_case(seed, n)
    alone = get(rule).acceptance(batch(draft, p))
    other = rows(torch.Generator().manual_seed(seed + 1), 9, 5, torch.float64, False)
    wide = Batch(
        torch.cat([p.probs, other[: 7 - n]])[None],
        torch.cat([draft.distributions.dense(5), other[: 7 - n]])[None],
        torch.tensor([[*draft.tokens, *[3] * (7 - n)]]),
        torch.tensor([n]),
    )
    padded = get(rule).acceptance(wide)
    assert torch.allclose(padded.h[:, :n], alone.h, atol=1e-14, rtol=0)
    assert not padded.h[:, n:].any()
    assert torch.allclose(padded.w[:, : n + 1], alone.w, atol=1e-14)
    law = tau_probabilities(get(rule).order, padded.h)
    assert torch.allclose(law[:, : n + 1], tau_probabilities(get(rule).order, alone.h), atol=1e-14)
    assert not law[:, n + 1 :].any()
    for tau in range(n + 1):
        stop = torch.tensor([tau])
        a = get(rule).correction(wide, padded, stop)
        assert torch.allclose(a, get(rule).correction(batch(draft, p), alone, stop), atol=1e-14)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("path", ["reference", "batch"])
def test_frequencies_match_the_law(rule, path):
    """χ² of (τ, token) against the enumerated law; fails by chance once in 10⁶ seeds."""
    draft, p = random_case(12, 3, 4)
    single = batch(draft, p)
    accepted = get(rule).acceptance(single)
    stops = tau_probabilities(get(rule).order, accepted.h)[0]
    law = {}
    for tau in range(4):
        row = get(rule).correction(single, accepted, torch.tensor([tau]))[0]
        for token, chance in enumerate((row / row.sum()).tolist()):
            law[tau, token] = float(stops[tau]) * chance
    assert sum(law.values()) == pytest.approx(1.0)
    count = 1500
    if path == "batch":
        rng = [PhiloxRng(1, i) for i in range(count)]
        verdicts = verify_batch(get(rule), [draft] * count, [p] * count, rng)
    else:
        die = PhiloxRng(2)
        count = 500
        verdicts = [verify(get(rule), draft, p, die) for _ in range(count)]
    counts = dict.fromkeys(law, 0)
    for verdict in verdicts:
        counts[verdict.num_accepted, verdict.emitted.tokens[-1]] += 1
    assert not any(counts[key] for key in law if law[key] == 0.0)
    frequent = [key for key in law if law[key] * count >= 5]
    rest = count - sum(counts[key] for key in frequent)
    expected = [law[key] * count for key in frequent]
    observed = [counts[key] for key in frequent]
    if count - sum(expected) >= 1.0:
        observed, expected = [*observed, rest], [*expected, count - sum(expected)]
    if len(observed) > 1:
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
        assert stats.chi2.sf(statistic, len(observed) - 1) > 1e-6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("p_width", [5, 8])
def test_padded_vocabularies(rule, p_width):
    """151936 and 152064 are one family: ids past a law's width have probability 0."""
    draft, _ = random_case(21, 3, 6)
    narrow = rows(torch.Generator().manual_seed(1), 4, 5, torch.float64, False)
    p = DenseDistributions(torch.nn.functional.pad(narrow, (0, p_width - 5)))
    for seed in range(20):
        a = verify(get(rule), draft, p, PhiloxRng(seed))
        b = verify_batch(get(rule), [draft], [p], [PhiloxRng(seed)])[0]
        assert facts(a) == facts(b)
        if rule != "leading":
            assert all(p.prob(i, t) > 0 for i, t in enumerate(a.emitted.tokens))


@pytest.mark.parametrize("rule", RULES)
def test_laws_in_pieces_are_laws_in_one(rule):
    """Neither reading nor verifying tells whether a draft's rows lie in one matrix."""
    whole, p = random_case(7, 4)
    assert isinstance(whole.distributions, DenseDistributions)
    one, two, three = (
        DenseDistributions(whole.distributions.probs[a:b]) for a, b in ((0, 1), (1, 3), (3, 4))
    )
    pieces = distributions.concatenate(
        [distributions.concatenate([one, two]), OneHotDistributions(()), three]
    )
    assert isinstance(pieces, MixedDistributions)
    assert [part.probs.data_ptr() for part in pieces.parts] == [  # not copied
        part.probs.data_ptr() for part in (one, two, three)
    ]
    for start, stop in ((0, 4), (1, 4), (0, 2), (2, 3)):
        part = pieces.rows(start, stop)
        assert len(part) == stop - start
        assert torch.equal(part.dense(V), whole.distributions.rows(start, stop).dense(V))
    assert all(
        pieces.prob(i, t) == whole.distributions.prob(i, t) for i in range(4) for t in range(V)
    )
    with pytest.raises(IndexError):
        pieces.part_at(4)
    for seed in range(30):
        a = verify_batch(get(rule), [whole], [p], [PhiloxRng(seed)])[0]
        b = verify_batch(
            get(rule), [dataclasses.replace(whole, distributions=pieces)], [p], [PhiloxRng(seed)]
        )[0]
        assert facts(a) == facts(b)


@pytest.mark.parametrize("rule", RULES)
def test_one_hot_and_mixed_drafts(rule):
    """A prompt look-up's one-hot laws, alone and after a model's dense ones."""
    _, p = random_case(4, 3)
    dense, _ = random_case(6, 1)
    mixed = MixedDistributions((dense.distributions, OneHotDistributions((2, 4))))
    for draft in (
        proposal((1, 2, 4), OneHotDistributions((1, 2, 4))),
        proposal((*dense.tokens, 2, 4), mixed),
    ):
        for seed in range(20):
            a = verify(get(rule), draft, p, PhiloxRng(seed))
            b = verify_batch(get(rule), [draft], [p], [PhiloxRng(seed)])[0]
            assert facts(a) == facts(b)
            for i, token in enumerate(a.emitted.tokens):
                assert p.prob(i, token) > 0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bonus", [True, False])
def test_greedy_keeps_equal_choices(rule, bonus):
    for tokens, choices, tau in (
        ((1, 2, 3), (1, 2, 3, 4), 3),
        ((1, 2, 3), (1, 0, 3, 4), 1),
        ((), (4,), 0),
    ):
        draft, p = proposal(tokens, OneHotDistributions(tokens)), OneHotDistributions(choices)
        verdict = verify_batch(get(rule), [draft], [p], [NoUniforms()], bonus=bonus)[0]
        dropped = not bonus and tau == len(tokens) > 0
        assert verdict.num_accepted == tau
        assert verdict.emitted.tokens == choices[: tau + (not dropped)]
        assert verdict.emitted.distributions.ids == verdict.emitted.tokens
        if rule != "naive":
            reference = verify(get(rule), draft, p, PhiloxRng(0), bonus=bonus)
            assert reference.emitted.tokens == verdict.emitted.tokens


def test_bonus_is_dropped_by_count_only():
    draft, p = random_case(3, 2)
    p = DenseDistributions(torch.cat([draft.distributions.probs, p.probs[:1]]))
    kept = verify_batch(get("block"), [draft], [p], [PhiloxRng(0)], bonus=False)[0]
    assert (kept.num_accepted, len(kept.emitted)) == (2, 2)
    after, rng = [p.rows(2, 3)], [PhiloxRng(0)]
    empty = verify_batch(get("block"), [Proposal()], after, rng, bonus=False)[0]
    assert (empty.num_accepted, len(empty.emitted)) == (0, 1)


def test_origins_say_who_wrote_a_token_first():
    draft, _ = random_case(3, 2)
    draft = Proposal(draft.tokens, draft.distributions, (2, 2), (0, 2), draft.signals)
    p = DenseDistributions(torch.cat([draft.distributions.probs, draft.distributions.probs[:1]]))
    verdict = verify_batch(get("block"), [draft], [p], [PhiloxRng(0)], index=7)[0]
    assert verdict.emitted.origins == (0, 2, 7)
    assert verdict.emitted.owners == (7, 7, 7)


def test_the_kept_residual_is_the_one_drawn_from():
    """Check that reusing the row that a passed test has summed gives the same token."""
    generator = torch.Generator().manual_seed(0)
    middles = 0
    for number in range(300):
        p = torch.rand(5, 7, generator=generator, dtype=torch.float64) ** 3
        q = torch.rand(4, 7, generator=generator, dtype=torch.float64) ** 3
        p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
        tokens = torch.multinomial(q, 1, generator=generator).flatten().tolist()
        draft, law = proposal(tokens, DenseDistributions(q)), DenseDistributions(p)
        (short,) = verify_batch(get("block"), [draft], [law], [PhiloxRng(number, 0)])
        long = verify(get("block"), draft, law, PhiloxRng(number, 0))
        assert short.emitted.tokens == long.emitted.tokens
        middles += 0 < short.num_accepted < 4
    assert middles > 50
