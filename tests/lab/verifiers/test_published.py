"""Other people's verifiers: enumerated, and told apart."""

from __future__ import annotations

import functools
import importlib
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_law import outcome_law
from race_law import agreement, joint_law
from scipy.integrate import quad
from scipy.stats import chi2
from tabular_cases import models

from hierspec.errors import HierspecError
from hierspec.lm.tabular import TabularModel
from hierspec.verifiers.registry import get
from hierspec_lab.verifiers.adapters import (
    LENGTHS,
    distance,
    examine,
    load_adapter,
    published,
    replace_torch_random,
    round_law,
    table_row,
)
from hierspec_lab.verifiers.published import VERIFIERS, by_rule

PUBLISHED = {verifier.name: verifier for verifier in VERIFIERS}
LOSSY = {
    "transformers-ensemble",
    "vllm-grammar",
    "vllm-cpu-temperature",
    "sglang-cpu",
    "branch-released",
    "sequential-capped",
    "typical-acceptance",
}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "published-verifiers.md"


@functools.cache
def finding(name):
    """Return what the page's command finds of a verifier."""
    return PUBLISHED[name].examine()


@functools.cache
def printed():
    """Return the cells of the page's table, by verifier, and its heads."""
    block = PAGE.read_text(encoding="utf-8").split("<!-- table -->")[1]
    lines = block.split("<!-- end of table -->")[0].strip().splitlines()
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return heads, {row[0].split("`")[1]: row for row in rows}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_verifiers(name):
    found = finding(name)
    assert found.lossless == (name not in LOSSY)
    if name in LOSSY:
        assert max(found.tv.values()) > 1e-3
    assert all(1.0 < found.tokens[n] < n + 1 + 1e-9 for n in found.tokens)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_page_prints_what_enumeration_finds(name):
    """Every distance to its last digit; the other cells to the letter."""
    own, row = table_row(PUBLISHED[name], finding(name)), printed()[1][name]
    num = len(LENGTHS)
    assert row[:-num] == own[:-num]
    for said, recomputed in zip(row[-num:], own[-num:], strict=True):
        if "<" in said or "<" in recomputed:
            assert said == recomputed
        else:
            assert float(said) == pytest.approx(float(recomputed), abs=1.001e-4)


def test_a_forbidden_token_is_followed_by_the_residual_and_not_by_the_target():
    """Where the target forbids what was drafted, a draw from the target itself is another law."""
    p, q = (TabularModel(3, 0, {"": row}) for row in ([0.5, 0.5, 0.0], [0.6, 0.1, 0.3]))
    laws = {name: round_law(PUBLISHED[name].verify, p, q, 1) for name in ("vllm", "vllm-grammar")}
    first = {
        name: [sum(prob for text, prob in law.items() if text[0] == x) for x in range(3)]
        for name, law in laws.items()
    }
    assert first["vllm"] == pytest.approx([0.5, 0.5, 0.0], abs=1e-12)
    assert first["vllm-grammar"] == pytest.approx([0.65, 0.35, 0.0], abs=1e-12)
    without_forbidden = examine(PUBLISHED["vllm-grammar"].verify, forbidding_seeds=0)
    assert without_forbidden.lossless, "what only pairs that forbid tokens can show"


def test_the_page_lists_them_all():
    heads, rows = printed()
    assert list(rows) == list(PUBLISHED) == list(published())
    assert heads[-len(LENGTHS) :] == [f"distance, n = {n}" for n in LENGTHS]


@pytest.mark.parametrize("family", ["random", "peaked", "zeros"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_released_branch_rule_is_uncapped(family, n):
    """Two derivations of one law: P4's ratios and divergences, block's weights without the cap."""
    q, p = models(family, 2, seed=n)
    law = round_law(PUBLISHED["branch-released"].verify, p, q, n)
    ours = round_law(functools.partial(by_rule, "uncapped"), p, q, n)
    for text in law.keys() | ours.keys():
        assert law.get(text, 0.0) == pytest.approx(ours.get(text, 0.0), abs=1e-12)
    block = round_law(PUBLISHED["block"].verify, p, q, n)
    far = sum(abs(law.get(text, 0.0) - share) for text, share in block.items())
    if n == 1:
        assert far < 1e-12, "one token has no ratio before it that would need a cap"
    elif family == "random":
        assert far > 1e-3


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("name", ["standard", "capped"])
def test_sequential_steps_are_the_packages(name, n):
    """Its step drafts and verifies in one function: the law of both, over the same models."""
    modules = {"standard": "standard_sd", "capped": "capped_hsd"}
    functions = {"standard": "standard_speculative_step", "capped": "capped_hsd_step"}
    pytest.importorskip("seqspecdecod", reason="pip install sequential-speculative-decoding")
    step = getattr(importlib.import_module(f"seqspecdecod.{modules[name]}"), functions[name])
    q, p = models("random", 2, seed=4)

    def scored(model):
        def scores(ids):  # of a text after one token that says nothing
            text = ids[0, 1:].tolist()
            rows = [model.distribution(tuple(text[:i])) for i in range(len(text) + 1)]
            return SimpleNamespace(logits=torch.stack(rows).log()[None])

        return scores

    def program(rng):
        with replace_torch_random(rng):
            start = torch.zeros(1, 1, dtype=torch.int64)
            ids, _, _ = step(scored(q), scored(p), start, n, 1.0, 1.0)
        return tuple(ids[0, 1:].tolist())

    own, law = outcome_law(program), round_law(PUBLISHED[f"sequential-{name}"].verify, p, q, n)
    for text in law.keys() | own.keys():
        assert law.get(text, 0.0) == pytest.approx(own.get(text, 0.0), abs=1e-9)


def residuals():
    """Return two places' (p − q)₊ [2, 4], not normalised; the second's draft is one-hot."""
    p = torch.tensor([[0.4, 0.1, 0.3, 0.2], [0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    q = torch.tensor([[0.1, 0.6, 0.2, 0.1], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    return (p - q).clamp(min=0.0)


def test_a_race_draws_what_stands_for_it():
    """vLLM's recovered token, the winner of argmax row(x) / e(x), has law row / Σ row.

    In closed form, and by the integral over the winner's own number e of the chance e^(−e a) that
    every other e(z) is larger than e row(z)/row(x), a being the sum of these ratios.
    """
    rows = residuals().numpy()
    for row in rows:
        law = row / row.sum()
        np.testing.assert_allclose(agreement(row), law, atol=1e-14)
        for x in np.flatnonzero(row):
            others = (row.sum() - row[x]) / row[x]
            won, _ = quad(lambda e, a=others: math.exp(-e) * math.exp(-e * a), 0.0, math.inf)
            assert won == pytest.approx(law[x], abs=1e-9)
    # One row of noise serves all places of a round; each of them still draws from its own.
    joint = joint_law(*(row / row.sum() for row in rows))
    np.testing.assert_allclose(joint.sum(1), rows[0] / rows[0].sum(), atol=1e-12)
    np.testing.assert_allclose(joint.sum(0), rows[1] / rows[1].sum(), atol=1e-12)


def test_a_race_of_torchs_exponential_numbers():
    """χ² over 200,000 races; a sound one fails once in a million seeds, and the seed is fixed."""
    generator, num = torch.Generator().manual_seed(0), 200_000
    noise = torch.empty(num, 4).exponential_(generator=generator)
    for row in residuals():
        counts = (row / noise).argmax(1).bincount(minlength=4).double()
        expected = num * row / row.sum()
        likely = expected > 0
        assert counts[~likely].sum() == 0
        off = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
        assert float(off) < chi2.isf(1e-6, int(likely.sum()) - 1)


def test_a_round_has_the_interpreters_law():
    """The harness against the rules' own probabilities."""
    q, p = models("random", 2, seed=3)
    law = round_law(PUBLISHED["block"].verify, p, q, 2)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(law, p, 3) < 1e-12
    assert get("block").exact
    tokens = {n: examine(PUBLISHED[n].verify, (2,), 2).tokens[2] for n in ("block", "gpt-fast")}
    assert tokens["block"] > tokens["gpt-fast"], "no one-draft rule keeps more than block"


def test_a_name_that_is_nearly_one_gets_a_hint():
    with pytest.raises(HierspecError, match="did you mean 'transformers'"):
        load_adapter("trasformers")
