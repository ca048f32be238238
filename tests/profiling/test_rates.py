"""How much of real drafts survives, against enumeration, and where drafts begin."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from profiling_cases import random_tables, tables

from hierspec import TargetConfig
from hierspec.core.distributions import DenseDistributions, OneHotDistributions
from hierspec.core.proposals import Proposal
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.profiling import agreement, curves, rates, rounds
from hierspec.profiling.candidates import load, parse
from hierspec.profiling.rounds import DraftingSettings
from hierspec.verifiers import registry as verifiers
from hierspec.verifiers.multi_draft import outcomes


def test_survival_of_a_draft_by_both_rules():
    q = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4], [0.1, 0.8, 0.1]], dtype=torch.float64)
    p = torch.tensor(
        [[0.2, 0.4, 0.4], [0.6, 0.2, 0.2], [0.05, 0.9, 0.05], [1, 0, 0]], dtype=torch.float64
    )
    draft = Proposal((0, 0, 1), DenseDistributions(q))
    tokenwise, block = rates.survival(draft, DenseDistributions(p), 5)
    np.testing.assert_allclose(tokenwise, [1, 0.4, 0.4, 0.4, 0, 0])
    np.testing.assert_allclose(block, [1, 0.4, min(1, 0.4 * 3), 1, 0, 0])
    tokenwise, block = rates.survival(
        Proposal((1, 2), OneHotDistributions((1, 2))), DenseDistributions(p), 2
    )
    np.testing.assert_allclose(tokenwise, [1, 0.4, 0.08])
    np.testing.assert_allclose(block, [1, 0.4, 0.08])
    empty = Proposal()
    for curve in rates.survival(empty, DenseDistributions(p[:1]), 2):
        np.testing.assert_array_equal(curve, [1, 0, 0])


def test_survival_in_expectation_is_the_worked_example():
    """MATH §1: 10/9 tokens are expected tokenwise, 11/9 by the block rule."""
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    rows = [DenseDistributions(torch.tensor(np.tile(law, (3, 1)))) for law in (p, q)]
    expected = np.zeros(2)
    for x in itertools.product(range(2), repeat=2):
        draft = Proposal(x, rows[1].rows(0, 2))
        expected += q[list(x)].prod() * np.array(
            [curve[1:].sum() for curve in rates.survival(draft, rows[0], 2)]
        )
    np.testing.assert_allclose(expected, [10 / 9, 11 / 9])


def exact_curves(q, p, last, length):
    """Survival by both rules of a draft of order-1 tables after a token, by enumeration."""
    total = np.zeros((2, length + 1))
    for x in itertools.product(range(q.vocab_size), repeat=length):
        before = (last, *x[:-1])
        distributions = [torch.stack([model.distribution([b]) for b in before]) for model in (q, p)]
        draft = Proposal(x, DenseDistributions(distributions[0]))
        weight = float(distributions[0][range(length), x].prod())
        total += weight * np.stack(
            rates.survival(draft, DenseDistributions(distributions[1]), length)
        )
    return total


def test_survival_of_real_drafts_is_within_its_error(monkeypatch):
    """Curves from drafts against enumeration, given the tokens that the drafts follow.

    Residuals have mean 0; 12 numbers at 4.5 standard errors: a false failure in 12 000 seeds.
    """
    found = random_tables(3)
    pool, seen = tables(*found), []
    scored = rounds.distributions_after

    def noting(pool, number, sequences, contexts, back):
        if number == 2:
            seen.extend(
                context.tokens()[len(context) - n - 1]
                for context, n in zip(contexts, back, strict=True)
            )
        return scored(pool, number, sequences, contexts, back)

    many = DraftingSettings(places=6, rounds=8, max_budget=3, temperature=1.0, seed=11)
    prompts = [[i % 4, 1] for i in range(10)]
    texts = rates.continuations(pool, prompts, 40, many)
    monkeypatch.setattr(rates, "distributions_after", noting)
    drafts = rates.follow_drafts(pool, 0, [1], texts, [2] * 10, many)
    assert len(seen) == len(drafts.lengths) == 10 * 6 * 8
    for verifier in (1, 2):
        table = {c: exact_curves(found[0], found[verifier], c, 3) for c in range(4)}
        for rule, rows in enumerate((drafts.tokenwise[verifier], drafts.block[verifier])):
            residuals = np.stack(rows) - np.stack([table[c][rule] for c in seen])
            error = residuals.std(0)[1:] / len(seen) ** 0.5
            assert (abs(residuals.mean(0)[1:]) < 4.5 * error).all()


def test_survival_of_several_drafts_is_within_its_error():
    """What a tree of two drafts keeps, against enumeration of drafts and tests (order 0: one law).

    Two numbers at 4.5 standard errors: a false failure in 70 000 seeds.
    """
    q, p = random_tables(2, vocab=3, order=0)
    pool = tables(q, p)
    pool = replace(pool, members=(replace_candidate(pool.members[0]), pool.members[1]))
    many = DraftingSettings(places=6, rounds=16, max_budget=2, temperature=1.0, seed=5)
    texts = rates.continuations(pool, [[i % 3, 1] for i in range(10)], 60, many)
    drafts = rates.follow_drafts(pool, 0, [], texts, [2] * 10, many)
    found = np.stack(drafts.block[1])
    assert found.shape == (10 * 6 * 16, 3)
    np.testing.assert_array_equal(found, np.stack(drafts.tokenwise[1]))
    laws = [DenseDistributions(model.distribution([0]).expand(3, -1)) for model in (q, p)]
    expected = np.zeros(3)
    for x in itertools.product(range(3), repeat=4):
        two = [Proposal(part, laws[0].rows(0, 2)) for part in (x[:2], x[2:])]
        chance = float(laws[0].probs[0][list(x)].prod())
        for likely, stop in outcomes(verifiers.get("traversal"), two, [laws[1]] * 2):
            expected[: stop.num_accepted + 1] += chance * likely
    error = found.std(0)[1:] / len(found) ** 0.5
    assert (abs(found.mean(0) - expected)[1:] < 4.5 * error).all()
    single = tables(q, p)
    alone = np.stack(rates.follow_drafts(single, 0, [], texts, [2] * 10, many).block[1])
    assert expected[1] > alone.mean(0)[1] + 0.02


def replace_candidate(member):
    """The member with two drafts at once."""
    return replace(member, candidate=parse(f"{member.name},num_drafts=2"))


def test_survival_of_independent_tokens_is_geometric():
    """Tables without memory: α^m. 3 numbers at 4.5 standard errors: one seed in 50 000 fails."""
    found = random_tables(2, order=0)
    pool = tables(*found)
    many = DraftingSettings(places=4, rounds=10, max_budget=3, temperature=1.0, seed=5)
    texts = rates.continuations(pool, [[0], [1], [2]] * 4, 12, many)
    rows = np.stack(rates.follow_drafts(pool, 0, [], texts, [1] * 12, many).tokenwise[1])
    alpha = float(torch.minimum(found[0].distribution([]), found[1].distribution([])).sum())
    error = rows.std(0)[1:] / len(rows) ** 0.5
    assert (abs(rows.mean(0)[1:] - alpha ** np.arange(1, 4)) < 4.5 * error).all()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_survival_on_texts_is_that_of_real_drafts(temperature):
    """Means of both against each other, by both rules: 6 numbers at 4.5 standard errors."""
    pool = tables(*random_tables(2, vocab=6, order=2, seed=8))
    many = DraftingSettings(places=20, rounds=4, max_budget=3, temperature=temperature, seed=4)
    starts = [2] * 60
    texts = rates.continuations(pool, [[i % 6, i // 6 % 6] for i in range(60)], 60, many)
    *_, scores = agreement.agreements(pool, texts, starts, [len(text) for text in texts], many)
    found = rates.follow_texts(pool, 0, [], texts, scores, many)
    real = rates.follow_drafts(pool, 0, [], texts, starts, many)
    for ours, theirs in ((found.tokenwise[1], real.tokenwise[1]), (found.block[1], real.block[1])):
        ours, theirs = np.stack(ours), np.stack(theirs)
        assert (np.diff(ours, axis=1) <= 1e-9).all()
        # Drafts from neighbouring places share tokens: a text counts as its length over 4.
        error = (ours.var(0) * 4 / len(ours) + theirs.var(0) / len(theirs) * 4) ** 0.5
        assert (abs(ours.mean(0) - theirs.mean(0))[1:] <= 4.5 * error[1:] + 1e-9).all()
        assert 0 < ours.mean(0)[1] < 1


def test_what_a_look_up_copies_on_texts():
    pool = tables(*random_tables(2, order=0))
    look_up = replace(pool.members[0], model=PromptLookup(1, 2), candidate=parse("prompt-lookup"))
    pool = replace(pool, members=(look_up, pool.members[1]))
    text = [0, 1, 2, 0, 1, 2, 0, 1, 3, 3, 3]
    drafting = DraftingSettings(places=2, rounds=1, max_budget=2, temperature=0.0)
    *_, scores = agreement.agreements(pool, [text], [3], [len(text)], drafting)
    scores[0].probabilities[1][:] = 1.0
    lengths, copied = agreement.copied(look_up.model, text, scores[0], 2)
    assert copied.sum(1).tolist()[:5] == [0, 2, 2, 2, 1]
    assert (lengths >= copied.sum(1)).all()
    drafts = rates.follow_texts(pool, 0, [], [text], scores, drafting)
    assert drafts.lengths
    np.testing.assert_array_equal(drafts.block[1], drafts.tokenwise[1])


def test_greedy_drafts_survive_or_do_not():
    pool = tables(*random_tables(2, seed=2))
    greedy = DraftingSettings(places=3, rounds=2, max_budget=4, temperature=0.0)
    texts = rates.continuations(pool, [[0, 1], [2, 3], [1, 1]], 20, greedy)
    assert texts == rates.continuations(pool, [[0, 1], [2, 3], [1, 1]], 20, greedy)
    drafts = rates.follow_drafts(pool, 0, [], texts, [2] * 3, greedy)
    rows = np.stack(drafts.tokenwise[1])
    assert set(rows.ravel().tolist()) <= {0.0, 1.0}
    np.testing.assert_array_equal(rows, np.stack(drafts.block[1]))
    assert (np.diff(rows) <= 0).all()


def test_drafts_begin_at_places_spread_along_the_texts(monkeypatch):
    pool, seen = tables(*random_tables(2)), []
    scored = rounds.distributions_after

    def noting(pool, number, sequences, contexts, back):
        seen.extend(
            context.tokens()[: len(context) - n] for context, n in zip(contexts, back, strict=True)
        )
        return scored(pool, number, sequences, contexts, back)

    few = DraftingSettings(places=3, rounds=1, max_budget=2, temperature=1.0)
    texts = rates.continuations(pool, [[0, 1], [2]], 30, few)
    monkeypatch.setattr(rates, "distributions_after", noting)
    drafts = rates.follow_drafts(pool, 0, [], texts, [2, 1], few)
    assert sorted(drafts.places) == [(text, place) for text in (0, 1) for place in range(3)]
    for (text, place), before in zip(drafts.places, seen, strict=True):
        at = (2, 1)[text] + 10 * place
        assert before[:at] == texts[text][:at]
        assert 1 <= len(before) - at <= 3  # after the round that is not counted


def test_places_of_texts_of_several_lengths():
    """A text that ended early has few places or none; each is drafted at where it lies."""
    plan_ = DraftingSettings(places=2, rounds=3, max_budget=2, temperature=0.0)
    found = random_tables(2, vocab=5)
    pool = tables(*found)
    prompts = [[0, 1], [2], [3, 3, 4]]
    texts = rates.continuations(pool, prompts, 20, plan_)
    texts = [texts[0][:3], texts[1], texts[2][:9]]
    starts = [len(prompt) for prompt in prompts]
    drafts = rates.follow_drafts(pool, 0, [], texts, starts, plan_)
    positions = plan_.place_positions([1, 20, 6])
    assert positions == [[0], [3, 8, 12, 17], [1]]
    wanted = {(i, at) for i, own in enumerate(positions) for at in range(len(own))}
    assert sorted(drafts.places) == sorted([*wanted] * 3)
    _, ease, _ = agreement.agreements(pool, texts, starts, [len(text) for text in texts], plan_)
    kinds = agreement.classes(ease, plan_, 2)
    assert [len(own) for own in kinds] == [1, 4, 1]
    (pair,) = curves.pairs(0, pool, drafts, kinds, 0)
    assert pair.drafts == 18


def test_a_class_of_text_in_which_no_draft_begins_is_as_all_are():
    found = random_tables(2, vocab=5)
    pool = tables(*found)
    drafts = rates.FollowedDrafts(
        places=[(0, 0), (1, 0)],
        lengths=[1, 1],
        signals=[(), ()],
        tokenwise={1: [np.array([1.0, 0.5]), np.array([1.0, 0.7])]},
        block={1: [np.array([1.0, 0.5]), np.array([1.0, 0.7])]},
    )
    (pair,) = curves.pairs(0, pool, drafts, [[2, 1], [0], [3], []], 0)
    assert [part.block[1] for part in pair.classes] == [0.7, 0.6, 0.5, 0.6]


def test_the_target_s_texts_end_where_it_ends_them(tiny_family, monkeypatch):
    """What a target writes past its end no request gets, so no draft begins there."""
    prompts = [[1, 2, 3], [4, 5]]
    names = ["prompt-lookup", tiny_family["draft"]]
    pool = load(TargetConfig(model=tiny_family["target"]), [parse(name) for name in names])
    plan_ = DraftingSettings(places=3, rounds=4, max_budget=2, temperature=0.0)
    whole = rates.continuations(pool, prompts, 12, plan_)
    end = whole[0][7]
    plan_ = replace(plan_, eos_ids=frozenset({end}))
    texts = rates.continuations(pool, prompts, 12, plan_)
    for prompt, text, uncut in zip(prompts, texts, whole, strict=True):
        start = len(prompt)
        at = uncut.index(end, start) if end in uncut[start:] else len(uncut) - 1
        assert text == uncut[: at + 1]
    begins = []

    class Begins(rates._SurvivalObserver):
        def on_verify(self, checks):
            begins.extend(
                list(task.sequence.tokens[task.sequence.prompt_length :]) for task in checks.tasks
            )
            super().on_verify(checks)

    monkeypatch.setattr(rates, "_SurvivalObserver", Begins)
    for number in range(2):
        drafts = rates.follow_drafts(pool, number, [], texts, [3, 2], plan_)
        assert len(drafts.places) == 6 * 4
    assert begins
    assert not any(end in tokens for tokens in begins)


def test_texts_too_many_for_one_batch_give_the_same_drafts(monkeypatch):
    pool = tables(*random_tables(2))
    few = DraftingSettings(places=2, rounds=2, max_budget=3, temperature=1.0)
    prompts = [[i % 4] for i in range(5)]
    runs = []
    for most in (2**24, 2 * 4 * 4):  # entries of two texts: 4 rows of 4
        monkeypatch.setattr(rounds, "MAX_ENTRIES", most)
        texts = rates.continuations(pool, prompts, 9, few)
        drafts = rates.follow_drafts(pool, 0, [], texts, [1] * 5, few)
        order = sorted(range(len(drafts.places)), key=lambda n: drafts.places[n])
        runs.append((texts, [drafts.places[n] for n in order],
                     [drafts.tokenwise[1][n].tolist() for n in order]))  # fmt: skip
    assert runs[0] == runs[1]
    assert len(rounds.batches(5, 4 * 4)) == 3
