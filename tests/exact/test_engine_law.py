"""Losslessness of the engine as it runs: every path, enumerated through the runtime's own draws.

What `tests/core/test_round.py` proves of rules and windows is proved here of the code that a GPU
or a CPU runs: shortcuts, padding, recorded decisions, drafts made ahead and in chunks, draws.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_cases import (
    ALIKE,
    BATCHES,
    MULTI_DRAFT,
    PROMPT,
    SAMPLING,
    SINGLE,
    TIGHT,
    WINDOWS,
    remembered,
    requests_for_drafts,
    tv,
)
from engine_law import engine_law
from engine_paths import CHUNKS, VERIFYING, Taped, distance, like, patched
from fakes.tables import Ahead, Device, Single
from ngram_tables import bigrams
from tabular_cases import V, chain, models, output_law
from tiny_models import save_tiny

from hierspec.core.context import Context
from hierspec.core.nodes import Concatenate, Draft, Verify
from hierspec.core.windows import EntropyWindow, FixedWindow
from hierspec.drafters.prompt_lookup import PromptLookup
from hierspec.exact.interpreter import ExactInterpreter
from hierspec.lm.base import Query
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.tabular import TabularModel
from hierspec.lm.trunk.cuda_graphs import CudaGraphTrunk
from hierspec.lm.weights import from_directory
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate

# Who drafts, and under which windows: a table that cannot draft by itself is asked token by
# token; `Ahead` is asked for whole drafts, `Device` for chunks where a window reads them.
DRAFTERS = [(TabularModel, window) for window in WINDOWS]
DRAFTERS += [(Ahead, "fixed")] + [(Device, window) for window in WINDOWS]


# Every drafter on every path under one rule; under the others every drafter, and every path.
PATHS = [("short", 1), *((path, 3) for path in ("short", "padded", "blocks", "recorded"))]
CASES = [("block", *path, *drafter) for path in PATHS for drafter in DRAFTERS]
for other in ("tokenwise", "naive"):
    CASES += [(other, *path, TabularModel, "fixed") for path in PATHS[:1] + PATHS[2:]]
    CASES += [(other, "short", 3, *drafter) for drafter in DRAFTERS]


@pytest.mark.parametrize(("rule", "path", "batch", "drafter", "window"), CASES)
def test_every_path(rule, path, drafter, window, batch):
    small, target = models("random", 2, seed=0)  # such that every branch of `block` is taken
    root = chain([like(drafter, small), like(TabularModel, target)], [rule], [2], [WINDOWS[window]])
    if get(rule).fixed_length and not WINDOWS[window].fixed_length:
        with pytest.raises(ValueError, match="window"):
            validate(root)
        return
    validate(root)
    # What drafts in one request does so only for rows that are read alike.
    others = BATCHES[batch] if drafter is TabularModel or batch == 1 else ALIKE
    with requests_for_drafts() as requests:
        assert tv(root, 3, neighbours=others, path=path, states=remembered(root)) < TIGHT
    assert bool(requests) is (drafter is not TabularModel)


@pytest.mark.parametrize("family", ["peaked", "zeros", "disjoint", "equal"])
@pytest.mark.parametrize("path", VERIFYING)
@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
def test_laws_with_holes_and_equal_ones(rule, path, family):
    """Tokens that one of two laws cannot say, and residuals that vanish."""
    root = chain(models(family, 2, order=0 if family == "zeros" else 1, seed=3), [rule], [2])
    assert tv(root, 3, neighbours=BATCHES[3], path=path) < TIGHT


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("path", VERIFYING)
@pytest.mark.parametrize("rules", [["leading", "block"], ["block", "tokenwise"]])
def test_three_levels(rules, path, batch):
    """A rule that is sound in the middle only, and laws that a level reports."""
    tables = models("zeros", 3, seed=4)
    first = get(rules[0], top_m=2) if rules[0] == "leading" else rules[0]
    windows = [FixedWindow(), EntropyWindow(threshold=0.9)]
    root = chain(tables, [first, rules[1]], [1, 2], windows)
    validate(root)
    assert tv(root, 3, neighbours=BATCHES[batch], path=path) < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_rounds_may_run_over_the_end(rule):
    """Three tokens from rounds of up to three, none of them cut, and no bonus in the middle."""
    root = chain(models("random", 2, seed=3), [rule], [2])
    assert tv(root, 3, cut_at_horizon=False) < TIGHT
    root = chain(models("peaked", 3, seed=3), [rule] * 2, [1, 1], bonus=[False, True])
    assert tv(root, 3, cut_at_horizon=False) < TIGHT


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("path", ["short", "blocks"])
@pytest.mark.parametrize("rule", MULTI_DRAFT)
def test_multi_draft_rules(rule, path, batch):
    small, target = models("random", 2, seed=5)
    leaf = Draft(0, "drafts", small, 2, num_drafts=2).for_rule(get(rule))
    root = Verify(1, "target", target, 1, get(rule), leaf)
    validate(root)
    horizon = 3 if (path, batch) == ("short", 1) else 2
    assert tv(root, horizon, neighbours=BATCHES[batch], path=path) < TIGHT


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("order", ["interleaved", "horizontal"])
def test_concatenations(order, batch):
    small, mid, target = models("random", 3, seed=4)
    parts = Draft(0, "small", small, 1), Draft(1, "mid", like(Ahead, mid), 1)
    if order == "horizontal":
        parts = Draft(0, "mid", mid, 1), Draft(1, "small", small, 1, EntropyWindow(0.9))
    below = Concatenate(2, order, parts)
    root = chain([target], ["block"], [], below=below)
    assert tv(root, 3, neighbours=BATCHES[batch], path="padded" if batch > 1 else "short") < TIGHT


@pytest.mark.parametrize("path", VERIFYING)
@pytest.mark.parametrize("rule", ["tokenwise", "block", "naive"])
def test_scores_in_float32(rule, path):
    small, target = (like(Single, table) for table in models("random", 2, seed=6))
    root = chain([small, target], [rule], [2])
    for params in (SAMPLING, SamplingParams(temperature=0.7, top_k=2)):
        assert tv(root, 3, params, BATCHES[3], path) < SINGLE


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("path", VERIFYING)
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_a_draft_of_another_width(rule, path, size):
    """Narrower, it cannot say the last token; wider, its last column is cut off."""
    generator = torch.Generator().manual_seed(2)
    target = TabularModel.random(3, 1, generator)
    table = TabularModel.random(size, 0, generator)
    root = chain([table, target], [rule], [2])
    assert tv(root, 3, path=path) < TIGHT


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("path", ["short", "padded", "recorded"])
def test_prompt_lookup(path, rule, batch):
    (target,) = models("random", 1, seed=1)
    root = chain([target], [rule], [], below=Draft(0, "lookup", PromptLookup(1, 2), 2))
    assert tv(root, 4, neighbours=BATCHES[batch], path=path) < TIGHT


def test_an_ngram_table():
    target = models("random", 1, seed=7)[0]
    model = bigrams([0, 1, 2, 2, 1, 0, 0, 2, 1], V)
    for rule in ("block", "naive"):
        root = chain([model, target], [rule], [2])
        with requests_for_drafts() as requests:
            assert tv(root, 3) < SINGLE
        assert requests


@pytest.mark.parametrize("rule", ["tokenwise", "naive"])
@pytest.mark.parametrize("room", [2, 3, 4])
def test_a_draft_whose_context_is_full(rule, room):
    """It hands up less, then nothing; the target goes on alone."""
    small, target = models("random", 2, seed=3)
    root = chain([like(Ahead, small, max_length=room), target], [rule], [2])
    assert tv(root, 4, neighbours=ALIKE) < TIGHT


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny Llama over three tokens, in float64."""
    folder = tmp_path_factory.mktemp("tiny")
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    save_tiny("llama", folder, seed=3, layers=2, vocab_size=V, **ids)
    return LeanBackend(from_directory(folder), torch.float64)


@pytest.mark.parametrize(
    ("rule", "num_drafts", "kind", "batch"),
    [
        *(("block", 1, kind, 3) for kind in WINDOWS),
        *((rule, 2, "fixed", 1) for rule in MULTI_DRAFT),
        ("block", 1, "fixed", 1),
        ("traversal", 2, "fixed", 3),
    ],
)
def test_a_trunk_of_fixed_shapes(tiny, kind, rule, num_drafts, batch):
    """An early exit drafts in chunks, or trees, on what passes for a device; the target checks
    there, too."""
    trunk = CudaGraphTrunk(tiny, (1,))
    target = trunk.view()
    leaf = Draft(0, "exit", trunk.view(1), 2, WINDOWS[kind], num_drafts=num_drafts)
    root = chain([target], [rule], [], below=leaf.for_rule(get(rule)))
    horizon = 2 if num_drafts > 1 else 3
    with patched(*VERIFYING["recorded"]), patched(*CHUNKS), requests_for_drafts() as requests:
        neighbours = ALIKE if batch == 3 else ()
        found = engine_law(root, PROMPT, horizon, SAMPLING, neighbours, states=remembered(root))
    assert requests
    table = {}
    for text in [(), *((a,) for a in range(V)), *((a, b) for a in range(V) for b in range(V))]:
        (query,) = [Query(trunk.open(), Context([*PROMPT, *text]), len(PROMPT) + len(text))]
        table[text] = target.score([query])[0].softmax(-1).tolist()
        trunk.close(query.slot)
    law = lambda _, text, params, start: table[tuple(text[start:])]  # noqa: E731
    assert distance(found, target, PROMPT, horizon, row=law) < TIGHT


@pytest.mark.parametrize("path", VERIFYING)
@pytest.mark.parametrize("rule", ["uncapped", "leading"])
@pytest.mark.parametrize("window", ["fixed", "running entropy"])
def test_a_loss_is_what_enumerating_the_rules_says(rule, window, path):
    """Two enumerations that share no random numbers, cell by cell."""
    small, target = models("random", 2, seed=3)
    root = chain([small, target], [rule], [2], [WINDOWS[window]])
    with patched(*VERIFYING[path]):
        if path == "recorded":
            root.model.graphs = Taped()
        found = engine_law(root, [], 3, states=remembered(root))
    expected = output_law(ExactInterpreter(root, V), remembered(root), 3, cut_at_horizon=True)
    assert max(abs(expected[text] - found.get(text, 0.0)) for text in np.ndindex((V,) * 3)) < 1e-12
    assert distance(found, target, [], 3) > 5e-3
