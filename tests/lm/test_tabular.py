"""Tabular models: validation, laws, and the language-model contract."""

from __future__ import annotations

import pytest
import torch

from hierspec.core.context import Context
from hierspec.lm.base import LanguageModel, Query
from hierspec.lm.tabular import KINDS, TabularModel

TABLE = {"": [0.5, 0.5], "0": [1.0, 0.0], "1": [0.25, 0.75]}


def test_law_reads_the_last_tokens():
    model = TabularModel(2, 1, TABLE)
    assert model.distribution([]).tolist() == [0.5, 0.5]
    assert model.distribution([1, 0]).tolist() == [1.0, 0.0]
    assert model.distribution((0, 0, 1)).tolist() == [0.25, 0.75]
    assert model.table() == TABLE


def test_scores_are_log_probabilities_from_any_start():
    model = TabularModel(2, 1, TABLE)
    assert isinstance(model, LanguageModel)
    assert model.cache_owner is model
    scores = model.score(
        [
            Query(model.open(), Context([], ()), 0),
            Query(model.open(), Context([0], (1, 0)), 0),
            Query(model.open(), Context([0, 1]), 2),
        ]
    )
    want = [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.25, 0.75], [1.0, 0.0], [0.25, 0.75]]
    assert scores.dtype == torch.float64
    assert scores.exp().tolist() == [pytest.approx(row, abs=1e-15) for row in want]
    assert scores[2, 1] == -torch.inf


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_rows_of_a_query_equal_laws_of_prefixes(order):
    g = torch.Generator().manual_seed(order)
    model = TabularModel.random(3, order, g)
    ids = torch.randint(3, (9,), generator=g).tolist()
    for start in range(10):
        got = model.score([Query(model.open(), Context(ids[:4], tuple(ids[4:])), start)])
        want = torch.stack([model.distribution(ids[:n]) for n in range(start, 10)])
        assert torch.allclose(got.exp(), want, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_families_are_laws_and_reproducible(kind):
    make = lambda: TabularModel.random(5, 2, torch.Generator().manual_seed(7), kind)  # noqa: E731
    model = make()
    assert model.table() == make().table()
    distributions = torch.tensor(list(model.table().values()), dtype=torch.float64)
    assert (distributions.sum(1) - 1).abs().max() < 1e-12
    if kind == "zeros":
        assert (distributions == 0).any()
        assert (distributions.max(1).values > 0).all()
    if kind == "peaked":
        assert distributions.max(1).values.mean() > 0.7


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((2, 1, {"": [0.5, 0.5], "0": [1.0, 0.0]}), "lacks 1 of 3 keys: '1'"),
        ((2, 0, {"": [0.5, 0.4]}), "sums to 0.9"),
        ((2, 0, {"": [1.5, -0.5]}), "negative"),
        ((2, 0, {"": [float("nan"), 1.0]}), "negative or undefined"),
        ((2, 0, {"": [1.0]}), "must have 2 probabilities, got 1"),
        ((2, 0, {"": [0.5, 0.5], "0": [0.5, 0.5]}), "no context of order 0 meets: '0'"),
        ((2, 1, {**TABLE, "x": [0.5, 0.5]}), "separated by commas"),
        ((0, 0, {}), "positive"),
    ],
)
def test_bad_tables_are_named(args, words):
    with pytest.raises(ValueError, match=words):
        TabularModel(*args)


def test_foreign_tokens_are_named():
    with pytest.raises(ValueError, match="knows tokens 0 … 1"):
        TabularModel(2, 1, TABLE).distribution([5])
