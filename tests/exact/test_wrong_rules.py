"""The certificate has teeth: mistakes seen in real code, each written down and each caught.

A rule that passes `test_certificate.py` is only as good as the enumeration that judges it, so here
are rules that must fail [MATH §1, §2]. A few random models are tried: one may hide a mistake by
luck.
"""

from __future__ import annotations

import pytest
from installed import rules
from tabular_cases import V, chain, models
from wrong_rules import (
    AcceptsTooGladly,
    CutsAfterLookingAhead,
    DropsATokenForItsValue,
    EmitsFromFullP,
    EndsAtThePadding,
    HandsUpAcceptedOnly,
    HandsUpTheDraftersLaw,
    HandsUpTheResidual,
    KeepsTheLikeliest,
    OneUniformForAll,
    ResidualOfTheUncappedRatio,
    ResidualWithoutWeight,
    StopsAtTheFirstFailure,
    interleaved_as_printed,
)

from hierspec.exact.certificate import certify_tree

CAUGHT = 1e-3


def caught(make, lost=CAUGHT) -> bool:
    return any(certify_tree(make(seed), V).tv > lost for seed in range(3))


@pytest.mark.parametrize(
    "rule",
    [
        *rules("uncapped", "leading"),
        *rules("leading", top_m=2),
        StopsAtTheFirstFailure(),
        OneUniformForAll(),
        ResidualWithoutWeight(),
        ResidualOfTheUncappedRatio(),
        EndsAtThePadding(),
        EmitsFromFullP(),
        AcceptsTooGladly(),
    ],
    ids=lambda rule: f"{type(rule).__name__}{getattr(rule, 'top_m', '')}",
)
def test_a_wrong_rule_is_caught(rule):
    assert caught(lambda seed: chain(models("random", 2, seed=seed), [rule], [3]))


@pytest.mark.parametrize(
    "rule",
    [
        HandsUpTheDraftersLaw(),
        HandsUpAcceptedOnly(),
        HandsUpTheResidual(),
        DropsATokenForItsValue(),
        CutsAfterLookingAhead(),
        EmitsFromFullP(),
        KeepsTheLikeliest(),
        *rules("uncapped"),
    ],
    ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize("final", ["tokenwise", "block"])
def test_a_wrong_level_is_caught(rule, final):
    """Below an exact rule: what a level hands up must have the law it says."""
    assert caught(lambda seed: chain(models("random", 3, seed=seed), [rule, final], [2, 2]))


def test_interleaving_as_printed_is_caught():
    assert caught(interleaved_as_printed, 0.01)


def test_a_short_horizon_hides_it():
    """Why a certificate may be inconclusive: one token of `uncapped` looks perfect."""
    root = chain(models("random", 2, seed=0), ["uncapped"], [2])
    assert certify_tree(root, V, 1).tv < 1e-12
    assert not certify_tree(root, V, 1).conclusive
    assert not certify_tree(root, V, 3).conclusive
    assert certify_tree(root, V, 4).conclusive
    assert certify_tree(root, V).tv > CAUGHT
