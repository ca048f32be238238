"""Drafts that end where no exit is sure: exact, as how long one is follows from the context of each
token; enumerated through the runtime, and so is what the length must not follow from.
"""

from __future__ import annotations

import pytest
from engine_cases import BATCHES, PROMPT, SAMPLING, TIGHT
from engine_law import engine_law
from engine_paths import distance
from exit_tables import DecliningTabularExit
from tabular_cases import FAMILIES, V, chain, models

from hierspec.core.nodes import Draft, Verify
from hierspec.core.windows import ConfidenceWindow, FixedWindow
from hierspec.exact.certificate import certify_tree
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate
from hierspec_lab.methods.adaptive_exit.declining import DecliningDrafter

FLOOR = 0.65


WINDOWS = {"fixed": FixedWindow(), "confidence": ConfidenceWindow(floor=0.4)}


def declining(family="random", seed=2):
    """An adaptive exit that declines, and a target."""
    first, deeper, target = models(family, 3, seed=seed)
    return DecliningTabularExit([first, deeper], FLOOR, "exits"), target


def wills(model):
    """Whether it drafts a token, after texts of up to one token."""
    found = set()
    for text in [PROMPT, *([*PROMPT, a] for a in range(V))]:
        found.add(not model.is_unsure_after(text))
    return found


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_a_draft_that_ends_where_no_exit_is_sure(rule, window, batch):
    model, target = declining()
    assert wills(model) == {False, True}, "some tokens are left to the target"
    leaf = Draft(0, "exits", model, 2, WINDOWS[window])
    root = chain([target], [rule], [], below=leaf)
    for temperature in (1.0, 0.8):
        params = SamplingParams(temperature=temperature)
        found = engine_law(root, PROMPT, 3, params, BATCHES[batch])
        assert distance(found, target, PROMPT, 3, params) < TIGHT


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rules", [["tokenwise"], ["block"], ["leading", "block"]])
def test_exact_by_enumeration_of_the_rules(family, rules):
    first, deeper, three, target = models(family, 4, seed=9)
    model = DecliningTabularExit([first, deeper], FLOOR, "exits")
    tables = [model, three, target] if len(rules) == 2 else [model, target]
    root = chain(tables, rules, [3] if len(rules) == 1 else [2, 3])
    validate(root)
    assert certify_tree(root, V).tv < 1e-12


def test_an_end_by_the_drawn_token_itself_is_lossy_and_seen(monkeypatch):
    """What a draft must not do: drop a token because its own probability is low."""
    whole = DecliningDrafter.draft

    def picky(self, calls):
        found = whole(self, calls)
        for i, one in enumerate(found.proposals):
            sure = [one.distributions.prob(j, t) >= FLOOR for j, t in enumerate(one.tokens)]
            cut = sure.index(False) if False in sure else len(sure)
            found.proposals[i] = one.truncated(cut)
        return found

    model, target = declining()
    root = chain([target], ["tokenwise"], [], below=Draft(0, "exits", model, 2))
    monkeypatch.setattr(DecliningDrafter, "draft", picky)
    found = engine_law(root, PROMPT, 3, SAMPLING)
    assert distance(found, target, PROMPT, 3) > 1e-3


def test_rules_that_need_a_length_or_several_drafts_are_refused():
    model, target = declining()
    with pytest.raises(ValueError, match="depends on its tokens"):
        validate(chain([target], ["naive"], [], below=Draft(0, "exits", model, 2)))
    leaf = Draft(0, "exits", model, 2, num_drafts=2)
    with pytest.raises(ValueError, match="each ends where no exit is sure"):
        validate(Verify(1, "target", target, 1, get("rrs"), leaf.for_rule(get("rrs"))))
