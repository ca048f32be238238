"""What a batch's texts have in common is read once, and changes none of them."""

from functools import partial

import pytest
from eagle3_cases import save_drafter

from hierspec import Hierarchy
from hierspec.engine.prefixes import MIN_TOKENS, WORTH_A_CALL
from hierspec.utils.testing import tiny_config

EXAMPLES = [5 + i % 60 for i in range(48)]  # as a prompt's few shots
TAILS = [[], [70, 71], [70, 72], [73] * 9]
LOOKUP = {"method": "prompt_lookup", "num_speculative_tokens": 3}
SMALL = {"method": "draft_model", "num_speculative_tokens": 2, "verify": "tokenwise"}
EXIT = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 4}
HIERARCHIES = {
    "exit and model": (
        "block",
        [LOOKUP, {**EXIT, "verify": "block"}, SMALL],
    ),
    "several drafts": ("rrs", [{**EXIT, "num_drafts": 2}]),
    "eagle3": ("block", [{"method": "eagle3", "num_speculative_tokens": 3}]),
}


@pytest.fixture(scope="module", params=HIERARCHIES)
def hierarchy(request, tiny_family, tmp_path_factory):
    rule, levels = HIERARCHIES[request.param]
    drafter = save_drafter(tmp_path_factory.mktemp("drafter") / "eagle3", tiny_config("llama"))
    models = {"draft_model": tiny_family["small"], "eagle3": str(drafter)}
    levels = [
        {**level, "model": models[level["method"]]} if level["method"] in models else level
        for level in levels
    ]
    target = {"model": tiny_family["target"], "dtype": "float32"}
    return Hierarchy.from_config({"target": target, "levels": levels, "verify": rule})


def reading(hierarchy, call):
    """What a call returns, and how many tokens the target's first layers read for it."""
    counters = hierarchy.root.model.trunk.counters
    before = counters.tokens[0]
    return [list(one.token_ids) for one in call()], counters.tokens[0] - before


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_each_prompt_alone(hierarchy, temperature):
    prompts = [EXAMPLES[:n] + tail for tail in TAILS for n in (48, 20, 3)] + [EXAMPLES[10:30]]
    options = {"max_new_tokens": 10, "ignore_eos": True, "temperature": temperature}
    seeds = list(range(len(prompts)))
    batch = partial(hierarchy.generate_batch, prompts, seed=seeds, **options)
    alone = [
        hierarchy.generate_batch([prompt], seed=[seed], **options)[0]
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    assert reading(hierarchy, batch)[0] == [list(one.token_ids) for one in alone]


def test_samples_of_a_prompt_read_it_once(hierarchy):
    options = {"max_new_tokens": 1, "ignore_eos": True, "temperature": 1.0, "seed": 0}
    one = partial(hierarchy.generate_batch, [EXAMPLES], **options)
    many = partial(hierarchy.generate_batch, [EXAMPLES], num_return_sequences=6, **options)
    alone = reading(hierarchy, one)[1]
    assert reading(hierarchy, many)[1] <= 6 * alone - 5 * (len(EXAMPLES) - 1)


def test_a_common_beginning_is_read_once_where_a_call_of_its_own_pays(hierarchy):
    options = {"max_new_tokens": 1, "ignore_eos": True}
    least = -(-WORTH_A_CALL // 3)
    assert MIN_TOKENS < least < WORTH_A_CALL

    def saved(length, count):
        prompts = [[*EXAMPLES[:length], 70 + i, 80 + i] for i in range(count)]
        alone = (partial(hierarchy.generate_batch, [one], **options) for one in prompts)
        separate = sum(reading(hierarchy, call)[1] for call in alone)
        return (
            separate - reading(hierarchy, partial(hierarchy.generate_batch, prompts, **options))[1]
        )

    shared = len(EXAMPLES)
    assert saved(shared, 2) == shared
    assert saved(shared, 4) == 3 * shared
    assert saved(least, 4) == 3 * least  # three need not read it again
    assert saved(least, 2) == 0
