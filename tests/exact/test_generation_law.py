"""The law of whole generations: the first token, controllers, drafters that learn, the end."""

from __future__ import annotations

import dataclasses

import pytest
from engine_cases import PROMPT, SAMPLING, TIGHT
from engine_paths import distance, like
from estimate_cases import estimates, rates
from tabular_cases import chain, models

from hierspec.core.nodes import Draft
from hierspec.core.windows import EntropyWindow
from hierspec.drafters.lookahead import Lookahead
from hierspec.drafters.ngram_pool import NgramPool
from hierspec.engine.control import JumpingController
from hierspec.engine.generation import Generation
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.exact.engine_law import generation_law
from hierspec.lm.tabular import TabularModel
from hierspec.planner.estimates import Chain
from hierspec.planner.online.controller import OnlineController
from hierspec.sampling.parameters import SamplingParams


def generation(root, params=SAMPLING, prompts=(PROMPT,), tokens=3, controller=None, **stop):
    """What makes one, anew each time."""

    def start() -> Generation:
        own = [params, *[SamplingParams(temperature=0.6)] * (len(prompts) - 1)]
        conditions = StopConditions(max_new_tokens=tokens, **stop)
        requests = [
            Request(
                prompt=prompt,
                params=own[place],
                stop=conditions,
                seed=5,
                place=place,
                num_logprobs=0,
            )
            for place, prompt in enumerate(prompts)
        ]
        return Generation(root, requests, controller=controller)

    return start


MANY = (PROMPT, [2], [0, 1, 2])


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
@pytest.mark.parametrize("rule", ["tokenwise", "block"])
def test_a_generation(rule, prompts):
    """The first token before any draft, then rounds, until nothing is wanted."""
    params = SamplingParams(temperature=0.9, frequency_penalty=0.5)
    root = chain(models("random", 2, seed=3), [rule], [2], [EntropyWindow()])
    found = generation_law(generation(root, params, prompts, tokens=4))
    assert distance(found, root.model, PROMPT, 4, params) < TIGHT


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_controllers(online, prompts):
    root = chain(models("random", 3, seed=8), ["block", "tokenwise"], [1, 1])
    if online:
        known = dataclasses.replace(estimates((1.0, 2.0, 9.0), rates(0.6, 0.8, 0.5)), max_budget=2)
        controller = OnlineController(
            root, known, Chain((0, 1, 2), (1, 1)), first_wait=1, longest_wait=2
        )
    else:
        controller = JumpingController(root, [[1, 1], [0, 2], [1, 0], [0, 0]])
    found = generation_law(generation(root, prompts=prompts, tokens=4, controller=controller))
    assert distance(found, root.model, PROMPT, 4) < TIGHT


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_an_ngram_pool_learns_from_what_was_rejected(prompts):
    (target,) = models("random", 1, seed=2)
    root = chain([target], ["tokenwise"], [], below=Draft(0, "pool", NgramPool(1, 2), 2))
    found = generation_law(generation(root, prompts=prompts, tokens=4))
    assert distance(found, target, PROMPT, 4) < TIGHT


@pytest.mark.parametrize("prompts", [(PROMPT,), MANY])
def test_a_lookahead_window_is_filled_by_the_checks_of_its_own_drafts(prompts):
    (target,) = models("random", 1, seed=2)
    leaf = Draft(0, "lookahead", Lookahead(3, 2, 2), 2, num_drafts=6)
    root = chain([target], ["rrs"], [], below=leaf)
    found = generation_law(generation(root, prompts=prompts, tokens=4))
    assert distance(found, target, PROMPT, 4) < TIGHT


def test_the_context_of_the_target_ends_a_text():
    small, target = models("random", 2, seed=3)
    target = like(TabularModel, target, max_length=len(PROMPT) + 3)
    root = chain([small, target], ["block"], [2])
    found = generation_law(generation(root, tokens=9, max_length=target.max_length))
    assert distance(found, target, PROMPT, 3) < TIGHT
