"""A level without a bonus checks a draft without its last token, as MATH §4 prices it."""

from __future__ import annotations

from typing import Any

import pytest
from work import Work

from hierspec import Hierarchy
from hierspec.lm.trunk.trunk import ExitModel

PROMPTS = [[5, 9, 11, 3]]
DRAFT, MIDDLE = 1, 2  # layers of the two exits; the target has 3


def generate(target: str, bonus: bool, temperature: float, monkeypatch: Any) -> tuple[Any, Any]:
    """Texts, and per check of the middle level: drafted tokens of all rows, passes over layers."""
    checks: list[tuple[int, list[int]]] = []
    score = ExitModel.score

    def watched(model: ExitModel, queries: Any) -> Any:
        before = list(done.tokens)
        scores = score(model, queries)
        if model.exit_layer == MIDDLE:
            run = [n - m for n, m in zip(done.tokens, before, strict=True)]
            checks.append((sum(query.num_rows for query in queries), run))
        return scores

    exits = [
        {"method": "early_exit", "exit_layer": DRAFT, "num_speculative_tokens": 2},
        {"method": "early_exit", "exit_layer": MIDDLE, "num_speculative_tokens": 3, "bonus": bonus},
    ]
    hierarchy = Hierarchy({"target": {"model": target, "dtype": "float64"}, "levels": exits})
    done = Work(hierarchy.root.model.trunk)
    with monkeypatch.context() as patch:
        patch.setattr(ExitModel, "score", watched)
        results = hierarchy.generate_batch(
            PROMPTS, max_new_tokens=40, temperature=temperature, seed=3
        )
    return [list(result.token_ids) for result in results], checks


def test_the_last_drafted_token_goes_through_no_layer(tiny_family, monkeypatch):
    """With a bonus each check runs the shared lower layers for it, without one for no token."""
    target = tiny_family["target"]
    plain = Hierarchy({"target": {"model": target, "dtype": "float64"}, "levels": []})
    expected = [list(r.token_ids) for r in plain.generate_batch(PROMPTS, max_new_tokens=40)]
    for bonus in (True, False):
        texts, checks = generate(target, bonus, 0.0, monkeypatch)
        assert texts == expected
        assert checks
        lower = [run[0] > 0 for _, run in checks]
        share = sum(lower) / len(lower)
        # Where little room is left there is no draft, and the text's last token is run for once.
        assert share == 1 if bonus else share < 0.3, (bonus, lower)


@pytest.mark.parametrize("bonus", [True, False])
def test_sampled_texts_do_not_change(tiny_family, bonus, monkeypatch):
    """The row that is left out decides nothing: what is in it may be anything."""
    target = tiny_family["target"]
    one, _ = generate(target, bonus, 1.0, monkeypatch)
    monkeypatch.setattr("hierspec.engine.responder.pick", scrambled)
    other, _ = generate(target, bonus, 1.0, monkeypatch)
    assert one == other


def scrambled(scores: Any, rows: list[int]) -> Any:
    """The rows, where one is repeated shuffled over the vocabulary."""
    picked = scores[rows].clone()
    for i in range(1, len(rows)):
        if rows[i] == rows[i - 1]:
            picked[i] = picked[i].flip(0)
    return picked
