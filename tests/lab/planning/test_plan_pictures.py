"""Pictures of plans: the files are what they say, and say what they should."""

from __future__ import annotations

import builtins
import importlib.util
import json
import re

import numpy as np
import pytest
from svg import letters

from hierspec.cli import run
from hierspec.planner.estimates import Chain, ideal
from hierspec.planner.latency import latency
from hierspec.planner.plan import PricedChain
from hierspec_lab.planning import maps
from hierspec_lab.planning.corollary import corollary
from hierspec_lab.planning.maps import (
    cost_acceptance_map,
    exits_map,
    sweep_exits,
    sweep_further_model,
)
from hierspec_lab.planning.pictures import draw_plan
from hierspec_lab.planning.plans import BoundedPlan

pytestmark = pytest.mark.usefixtures("matplotlib")
COSTS = (0.1, 2.0, 20.0)
RATES = [[None, 0.8, 0.6], [None, None, 0.9], [None] * 3]
ESTIMATES = ideal(COSTS, RATES, ["lab/tiny-Chat", "lab/mid-Chat", "lab/big-Chat"])


def choice(levels, budgets=(), **options) -> PricedChain:
    chain = Chain(levels, budgets, **options)
    return PricedChain(chain, latency(ESTIMATES, chain))


def plan(best=None, *runners_up: PricedChain) -> BoundedPlan:
    runners_up = runners_up or (choice((1, 2), (6,)), choice((0, 2), (3,)))
    best = best or choice((0, 1, 2), (4, 8))
    return BoundedPlan(ESTIMATES, best, runners_up, lower_bound=3.5, search_seconds=0.01)


def texts(path) -> str:
    return " | ".join(letters(path.read_bytes()))


def test_a_plan_shows_levels_budgets_shares_and_runners_up(tmp_path):
    best = choice((0, 1, 2), (4, 8))
    draw_plan(plan(best), tmp_path / "plan.svg")
    said = texts(tmp_path / "plan.svg")
    for name in ESTIMATES.names:
        assert name in said
    assert f"Plan: {20 / best.ms:.2f}× plain decoding" in said
    assert "drafts 4 tokens" in said
    assert "hands up at least 8" in said
    assert f"{best.latency.tokens_per_call:.2f} tokens a call" in said
    for ms in best.latency.spent:
        assert f"{100 * ms / best.ms:.0f} % of a token's time" in said
    assert "tiny 4 → mid 8 → big" in said
    assert "mid 6 → big" in said
    assert "lower bound of all chains" in said


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (choice((2,)), "speculation does not pay here"),
        (choice((0, 1, 2), (3, 2), order="interleaved"), "in turn: 3 from below, 1 from above"),
        (choice((0, 1, 2), (3, 2), order="horizontal"), "2 from above, then 3 from below"),
        (choice((0, 1, 2), (3, 4), tail=2), "at least 4 + tail of 2"),
        (choice((0, 1, 2), (3, 4), dropped_bonus=(1,)), "drops its bonus token"),
    ],
)
def test_every_kind_of_plan_can_be_drawn(best, said, tmp_path):
    draw_plan(plan(best), tmp_path / "plan.svg", unit="s")
    assert said in texts(tmp_path / "plan.svg")


def test_the_ending_says_the_format(tmp_path):
    draw_plan(plan(), tmp_path / "plan.PNG")
    assert (tmp_path / "plan.PNG").read_bytes().startswith(b"\x89PNG\r\n")
    with pytest.raises(ValueError, match=re.escape(".svg or .png")):
        draw_plan(plan(), tmp_path / "plan.jpg")
    assert not (tmp_path / "plan.jpg").exists()


def test_importing_the_pictures_does_not_import_matplotlib(monkeypatch):
    real = builtins.__import__

    def guarded(name, *args, **kwargs):
        assert not name.startswith("matplotlib"), "imported before it is needed"
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)
    for name in ("plotting.figures", "plotting.heat_map", "planning.maps", "planning.pictures"):
        spec = importlib.util.find_spec(f"hierspec_lab.{name}")
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_exits_have_the_best_budgets_of_every_pair():
    sweep = sweep_exits(ESTIMATES, {4: 0, 8: 1}, largest=4)
    assert np.isnan(sweep.values[0, 1])
    alone = [20 / choice((0, 2), (n,)).ms for n in range(1, 5)]
    assert sweep.values[0, 0] == pytest.approx(max(alone))
    pairs = {(n, m): 20 / choice((0, 1, 2), (n, m)).ms for n in range(1, 5) for m in range(1, 5)}
    assert sweep.values[1, 0] == pytest.approx(max(pairs.values()))
    assert sweep.details[1][0] == ", ".join(map(str, max(pairs, key=pairs.__getitem__)))


def test_exits_are_drawn_with_their_best_budgets(tmp_path):
    sweep = exits_map(ESTIMATES, {4: 0, 8: 1}, tmp_path / "exits.svg")
    assert sweep.details[1][0].count(",") == 1
    said = texts(tmp_path / "exits.svg")
    assert f"{sweep.values[1, 0]:.2f}" in said
    assert sweep.details[1][0] in said
    assert "draft: exit after layer" in said
    assert "Small: the best numbers of tokens, the draft's first." in said


def test_exits_must_be_models_below_the_target():
    with pytest.raises(ValueError, match="exit 8 is model 2"):
        sweep_exits(ESTIMATES, {8: 2})
    with pytest.raises(ValueError, match="no exits"):
        sweep_exits(ESTIMATES, {})


def test_a_further_model_as_in_p1_table_9(monkeypatch):
    monkeypatch.setattr(maps, "latency", corollary)  # by which the paper prices
    sweep = sweep_further_model([1.0, 64.0, 256.0], [0.0, 0.7, 0.9])
    printed = [[1.20, 1.20, 1.20], [1.34, 1.24, 1.20], [1.65, 1.39, 1.20]]
    np.testing.assert_allclose(sweep.values, printed, atol=0.0051)
    assert sweep.groups is not None
    best = [[sweep.group_names[g] for g in row] for row in sweep.groups]
    assert best == [["A-B"] * 3, ["A-B-C", "A-B-C", "A-B"], ["A-C", "A-C", "A-B"]]


def test_overshoot_handed_up_only_helps_and_the_map_names_hierarchies(tmp_path, monkeypatch):
    exact = cost_acceptance_map([1.0, 32.0], [0.5, 0.9], tmp_path / "map.svg", largest=8)
    monkeypatch.setattr(maps, "latency", corollary)
    formula = sweep_further_model([1.0, 32.0], [0.5, 0.9], largest=8)
    assert (exact.values >= formula.values - 1e-12).all()
    said = texts(tmp_path / "map.svg")
    assert "C drafts for B, and B for A" in said
    assert "C drafts for A, without B" in said
    assert "A alone" not in said  # best nowhere, so not in the legend
    note = "The target (A) costs 1024 a call, the drafter (B) 256; A accepts 50 % of B's tokens."
    assert note in " ".join(reversed(said.split(" | ")))  # lines of a text stand last first


def test_the_command_says_what_it_drew(tmp_path, capsys):
    problem, picture = tmp_path / "problem.json", tmp_path / "plan.svg"
    problem.write_text(json.dumps({"costs": [9, 10], "acceptance": [[None, 0.1], [None, None]]}))
    assert run(["plan", str(problem), "--picture", str(picture)]) == 0
    assert str(picture) in capsys.readouterr().err
    text = picture.read_text()
    assert " ;" not in text
    assert "cost a token" in text
