"""How much rules keep: no lossless rule more than block, and naive all that a coupling can."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog
from tabular_cases import FAMILIES, V, chain, models

from hierspec.exact.certificate import certify_tree
from hierspec.lm.tabular import TabularModel


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [1, 2])
def test_block_is_optimal(seed, n):
    """No lossless one-draft rule keeps more: the LP over every valid one-round coupling.

    Unknowns: f(x, τ), the mass of draft x stopped at τ; g(s, y), the mass that emits prefix s and
    then y, whatever the draft was. Σ_τ f = q(x); Σ_y g(s, y) = Σ_{x ⊃ s} f(x, |s|); and the output,
    continued from p, is p: Σ_k g(z^k, z_{k+1}) p(z_{k+2..}) = p(z).
    """
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


def ideal(q, p, n):
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
    assert kept["naive"] == pytest.approx(ideal(q, p, n), abs=1e-12)
    assert kept["tokenwise"] <= kept["block"] + 1e-12
    assert kept["block"] <= kept["naive"] + 1e-12
    assert per_call["naive"] <= per_call["block"] + 1e-12
