"""Sampling on the shipped family: χ² on the joint law of tokens 1–3, 1,024 samples a case.

A test fails when p < 1e-4, so a sound hierarchy fails one seed in ten thousand; seeds are fixed,
so a failure here is a change, not chance. The same test must reject a lossy verifier.
"""

import dataclasses

import pytest
from installed import needs_lab
from joint_law import chi_square, joint_law, sample
from wrong_rules import EmitsFromFullP

from hierspec import Hierarchy, HierarchyConfig
from hierspec.config.build import Built
from hierspec.sampling.parameters import SamplingParams

pytestmark = needs_lab  # whose models agree often enough
FALSE_FAILURE_RATE = 1e-4
LENGTH, SAMPLES, TOGETHER = 3, 1_024, 512
PARAMS = SamplingParams(temperature=1.0, top_k=4)
SMALL = {"method": "draft_model", "model": "zoo:small", "num_speculative_tokens": 2}
CASES = {
    "tokenwise": {"levels": [SMALL], "verify": "tokenwise"},
    "three levels, block, hot draft, entropy window": {
        "levels": [
            {"method": "ngram_table", "num_speculative_tokens": 2, "temperature": 0.7},
            {**SMALL, "verify": "block", "window": {"kind": "entropy", "threshold": 1.0}},
        ],
        "verify": "block",
    },
    "leading below block": {
        "levels": [
            {"method": "ngram_table", "num_speculative_tokens": 2},
            {**SMALL, "verify": "leading", "top_m": 2},
        ],
        "verify": "block",
    },
}


@pytest.fixture(scope="module")
def prompt_and_law():
    hierarchy = Hierarchy.from_config({"target": {"model": "zoo:mid", "dtype": "float32"}})
    prompt = hierarchy.tokenizer("import os\n")["input_ids"]
    return prompt, joint_law(hierarchy, prompt, PARAMS, LENGTH)


def test_the_law_is_a_law(prompt_and_law):
    _, law = prompt_and_law
    assert len(law) == 4**LENGTH
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_targets_joint_law(prompt_and_law, name):
    prompt, law = prompt_and_law
    config = {"target": {"model": "zoo:mid", "dtype": "float32"}, **CASES[name]}
    counts = sample(Hierarchy.from_config(config), prompt, PARAMS, LENGTH, SAMPLES, TOGETHER)
    result = chi_square(counts, law)
    assert result.degrees > 10
    assert 10**result.log10_p > FALSE_FAILURE_RATE, result


def test_an_injected_lossy_verifier_is_rejected(prompt_and_law):
    prompt, law = prompt_and_law
    config = HierarchyConfig.from_dict(
        {"target": {"model": "zoo:mid", "dtype": "float32"}, **CASES["tokenwise"]}
    )
    sound = Hierarchy.from_config(config)
    root = dataclasses.replace(sound.root, rule=EmitsFromFullP())
    lossy = Hierarchy(Built(root, sound.tokenizer, config))
    result = chi_square(sample(lossy, prompt, PARAMS, LENGTH, SAMPLES, TOGETHER), law)
    assert 10**result.log10_p < FALSE_FAILURE_RATE, result
