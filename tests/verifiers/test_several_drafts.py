"""Rules for several drafts of one place: lossless by enumeration, and what they keep."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from fakes.randomness import FixedUniforms
from installed import LAB
from optimal_acceptance import optimal_acceptance
from tabular_cases import FAMILIES, pair
from tabular_cases import models as family_models
from tabular_cases import several as tree
from wrong_rules import CountsRepeats, Forgets, Published, SkipsNone

from hierspec import certify
from hierspec.core.distributions import DenseDistributions
from hierspec.core.nodes import Concatenate, Draft, Verify
from hierspec.core.proposals import Proposal
from hierspec.core.windows import EntropyWindow
from hierspec.exact.certificate import certify_tree
from hierspec.exact.output import model_law
from hierspec.verifiers.multi_draft import outcomes, verify_drafts
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate

RULES = ["rrs", "rrs-without-replacement", "block-rrs", "traversal"]
RULES += ["induced-block"] * LAB
TIGHT = 1e-12
# (k, n, V): everything up to three of each that is enumerated in a moment.
SIZES = [(k, n, V) for V in (2, 3) for k in (1, 2, 3) for n in (1, 2, 3) if V ** (k * n) <= 1000]


@pytest.mark.parametrize("kind", ["random", "zeros"])
@pytest.mark.parametrize(("k", "n", "V"), SIZES)
def test_lossless_and_blocks_keep_no_fewer(k, n, V, kind):
    q, p = pair(V, 1, 100 * V + 10 * k + n, kind)
    kept = {}
    for rule in RULES:
        certificate = certify_tree(tree(q, p, rule, k, n), V)
        assert certificate.conclusive
        assert certificate.tv < TIGHT
        kept[rule] = certificate.expected_accepted
    assert kept["block-rrs"] >= kept["rrs"] - TIGHT
    assert kept["traversal"] >= kept["block-rrs"] - TIGHT
    if k == 1 and LAB:
        assert kept["induced-block"] == pytest.approx(kept["block-rrs"], abs=TIGHT)


@pytest.mark.parametrize("kind", ["random", "zeros"])
@pytest.mark.parametrize(("k", "V"), [(1, 5), (2, 4), (3, 3), (8, 2)])
def test_no_rule_keeps_one_token_more_often_than_the_optimum(k, V, kind):
    """The optimum by all sets of tokens; every rule by all lists of drafts."""
    q, p = (model.distribution(()) for model in pair(V, 0, 7 * V + k, kind))
    optimum = optimal_acceptance(p, q, k)
    sets = itertools.product((0.0, 1.0), repeat=V)
    by_sets = [
        float(chosen @ p) + 1.0 - float(chosen @ q) ** k for chosen in map(p.new_tensor, sets)
    ]
    assert optimum == pytest.approx(min(by_sets), abs=TIGHT)
    if k == 1:
        assert optimum == pytest.approx(float(torch.minimum(p, q).sum()), abs=TIGHT)
    rows, row = DenseDistributions(torch.stack([p, p])), DenseDistributions(q[None])
    for rule in set(RULES) - {"rrs-without-replacement"}:
        kept = 0.0
        for tokens in itertools.product(range(V), repeat=k):
            chance = float(torch.stack([q[token] for token in tokens]).prod())
            if not chance:
                continue
            drafts = [Proposal((token,), row, (0,), (0,), (math.nan,)) for token in tokens]
            ends = outcomes(get(rule), drafts, [rows] * k)
            kept += chance * sum(share * end.num_accepted for share, end in ends)
        assert kept <= optimum + TIGHT


def one_round(rule, q, p, k, n):
    """One round's text, continued by the target's law to n + 1 tokens: [V, …]; and E[τ].

    Against the pure function, with drafts enumerated here and laws that the runtime uses.
    """
    V = p.vocab_size
    joint = np.zeros((V,) * (n + 1))
    expected = 0.0

    def rows(model, tokens, count):
        return DenseDistributions(
            torch.stack([model.distribution(tokens[:i]) for i in range(count)])
        )

    single = []
    for tokens in np.ndindex(*(V,) * n):
        distributions = rows(q, tokens, n)
        chance = float(np.prod([distributions.prob(i, x) for i, x in enumerate(tokens)]))
        if chance > 0.0:
            whose = (0,) * n
            draft = Proposal(tokens, distributions, whose, whose, (float("nan"),) * n)
            single.append((chance, draft, rows(p, tokens, n + 1)))
    for numbers in np.ndindex(*(len(single),) * k):
        drafts = [single[i][1] for i in numbers]
        chance = float(np.prod([single[i][0] for i in numbers]))
        for share, stop in outcomes(rule, drafts, [single[i][2] for i in numbers]):
            kept = drafts[stop.draft].tokens[: stop.num_accepted]
            expected += chance * share * stop.num_accepted
            for y, mass in enumerate((stop.distribution / stop.distribution.sum()).tolist()):
                rest = n - stop.num_accepted
                after = continued(p, (*kept, y), rest)
                joint[(*kept, y)] += chance * share * mass * after
    return joint, expected


def continued(model, context, count):
    """The model's law of ``count`` more tokens, [V, …]."""
    if count == 0:
        return np.ones(())
    law = model.distribution(context).numpy()
    return np.stack([law[y] * continued(model, (*context, y), count - 1) for y in range(len(law))])


@pytest.mark.parametrize(("k", "n", "V"), [(2, 2, 3), (3, 2, 2), (2, 3, 2), (1, 3, 3)])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "rrs-without-replacement"])
def test_the_pure_rule_alone(rule, k, n, V):
    """Round by round, without the engine; laws that hang on the whole draft (order n)."""
    q, p = pair(V, n, 7 * k + n)
    joint, expected = one_round(get(rule), q, p, k, n)
    assert np.abs(joint - model_law(p, n + 1)).sum() / 2 < TIGHT
    certificate = certify_tree(tree(q, p, rule, k, n), V, horizon=n + 1)
    assert expected == pytest.approx(certificate.expected_accepted, abs=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", RULES)
def test_families_the_cut_at_the_end_and_no_bonus(rule, family):
    q, p = family_models(family, 2, seed=3)
    assert certify_tree(tree(q, p, rule, 2, 2), 3, 5, cut_at_horizon=True).tv < TIGHT
    assert certify_tree(tree(q, p, rule, 2, 2, bonus=False), 3).tv < TIGHT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("above", ["tokenwise", "block", "block-rrs"])
def test_below_another_level(rule, above):
    """Several drafts at the bottom of a hierarchy: the middle level hands up its own law."""
    small, mid, top = family_models("random", 3, seed=6)
    middle = dataclasses.replace(tree(small, mid, rule, 2, 1), budget=2)
    root = Verify(2, "top", top, 1, get(above), middle)
    validate(root)
    assert certify_tree(root, 3).tv < TIGHT


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [1, 3])
def test_one_draft_is_the_one_draft_rule(n, family):
    q, p = family_models(family, 2, seed=8)
    for rule, single_rule in zip(
        RULES, [*["tokenwise"] * 2, *["block"] * (len(RULES) - 2)], strict=True
    ):
        found = certify_tree(tree(q, p, rule, 1, n), 3)
        single = certify_tree(tree(q, p, single_rule, 1, n), 3)
        assert np.array_equal(found.output, single.output)
        assert found.expected_accepted == single.expected_accepted
        # … and the general form, which a single draft does not take, says the same.
        if rule != "rrs-without-replacement":
            _, expected = one_round(get(rule), q, p, 1, n)
            assert expected == pytest.approx(single.expected_accepted, abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_more_drafts_keep_more(rule):
    q, p = family_models("random", 2, seed=12)
    kept = [certify_tree(tree(q, p, rule, k, 2), 3).expected_accepted for k in (1, 2, 3)]
    assert kept[0] < kept[1] < kept[2]


def test_first_tokens_that_use_up_the_vocabulary_always_keep_one():
    q, p = pair(3, 1, 4)
    certificate = certify_tree(tree(q, p, "rrs-without-replacement", 3, 1), 3)
    assert certificate.expected_accepted == pytest.approx(1.0, abs=1e-12)


# --- the published form, on exhibit


def test_the_published_form_is_lossy():
    q, p = pair(3, 1, 24)
    sound = certify_tree(tree(q, p, Published(False, False), 2, 2), 3)
    mended = certify_tree(tree(q, p, "block-rrs", 2, 2), 3)
    assert np.allclose(sound.output, mended.output, rtol=0, atol=1e-15)
    assert sound.tv < TIGHT
    for slips in [(True, False), (False, True)]:
        assert certify_tree(tree(q, p, Published(*slips), 2, 2), 3).tv > 1e-3


def test_drafts_of_another_beginning_must_be_skipped():
    q, p = pair(3, 1, 21)
    assert certify_tree(tree(q, p, SkipsNone(), 2, 2), 3).tv > 1e-3


def test_the_residual_must_be_carried_from_candidate_to_candidate():
    q, p = pair(3, 1, 22)
    assert certify_tree(tree(q, p, "rrs", 2, 1), 3).tv < TIGHT
    assert certify_tree(tree(q, p, Forgets(), 2, 1), 3).tv > 1e-3


def test_a_repeat_counts_at_its_own_place():
    q, p = pair(3, 0, 26)
    assert certify_tree(tree(q, p, "traversal", 3, 1), 3).tv < TIGHT
    assert certify_tree(tree(q, p, CountsRepeats(), 2, 1), 3).tv < TIGHT, "the same with two"
    assert certify_tree(tree(q, p, CountsRepeats(), 3, 1), 3).tv > 1e-3


# --- one verdict


def test_laws_of_another_width_and_precision():
    """A drafter may know fewer tokens than the target, or more."""
    p = DenseDistributions(torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]))
    own = ((0,), (0,), (float("nan"),))
    narrow = Proposal((0,), DenseDistributions(torch.tensor([[0.9, 0.1]])), *own)
    wide = Proposal((3,), DenseDistributions(torch.tensor([[0.2, 0.2, 0.2, 0.4]])), *own)
    for rule in ("rrs", "block-rrs"):
        law = torch.zeros(3, dtype=torch.float64)
        for chance, stop in outcomes(get(rule), [wide, narrow], [p, p]):
            row = stop.distribution / stop.distribution.sum()
            if stop.num_accepted:
                assert stop.draft == 1
                row = torch.eye(3, dtype=torch.float64)[0]
            law += chance * row
        # Given these two drafts; what is checked is a law, with all of 3's mass gone.
        assert float(law.sum()) == pytest.approx(1.0, abs=1e-12)
        assert float(law[2]) > 0.5


def test_a_verdict_names_its_draft_and_reports_the_targets_laws():
    """Draft 0 is rejected at once, draft 1 has its first token kept and its second rejected."""
    rows = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.1, 0.9], [1.0, 0.0, 0.0]], dtype=torch.float64)
    other = torch.tensor([[0.25, 0.75, 0.0], [0.2, 0.8, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    flat = DenseDistributions(torch.tensor([[0.5, 0.5, 0.0]] * 2, dtype=torch.float64))
    nan = (float("nan"),) * 2
    drafts = [Proposal(tokens, flat, (0, 0), (0, 0), nan) for tokens in [(0, 0), (1, 1)]]
    p = [DenseDistributions(other), DenseDistributions(rows)]
    # h: 0.25/0.5; then f = (0, 1, 0) against 0.5, kept; then 0.1/0.5; residual (0, 0, 1).
    verdict, number = verify_drafts(
        get("rrs"), drafts, p, FixedUniforms(0.6, 0.99, 0.3, 0.5), index=4
    )
    assert number == 1
    assert verdict.num_accepted == 1
    emitted = verdict.emitted
    assert emitted.tokens == (1, 2)
    assert emitted.owners == (4, 4)
    assert emitted.origins == (0, 4)
    assert torch.equal(emitted.distributions.dense(3), rows[:2])
    assert verify_drafts(get("rrs"), drafts, p, FixedUniforms(0.4, 0.3, 0.1))[1] == 0


# --- what is refused, and cases


def test_soundness():
    small, mid, top = family_models("random", 3)
    leaf = Draft(0, "leaf", small, 2, num_drafts=2)
    with pytest.raises(ValueError, match="'leaf' makes 2 drafts at once; verifier 'tokenwise'"):
        validate(Verify(1, "top", top, 1, get("tokenwise"), leaf))
    middle = Verify(1, "mid", mid, 1, get("tokenwise"), leaf)
    with pytest.raises(ValueError, match="'tokenwise' at level 'mid'"):
        validate(Verify(2, "top", top, 1, get("rrs"), middle))
    with pytest.raises(ValueError, match="part of a concatenation"):
        validate(Verify(2, "top", top, 1, get("rrs"), Concatenate(1, "both", (leaf,))))
    part = Verify(1, "mid", mid, 1, get("rrs"), leaf)  # verified inside its part
    validate(Verify(3, "top", top, 1, get("block"), Concatenate(2, "both", (part,))))
    adaptive = dataclasses.replace(leaf, window=EntropyWindow())
    with pytest.raises(ValueError, match="window must be fixed"):
        validate(Verify(1, "top", top, 1, get("rrs"), adaptive))


def test_cases():
    tables = [{"order": 1, "table": model.table()} for model in pair(3, 1, 2)]
    levels = [{"num_speculative_tokens": 2, "num_drafts": 2}, {"verify": "block-rrs"}]
    case = {"vocab": 3, "models": tables, "levels": levels}
    several = certify(case)
    assert several.passed()
    levels[0]["num_drafts"] = 1
    assert certify(case).expected_accepted < several.expected_accepted
    levels[0]["num_drafts"] = 2
    levels[1]["verify"] = "block"
    with pytest.raises(ValueError, match="makes 2 drafts at once"):
        certify(case)
