"""Leniency: lossy as a last rule, sound between drafters, since it says what it makes of them."""

from __future__ import annotations

import pytest
import torch
from engine_law import engine_law
from tabular_cases import FAMILIES, V, chain, models

from hierspec import Hierarchy
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError
from hierspec.exact.certificate import certify_tree
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate
from hierspec_lab.rules.lenient import Lenient

TIGHT = 1e-9


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lenience", [1.0, 1.5, 4.0])
@pytest.mark.parametrize("final", ["tokenwise", "block"])
def test_leniency_is_sound_in_the_middle(final, lenience, family) -> None:
    root = chain(models(family, 3, seed=5), [Lenient(lenience), final], [2, 2])
    validate(root)
    assert certify_tree(root, V).tv < TIGHT


def test_lenient_levels_over_lenient_levels() -> None:
    root = chain(models("random", 4, seed=8), [Lenient(2.0), Lenient(1.3), "block"], [2, 1, 1])
    validate(root)
    assert certify_tree(root, V).tv < TIGHT


def test_the_engine_writes_by_the_same_law() -> None:
    root = chain(models("random", 3, seed=6), [Lenient(2.0), "tokenwise"], [2, 2])
    target = root.model
    for text, chance in engine_law(root, [1], 2).items():
        own = float(target.distribution([1])[text[0]] * target.distribution([1, text[0]])[text[1]])
        assert chance == pytest.approx(own, abs=TIGHT)


def test_as_the_last_rule_it_is_lossy_and_refused() -> None:
    root = chain(models("random", 2, seed=5), [Lenient(2.0)], [2])
    with pytest.raises(HierspecError, match=r"'lenient' as the target's rule.*allow_lossy"):
        validate(root)
    validate(root, allow_lossy=True)
    assert certify_tree(root, V).tv > 0.01
    validate(chain(models("random", 2, seed=5), [Lenient(1.0)], [2]))


def test_more_is_kept_the_more_lenient_it_is() -> None:
    kept = [
        certify_tree(chain(models("random", 2, seed=5), [rule], [3]), V).expected_accepted
        for rule in ("tokenwise", Lenient(1.0), Lenient(2.0), Lenient(50.0))
    ]
    assert kept[0] == pytest.approx(kept[1], abs=TIGHT)
    assert kept[1] < kept[2] < kept[3]


def test_what_it_reports_is_what_it_hands_up() -> None:
    """By hand: p = (.2, .8), q = (.6, .4), twice as lenient: h = (2/3, 1), and e is all on 1."""
    table = TabularModel(2, 0, {"": [0.2, 0.8]})
    draft = TabularModel(2, 0, {"": [0.6, 0.4]})
    root = chain([draft, table], [Lenient(2.0)], [1])
    law = certify_tree(root, 2, horizon=1).law
    assert law[(0,)] == pytest.approx(0.4)
    assert law[(1,)] == pytest.approx(0.6)


def test_greedy_it_keeps_what_comes_near_the_best() -> None:
    rule, scores = Lenient(2.0), torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.2, 0.3]]).log()
    assert rule.greedy((1,), (0, 0), scores) == 1
    assert rule.greedy((2,), (0, 0), scores) == 0
    assert Lenient(1.0).greedy((1,), (0, 0), None) == 0
    assert rule.greedy((9,), (0, 0), scores) == 0, "a token that the verifier cannot say"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lenience": 0.5}, "at least 1"),
        ({"verify": "lenient", "lenience": 2.0}, "allow_lossy"),
    ],
)
def test_mistakes_are_one_line(change, message) -> None:
    levels = [{"method": "prompt_lookup", "num_speculative_tokens": 2}]
    with pytest.raises(HierspecError, match=message):
        Hierarchy.from_config({"target": "zoo:small", "levels": levels, **change})
    with pytest.raises(HierspecError, match="no option"):
        get("tokenwise", lenience=2.0)


def test_files_keep_the_lenience() -> None:
    levels = [
        {"method": "prompt_lookup", "num_speculative_tokens": 2},
        {"method": "draft_model", "model": "zoo:small", "num_speculative_tokens": 3,
         "verify": "lenient", "lenience": 3.0},
    ]  # fmt: skip
    config = HierarchyConfig.from_dict({"target": "zoo:trunk", "levels": levels})
    assert config.to_dict()["levels"] == levels
    assert config.levels[1].lenience == 3.0
