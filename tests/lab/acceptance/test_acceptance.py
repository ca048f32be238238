"""SpecDec++: a draft ends where its model predicts a rejection; the law is the target's."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from acceptance_cases import SHIPPED, hierarchy, level
from engine_law import Neighbour, engine_law
from tabular_cases import V, chain
from tabular_cases import models as tables

from hierspec.cli import run
from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify
from hierspec.core.windows import Counting, FixedWindow
from hierspec.exact.certificate import certify_tree
from hierspec.exact.tables import PredictingTable
from hierspec.lm.base import Query
from hierspec.lm.tabular import TabularModel
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate
from hierspec_lab.acceptance import files as acceptance_head
from hierspec_lab.acceptance.window import AcceptanceWindow

TIGHT = 1e-9
PROMPT = [1, 0]
NEIGHBOUR = Neighbour((0, 2, 1), SamplingParams(temperature=0.6))


def predicting(table: TabularModel, seed: int = 0) -> PredictingTable:
    """The same laws, with predictions that have nothing to do with them."""
    generator = torch.Generator().manual_seed(seed)
    kept = {key: torch.rand(V, generator=generator).tolist() for key in table.table()}
    return PredictingTable(V, table.order, table.table(), kept)


def test_a_draft_ends_once_a_rejection_is_likely_enough() -> None:
    window = AcceptanceWindow(threshold=0.5)
    assert not window.stops((0.8,), ())
    assert not window.stops((0.8, 0.7), ())
    assert window.stops((0.8, 0.7, 0.8), ()), "0.448 is left"
    assert not window.stops((0.8, math.nan), ()), "what was not asked for stops nothing"
    assert Counting(window).stops((0.4,), Counting(window).init())


# -- the law --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["random", "peaked", "zeros"])
@pytest.mark.parametrize("rules", [["tokenwise"], ["block"], ["tokenwise", "block"]])
def test_any_prediction_keeps_the_law(family, rules) -> None:
    small, *larger = tables(family, len(rules) + 1, seed=3)
    budgets, windows = [3, 2][: len(rules)], [AcceptanceWindow(0.6), FixedWindow()][: len(rules)]
    root = chain([predicting(small), *larger], rules, budgets, windows)
    validate(root)
    certificate = certify_tree(root, V)
    assert certificate.tv < TIGHT
    fixed = certify_tree(chain([small, *larger], rules, budgets), V)
    assert certificate.expected_accepted < fixed.expected_accepted, "some drafts end early"


def test_a_running_count_changes_nothing() -> None:
    small, target = tables("random", 2, seed=5)
    root = chain([predicting(small), target], ["block"], [3], [Counting(AcceptanceWindow(0.5))])
    assert certify_tree(root, V).tv < TIGHT


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("neighbours", [(), (NEIGHBOUR,)])
def test_the_engine_writes_by_the_same_law(rule, neighbours) -> None:
    small, target = tables("random", 2, seed=7)
    leaf = Draft(0, "draft", predicting(small), 3, AcceptanceWindow(0.6))
    root = Verify(1, "target", target, 1, get(rule), leaf)
    found = engine_law(root, PROMPT, 3, neighbours=neighbours)
    distance = 0.0
    for text in itertools.product(range(V), repeat=3):
        chances = [float(target.distribution([*PROMPT, *text[:i]])[text[i]]) for i in range(3)]
        distance += abs(found.get(text, 0.0) - math.prod(chances))
    assert distance / 2 < TIGHT


def test_a_case_may_have_predictions(tmp_path, capsys) -> None:
    draft = {"order": 0, "table": {"": [0.5, 0.3, 0.2]}, "acceptance": {"": [0.9, 0.1, 0.5]}}
    target = {"order": 0, "table": {"": [0.2, 0.5, 0.3]}}
    window = {"kind": "acceptance", "threshold": 0.6}
    levels = [{"num_speculative_tokens": 3, "window": window}, {"verify": "block"}]
    case = {"vocab": 3, "models": [draft, target], "levels": levels}
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case))
    assert run(["certify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tv"] < TIGHT
    del draft["acceptance"]
    path.write_text(json.dumps(case))
    assert run(["certify", str(path)]) != 0
    assert "predicts no acceptance" in capsys.readouterr().err


# -- real models ----------------------------------------------------------------------------------


def test_predictions_are_the_heads_on_the_states_after_the_tokens() -> None:
    model = hierarchy(level()).root.below.model
    ids, slots = list(range(40, 60)), [model.open() for _ in range(3)]
    contexts = [Context(ids[:n]) for n in (5, 12, 20)]
    model.score([Query(slot, c, len(c)) for slot, c in zip(slots, contexts, strict=True)])
    longer = [context.with_tokens([7, 9]) for context in contexts]
    queries = [Query(slot, c, len(c)) for slot, c in zip(slots, longer, strict=True)]
    found = model.acceptance(queries)
    rows = model.score(queries)  # what the prediction has computed is used again
    fresh = [Query(model.open(), context, len(context)) for context in longer]
    assert torch.allclose(rows, model.score(fresh), atol=1e-4)
    places = [(q.slot, q.context, len(q.context) - 1, len(q.context)) for q in fresh]
    states = model.trunk.hidden_states(places, [model.exit_layer])
    head = acceptance_head.load(acceptance_head.read(SHIPPED))
    assert found == pytest.approx(head(torch.cat(states)).sigmoid().tolist(), abs=1e-4)
    assert max(found) - min(found) > 1e-3, "it looks at the text"


def test_greedy_text_is_the_targets_and_drafts_differ_in_length() -> None:
    prompts = ["def add(a, b):\n", "class Queue:\n    def __init__(self):\n", "import os\n"]
    plain = hierarchy().generate_batch(prompts, max_new_tokens=32)
    found = hierarchy(level()).generate_batch(prompts, max_new_tokens=32)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    drafts = found[0].levels[0]
    assert 1 < drafts["num_draft_tokens"] / sum(result.target_calls for result in found) < 8
    alone = hierarchy(level()).generate(prompts[1], max_new_tokens=32)
    assert alone.token_ids == plain[1].token_ids
    longer = hierarchy(level(threshold=0.98)).generate(prompts[1], max_new_tokens=32)
    key = "num_draft_tokens"
    assert longer.levels[0][key] > alone.levels[0][key]


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    prompts = ["def add(a, b):\n", "import os\n"]
    options = {"max_new_tokens": 24, "temperature": 1.0, "seed": [3, 4]}
    results = hierarchy(level()).generate_batch(prompts, **options)
    alone = hierarchy(level()).generate(prompts[1], **{**options, "seed": 4})
    assert alone.token_ids == results[1].token_ids
