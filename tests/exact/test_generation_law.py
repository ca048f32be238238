"""The law of whole generations: the first token, controllers, drafters that learn, the end."""

from __future__ import annotations

import dataclasses

import pytest
from engine_cases import MANY, PROMPT, TIGHT, generation
from engine_law import generation_law
from engine_paths import distance, like
from estimate_cases import estimates, rates
from tabular_cases import chain, models

from hierspec.core.windows import EntropyWindow
from hierspec.exact.cases import JumpingController
from hierspec.lm.tabular import TabularModel
from hierspec.planner.estimates import Chain
from hierspec.planner.online.controller import OnlineController
from hierspec.sampling.parameters import SamplingParams


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_a_generation(rule, prompts):
    """The first token before any draft, then rounds, until nothing is wanted."""
    params = SamplingParams(temperature=0.9, frequency_penalty=0.5)
    root = chain(models("random", 2, seed=3), [rule], [2], [EntropyWindow()])
    found = generation_law(generation(root, params, prompts, tokens=4))
    assert distance(found, root.model, PROMPT, 4, params) < TIGHT


@pytest.mark.parametrize(("online", "prompts"), [(False, MANY), (True, (PROMPT,))])
def test_controllers(online, prompts):
    root = chain(models("random", 3, seed=8), ["block", "tokenwise"], [1, 1])
    if online:
        known = dataclasses.replace(estimates((1.0, 2.0, 9.0), rates(0.6, 0.8, 0.5)), max_budget=2)
        controller = OnlineController(root, known, Chain((0, 1, 2), (1, 1)))
        controller.first_wait, controller.longest_wait = 1, 2
    else:
        controller = JumpingController(root, [[1, 1], [0, 2], [1, 0], [0, 0]])
    found = generation_law(generation(root, prompts=prompts, tokens=4, controller=controller))
    assert distance(found, root.model, PROMPT, 4) < TIGHT


def test_the_context_of_the_target_ends_a_text():
    small, target = models("random", 2, seed=3)
    target = like(TabularModel, target, max_length=len(PROMPT) + 3)
    root = chain([small, target], ["block"], [2])
    found = generation_law(generation(root, tokens=9, max_length=target.max_length))
    assert distance(found, target, PROMPT, 3) < TIGHT
