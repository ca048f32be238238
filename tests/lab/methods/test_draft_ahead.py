"""PEARL: drafts made while the target verifies leave the law alone, whatever the timing."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time

import pytest
from engine_law import generation_law
from loading import hierarchy_of
from tabular_cases import V, models

from hierspec import Hierarchy
from hierspec.core.nodes import Draft, Verify
from hierspec.drafters.model import ModelDrafter
from hierspec.engine import responder
from hierspec.engine.engine import Engine, EngineSettings
from hierspec.engine.generation import Generation
from hierspec.engine.request import Request
from hierspec.engine.runner import ServingRunner
from hierspec.engine.stopping import StopConditions
from hierspec.errors import HierspecError
from hierspec.exact.cases import JumpingController
from hierspec.exact.certificate import certify_tree
from hierspec.sampling.parameters import SamplingParams
from hierspec.verifiers.registry import get
from hierspec_lab.methods.draft_ahead import drafter
from hierspec_lab.methods.draft_ahead.drafter import AheadDrafter, AheadDrafts, ReservedUniforms

TIGHT = 1e-9
PROMPT = [1, 0]
PROMPTS = ["def add(a, b):\n", "class Queue:\n    def __init__(self):\n", "import os\n"]


def root(rule, seed=3, budget=2):
    small, target = models("random", 2, seed=seed)
    leaf = Draft(0, "draft", small, budget, drafter=AheadDrafter)
    return Verify(1, "target", target, 1, get(rule), leaf, bonus=False)


@pytest.fixture
def in_turn(monkeypatch):
    """One thread, so that the enumeration sees what the drafter compares; counts drafts kept."""
    used = []
    real = AheadDrafts.take

    def start(self, work):
        made = work()
        return lambda: made

    def take(*args):
        found = real(*args)
        used.append(found is not None)
        return found

    monkeypatch.setattr(AheadDrafter, "start", start)
    monkeypatch.setattr(AheadDrafts, "take", take)
    return used


@pytest.mark.parametrize("rule", ["tokenwise", "block"])
@pytest.mark.parametrize("budgets", [[[1], [3]], [[2], [1], [3]]])
def test_lengths_that_follow_what_was_kept_and_no_bonus_are_lossless(rule, budgets) -> None:
    """The description without a schedule: who drafts when is not in it."""
    plan = root(rule, budget=3)
    assert certify_tree(plan, V, controller=JumpingController(plan, budgets)).tv < TIGHT


def distance(plan, neighbours=(), tokens=4):
    """Total variation of what a generation writes from the target's law."""

    def start():
        return Generation(
            plan,
            [
                Request(
                    prompt=prompt,
                    params=SamplingParams(temperature=1.0),
                    stop=StopConditions(max_new_tokens=tokens),
                    seed=5,
                    place=place,
                )
                for place, prompt in enumerate((PROMPT, *neighbours))
            ],
        )

    found = generation_law(start)
    total = 0.0
    for text in itertools.product(range(V), repeat=tokens):
        rows = [plan.model.distribution([*PROMPT, *text[:i]]) for i in range(tokens)]
        own = math.prod(float(row[token]) for row, token in zip(rows, text, strict=True))
        total += abs(found.get(text, 0.0) - own)
    return total / 2


@pytest.mark.parametrize(("rule", "neighbours"), [("tokenwise", ()), ("block", ([2], [0, 1, 2]))])
def test_the_engine_writes_by_the_targets_law(rule, neighbours, in_turn) -> None:
    assert distance(root(rule), neighbours) < TIGHT
    assert any(in_turn), "some drafts made ahead are used"
    assert not all(in_turn), "and some are thrown away"


def test_uniforms_that_the_check_spends_too_would_show(in_turn, monkeypatch) -> None:
    def shared(rng, uniforms):
        rng.num_taken -= len(uniforms)
        return ReservedUniforms(rng, uniforms)

    monkeypatch.setattr(drafter, "ReservedUniforms", shared)
    assert distance(root("tokenwise")) > 1e-3


def hierarchy(**more):
    level = {"method": "draft_model", "model": "zoo:mid", "num_speculative_tokens": 4}
    target = {"model": "zoo:trunk", "dtype": "float32"}
    return hierarchy_of({"target": target, "levels": [{**level, **more}]})


def test_greedy_text_is_the_targets_in_batches_and_alone() -> None:
    target = {"model": "zoo:trunk", "dtype": "float32"}
    plain = hierarchy_of({"target": target}).generate_batch(PROMPTS, max_new_tokens=24)
    both = hierarchy(ahead=True)
    found = both.generate_batch(PROMPTS, max_new_tokens=24)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    assert both.generate(PROMPTS[1], max_new_tokens=24).token_ids == plain[1].token_ids


def test_a_neighbour_that_does_not_draft_leaves_the_others_their_drafts() -> None:
    """Its plan has no level below the target's, whose calls it shares."""
    runner = ServingRunner(hierarchy(ahead=True).root)

    def texts(*speculative):
        engine = Engine({"": runner}, EngineSettings(prefix_caching=False))
        stop, params = StopConditions(max_new_tokens=16), SamplingParams(temperature=1.0)
        options = {"stop": stop, "params": params, "seed": 3, "fixed_plan": True}
        requests = [Request(prompt=[5, 9, 7], speculative=own, **options) for own in speculative]
        engine.add(requests)
        while engine.has_work:
            engine.step()
        return [one.token_ids for one in requests]

    assert texts(False, True) == texts(False) + texts(True)


@pytest.mark.parametrize("late", ["draft", "target"])
def test_a_sample_does_not_depend_on_who_ends_first(late, monkeypatch) -> None:
    options = {"max_new_tokens": 16, "temperature": 1.0, "seed": 3, "repetition_penalty": 1.1}
    model = hierarchy(ahead=True)
    usual = [one.token_ids for one in model.generate_batch(PROMPTS[:2], **options)]
    real = AheadDrafter.start

    def start(self, work):
        def slow():
            time.sleep(0.02)
            return work()

        return real(self, slow if late == "draft" else work)

    def score(self, *args, own=responder.Responder._score, **options):
        time.sleep(0.02 if late == "target" else 0.0)
        return own(self, *args, **options)

    monkeypatch.setattr(AheadDrafter, "start", start)
    monkeypatch.setattr(responder.Responder, "_score", score)
    assert [one.token_ids for one in model.generate_batch(PROMPTS[:2], **options)] == usual
    assert model.generate(PROMPTS[0], **options).token_ids == usual[0]


def test_a_level_of_the_targets_own_model_goes_first_in_one_thread(monkeypatch) -> None:
    def start(self, work):
        raise AssertionError("both would write to one cache")

    monkeypatch.setattr(AheadDrafter, "start", start)
    one = hierarchy(ahead=True, model="zoo:trunk", dtype="float32")
    plain = hierarchy(ahead=False)
    options = {"max_new_tokens": 12}
    ids = one.generate(PROMPTS[0], **options).token_ids
    assert ids == plain.generate(PROMPTS[0], **options).token_ids


def test_what_fails_while_drafting_is_told(monkeypatch) -> None:
    def broken(self, calls):
        raise HierspecError("no draft today")

    leaf, (target, _) = root("block").below, models("random", 2, seed=3)
    reports = []
    monkeypatch.setattr(AheadDrafter, "_can_use_thread", lambda *args: True)

    def drafting():
        return AheadDrafter(leaf).drafting_on([], target, lambda *report: reports.append(report))

    with pytest.raises(KeyError), drafting():
        raise KeyError
    monkeypatch.setattr(ModelDrafter, "draft", broken)
    with pytest.raises(HierspecError, match="no draft today"), drafting():
        pass
    assert not reports


LOOK_UP = {"method": "prompt_lookup", "num_speculative_tokens": 2}
DRAFT = {"method": "draft_model", "model": "zoo:small", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("levels", "verify", "message"),
    [
        ([{**LOOK_UP, "ahead": True}], "block", "ahead"),
        ([LOOK_UP, {**DRAFT, "ahead": True}], "block", "only drafts|only level|first level"),
        ([{**DRAFT, "ahead": True}, {**DRAFT, "verify": "block"}], "block", "the only level"),
        ([{**DRAFT, "ahead": True}], "naive", "'tokenwise' or 'block'"),
        ([{**DRAFT, "ahead": True, "window": "entropy"}], "block", "one draft of fixed length"),
    ],
)
def test_mistakes_are_one_line(levels, verify, message) -> None:
    with pytest.raises(HierspecError, match=message):
        Hierarchy.from_config({"target": "zoo:trunk", "levels": levels, "verify": verify})


def test_only_the_key_needs_the_package() -> None:
    """A process without it reads every other level, and names it for this one."""
    code = """
import sys
sys.modules["hierspec_lab"] = None  # as if it were not installed
from hierspec import Hierarchy, HierspecError
level = {"method": "draft_model", "model": "zoo:tiny-draft", "num_speculative_tokens": 2}
Hierarchy.from_config({"target": "zoo:tiny", "levels": [level]})
try:
    Hierarchy.from_config({"target": "zoo:tiny", "levels": [{**level, "ahead": True}]})
except HierspecError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'draft_model.ahead' is in hierspec_lab, which is not installed" in done.stdout
