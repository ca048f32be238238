"""Agreement of models against laws computed here, and classes of text with similar agreement."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from profiling_cases import random_tables, tables

from hierspec.profiling import agreement
from hierspec.profiling.rounds import DraftingSettings


def test_acceptance_is_one_minus_total_variation():
    found = random_tables(3)
    pool = tables(*found, temperatures=[None, 0.5])
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 4, 40).tolist() for _ in range(3)]
    starts, stops = [5, 1, 17], [40, 30, 18]
    agreed, ease, _ = agreement.agreements(
        pool, texts, starts, stops, DraftingSettings(2, 1, 3, 1.0)
    )

    def law(number, context):
        p = found[number].distribution(context).numpy()
        p = p ** (2.0 if number == 1 else 1.0)
        return p / p.sum()

    places = [
        (n, t)
        for n, (low, high) in enumerate(zip(starts, stops, strict=True))
        for t in range(low, high)
    ]
    for i, k in itertools.combinations(range(3), 2):
        rows = [(law(i, texts[n][:t]), law(k, texts[n][:t])) for n, t in places]
        assert agreed[i, k].positions == len(places)
        shared = np.mean([np.minimum(*pq).sum() for pq in rows])
        assert agreed[i, k].acceptance == pytest.approx(shared, abs=1e-5)
        same = np.mean([q.argmax() == p.argmax() for q, p in rows])
        assert agreed[i, k].equal_argmax == pytest.approx(same, abs=1e-5)
    means = [
        [np.minimum(law(i, texts[1][:t]), law(2, texts[1][:t])).sum() for i in (0, 1)]
        for t in range(1, 30)
    ]
    np.testing.assert_allclose(ease[1], means)


def test_greedy_agreement_is_the_share_of_equal_argmaxes():
    found = random_tables(2, order=2, seed=2)
    (text,) = texts = [np.random.default_rng(1).integers(0, 4, 60).tolist()]
    agreed, *_ = agreement.agreements(
        tables(*found), texts, [1], [60], DraftingSettings(2, 1, 3, 0.0)
    )
    seen = agreed[0, 1]
    choices = [
        [int(model.distribution(text[:t]).argmax()) for model in found] for t in range(1, 60)
    ]
    assert seen.acceptance == seen.equal_argmax == round(np.mean([q == p for q, p in choices]), 5)
    assert 0 < seen.equal_argmax < 1
    assert seen.positions == 59


def test_agreement_of_mixed_laws():
    """A model that is greedy by its own temperature, against one that is not."""
    found = random_tables(2)
    texts = [np.random.default_rng(1).integers(0, 4, 30).tolist()]
    for temperatures, number in (([0], 0), ([None], None)):
        pool = tables(*found, temperatures=temperatures)
        agreed, *_ = agreement.agreements(pool, texts, [1], [30], DraftingSettings(2, 1, 3, 1.0))
        rows = [
            (found[0].distribution(texts[0][:t]), found[1].distribution(texts[0][:t]))
            for t in range(1, 30)
        ]
        want = (
            sum(float(p[q.argmax()]) for q, p in rows)
            if number == 0
            else sum(float(torch.minimum(q, p).sum()) for q, p in rows)
        )
        assert agreed[0, 1].acceptance == pytest.approx(want / len(rows), abs=1e-5)


def test_classes_hold_equally_many_places_alike_in_what_differs_most():
    plan_ = DraftingSettings(places=4, rounds=2, max_budget=3, temperature=1.0)
    random = np.random.default_rng(0)
    ease = [np.stack([random.random(22), np.full(22, 0.5)], 1) for _ in range(5)]
    kinds = np.array(agreement.classes(ease, plan_, 3))
    assert kinds.shape == (5, 4)
    counts = np.bincount(kinds.ravel())
    assert len(counts) == 3
    assert counts.max() - counts.min() <= 1
    means = np.array(
        [[row[22 * at // 4 : 22 * (at + 1) // 4, 0].mean() for at in range(4)] for row in ease]
    )
    for c in range(2):  # only the first candidate tells places apart
        assert means[kinds == c].max() < means[kinds == c + 1].min()
    few = agreement.classes([np.array([[0.5], [0.1]])], DraftingSettings(2, 1, 3, 1.0), 5)
    assert few == [[1, 0]]  # no class without a place


def test_classes_tell_apart_what_is_easy_for_different_candidates():
    plan_ = DraftingSettings(places=2, rounds=1, max_budget=3, temperature=1.0)
    one, other, none = [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]
    ease = [np.array([one, one, other, other]), np.array([none, none, [1.0, 1.0], [1.0, 1.0]])]
    kinds = agreement.classes(ease, plan_, 4)
    assert sorted(np.ravel(kinds)) == [0, 1, 2, 3]
