"""Rules by themselves: numbers, randomness, padding, and the traps of floating point."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from fakes import FixedDice
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import linprog
from tabular_cases import FAMILIES, V, chain, models

from hierspec.core import distributions
from hierspec.core.distributions import (
    DenseDistributions,
    MixedDistributions,
    OneHotDistributions,
    draw,
)
from hierspec.core.proposals import Proposal
from hierspec.core.requests import Row
from hierspec.core.rng import PhiloxRng
from hierspec.core.rules import Batch, tau_probabilities
from hierspec.exact import model_law
from hierspec.exact.certificate import certify_tree
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.block import Block
from hierspec.verifiers.formulas import capped, capped_ratio, log_products, prefix_weights
from hierspec.verifiers.leading import leading_tokens
from hierspec.verifiers.registry import get, names
from hierspec.verifiers.verify import verify, verify_batch

RULES = sorted({get(name).name for name in names()})
RATIOS = [rule for rule in RULES if rule not in ("leading", "match")]  # they weigh p against q


def rows(generator: torch.Generator, n: int, v: int, dtype: torch.dtype, zeros: bool):
    weights = -torch.rand(n, v, generator=generator, dtype=torch.float64).log()
    if zeros:
        weights = weights * (torch.rand(n, v, generator=generator) > 0.4)
        weights[:, 0] += 1e-3
    return (weights / weights.sum(-1, keepdim=True)).to(dtype)


def random_case(seed: int, n: int, v: int = 5, dtype=torch.float64, zeros=False):
    """A draft drawn from its own laws, and the verifier's laws."""
    generator = torch.Generator().manual_seed(seed)
    q = rows(generator, n, v, dtype, zeros)
    p = rows(generator, n + 1, v, dtype, zeros)
    tokens = torch.multinomial(q, 1, generator=generator).squeeze(-1).tolist() if n else []
    return proposal(tokens, DenseDistributions(q)), DenseDistributions(p)


def proposal(tokens, distributions) -> Proposal:
    n = len(tokens)
    return Proposal(tuple(tokens), distributions, (0,) * n, (0,) * n, (math.nan,) * n)


def batch(draft: Proposal, p: DenseDistributions) -> Batch:
    v = p.width
    q = draft.distributions.dense(v) if len(draft) else p.probs.new_zeros(0, v)
    tokens = torch.tensor([draft.tokens], dtype=torch.long).reshape(1, -1)
    return Batch(p.probs[None], q[None], tokens, torch.tensor([len(draft)]))


def facts(verdict):
    emitted = verdict.emitted
    return (verdict.num_accepted, emitted.tokens, emitted.owners, emitted.origins)


# --- one verdict, whatever the road and the company


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
@pytest.mark.parametrize("road", ["reference", "batch"])
def test_frequencies_match_the_law(rule, road):
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
    count = 3000
    if road == "batch":
        rng = [PhiloxRng(1, i) for i in range(count)]
        verdicts = verify_batch(get(rule), [draft] * count, [p] * count, rng)
    else:
        die = PhiloxRng(2)
        count = 1000
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


def test_naive_follows_up_with_real_rows():
    """`complete` on dense laws and dice: the first three tokens are the target's (χ², 10⁻⁶)."""
    q, p = models("random", 2, seed=38)
    above = chain([q, p], ["naive"], [3])
    count, die = 4000, PhiloxRng(5)

    def table(model, texts):
        return DenseDistributions(torch.stack([model.distribution(text) for text in texts]))

    seen: dict[tuple[int, ...], int] = {}
    rows_asked = 0
    for _ in range(count):
        tokens: tuple[int, ...] = ()
        for _ in range(3):
            tokens += tuple(draw(table(q, [tokens]).probs, die.take(1)))
        texts = [tokens[:i] for i in range(4)]
        draft = Proposal(tokens, table(q, texts[:3]), (0,) * 3, (0,) * 3, (math.nan,) * 3)
        verdict = verify_batch(above.rule, [draft], [table(p, texts)], [die])[0]
        coroutine, answer = above.rule.complete(above, (), draft, verdict), None
        while True:
            try:
                request = coroutine.send(answer)
            except StopIteration as stop:
                verdict = stop.value
                break
            if isinstance(request, Row):
                answer = table(request.node.model, [request.pending])
                rows_asked += 1
            else:
                answer = draw(request.distribution.probs, die.take(1))[0]
        emitted = verdict.emitted
        assert len(emitted) == len(emitted.distributions) >= 3
        seen[emitted.tokens[:3]] = seen.get(emitted.tokens[:3], 0) + 1
    assert rows_asked > 0
    expected = model_law(p, 3) * count
    statistic = sum((seen.get(t, 0) - e) ** 2 / e for t, e in np.ndenumerate(expected))
    assert expected.min() > 5
    assert stats.chi2.sf(statistic, expected.size - 1) > 1e-6


# --- optimality


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [1, 2])
def test_block_is_optimal(seed, n):
    """No lossless one-draft rule keeps more: the LP over every valid one-round coupling.

    Unknowns: f(x, τ), the mass of draft x stopped at τ; g(s, y), the mass that emits prefix s and
    then y, whatever the draft was. Σ_τ f = q(x); Σ_y g(s, y) = Σ_{x ⊃ s} f(x, |s|); and the output,
    continued from p, is p: Σ_k g(z^k, z_{k+1}) p(z_{k+2..}) = p(z).
    """
    from itertools import product

    q, p = models("random", 2, seed=seed)

    def chance(model, text, start=0):
        out = 1.0
        for i in range(start, len(text)):
            out *= float(model.distribution(text[:i])[text[i]])
        return out

    drafts = list(product(range(V), repeat=n))
    f = {(x, t): i for i, (x, t) in enumerate(product(drafts, range(n + 1)))}
    g = {}
    for k in range(n + 1):
        for text in product(range(V), repeat=k + 1):
            g[text] = len(f) + len(g)
    left, right = [], []

    def equation(terms, value):
        row = np.zeros(len(f) + len(g))
        for index, factor in terms:
            row[index] += factor
        left.append(row)
        right.append(value)

    for x in drafts:
        equation([(f[x, t], 1.0) for t in range(n + 1)], chance(q, x))
    for k in range(n + 1):
        for s in product(range(V), repeat=k):
            emitted = [(g[(*s, y)], 1.0) for y in range(V)]
            equation(emitted + [(f[x, k], -1.0) for x in drafts if x[:k] == s], 0.0)
    for z in product(range(V), repeat=n + 1):
        terms = [(g[z[: k + 1]], chance(p, z, k + 1)) for k in range(n + 1)]
        equation(terms, chance(p, z))
    objective = np.zeros(len(f) + len(g))
    for (_, t), index in f.items():
        objective[index] = -t
    best = linprog(objective, A_eq=np.array(left), b_eq=np.array(right), method="highs")
    assert best.success
    block = certify_tree(chain([q, p], ["block"], [n]), V)
    assert block.expected_accepted == pytest.approx(-best.fun, abs=1e-9)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("tokenwise", 10 / 9), ("block", 11 / 9), ("uncapped", 12 / 9), ("naive", 4 / 3)],
)
def test_worked_example(rule, expected):
    """P4's example: i.i.d. p = (1/3, 2/3), q = (2/3, 1/3), two tokens; naive attains the bound."""
    q = TabularModel(2, 0, {"": [2 / 3, 1 / 3]})
    p = TabularModel(2, 0, {"": [1 / 3, 2 / 3]})
    certificate = certify_tree(chain([q, p], [rule], [2]), 2)
    assert certificate.expected_accepted == pytest.approx(expected, abs=1e-12)


def _ideal(q, p, n):
    """Σ_i Σ_{x^i} min(p(x^i), q(x^i)), the most any coupling of n tokens can keep."""
    total, p_joint, q_joint, texts = 0.0, np.ones(1), np.ones(1), [()]
    for _ in range(n):
        p_joint = np.concatenate(
            [w * p.distribution(t).numpy() for w, t in zip(p_joint, texts, strict=True)]
        )
        q_joint = np.concatenate(
            [w * q.distribution(t).numpy() for w, t in zip(q_joint, texts, strict=True)]
        )
        texts = [(*t, x) for t in texts for x in range(V)]
        total += float(np.minimum(p_joint, q_joint).sum())
    return total


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_naive_reaches_the_ideal_and_still_loses(family, n):
    q, p = models(family, 2, seed=11)
    kept, per_call = {}, {}
    for rule in ("tokenwise", "block", "naive"):
        certificate = certify_tree(chain([q, p], [rule], [n]), V)
        kept[rule] = certificate.expected_accepted
        per_call[rule] = certificate.expected_tokens_per_target_call
    assert kept["naive"] == pytest.approx(_ideal(q, p, n), abs=1e-12)
    assert kept["tokenwise"] <= kept["block"] + 1e-12
    assert kept["block"] <= kept["naive"] + 1e-12
    assert per_call["naive"] <= per_call["block"] + 1e-12


# --- floating point


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
        verify(get(rule), draft, p, FixedDice(*[u] * 7)),
        verify_batch(get(rule), [draft], [p], [FixedDice(*[u] * 7)])[0],
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
            verify(get(rule), proposal(tokens, q), p, FixedDice(0.0, 0.0, 0.0)),
            verify_batch(get(rule), [proposal(tokens, q)], [p], [FixedDice(0.0, 0.0, 0.0)])[0],
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
    verdict = verify_batch(get(rule), [draft], [p], [FixedDice(0.9, 0.9, 0.5)])[0]
    assert verdict.num_accepted == 2


def test_rejection_where_the_residual_vanishes_emits_from_p():
    """Rounding may reject where p = q; then p itself is what is left."""
    p = DenseDistributions(torch.tensor([[0.3, 0.7], [0.5, 0.5]], dtype=torch.float64))
    slightly = torch.tensor([[0.3, 0.7]], dtype=torch.float64) * (1 + 1e-15)
    draft = proposal((0,), DenseDistributions(slightly))
    u = 1.0 - 2**-53
    for verdict in (
        verify(get("tokenwise"), draft, p, FixedDice(u, 0.9)),
        verify_batch(get("tokenwise"), [draft], [p], [FixedDice(u, 0.9)])[0],
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


def test_ratios_keep_nan():
    assert capped_ratio(math.nan, 0.5) != capped_ratio(math.nan, 0.5)
    assert prefix_weights([math.nan, 0.5], [0.5, 0.5]) == [1.0, 0.0, 0.0]


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


# --- laws of all kinds, widths, greedy decoding


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


class NoDice:
    def take(self, n):
        raise AssertionError("greedy decoding spends no dice")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bonus", [True, False])
def test_greedy_keeps_equal_choices(rule, bonus):
    for tokens, choices, tau in (
        ((1, 2, 3), (1, 2, 3, 4), 3),
        ((1, 2, 3), (1, 0, 3, 4), 1),
        ((), (4,), 0),
    ):
        draft, p = proposal(tokens, OneHotDistributions(tokens)), OneHotDistributions(choices)
        verdict = verify_batch(get(rule), [draft], [p], [NoDice()], bonus=bonus)[0]
        dropped = not bonus and tau == len(tokens) > 0
        assert verdict.num_accepted == tau
        assert verdict.emitted.tokens == choices[: tau + (not dropped)]
        assert verdict.emitted.distributions.ids == verdict.emitted.tokens
        if rule != "naive":
            reference = verify(get(rule), draft, p, PhiloxRng(0), bonus=bonus)
            assert reference.emitted.tokens == verdict.emitted.tokens


def test_greedy_leading_reads_scores_and_breaks_ties_by_id():
    scores = torch.tensor([[5.0, 4.0, 4.0, 1.0], [0.0, 2.0, 2.0, 2.0], [3.0, 2.0, 1.0, 0.0]])
    rule = get("leading", top_m=2)
    choices = OneHotDistributions((0, 1, 0))
    for tokens, tau in (((1, 2), 2), ((2, 1), 0), ((1, 3), 1), ((0, 1), 2)):
        draft = proposal(tokens, OneHotDistributions(tokens))
        verdict = verify_batch(rule, [draft], [choices], [NoDice()], [scores])[0]
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
        verdict = verify_batch(rule, [draft], [choices], [NoDice()], [scores])[0]
        assert verdict.num_accepted == tau
        assert verdict.emitted.tokens == (*tokens[:tau], choices.ids[tau])


@settings(max_examples=60, deadline=None)
@given(
    top_m=st.integers(1, 9),
    widths=st.tuples(st.integers(2, 7), st.integers(2, 7)),
    hot=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_leaders_depend_neither_on_the_road_nor_on_the_draft(top_m, widths, hot, seed):
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
