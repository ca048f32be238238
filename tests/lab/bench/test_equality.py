"""A fixed part of benchmarks/equality.py: the shipped family in float32 against transformers."""

import pytest
import torch
from loading import hierarchy_of

from hierspec import TargetConfig, preset
from hierspec.lm.weights import build_hf_model
from hierspec.presets.registry import PRESETS
from hierspec.zoo.registry import resolve

PROMPTS = ["def fibonacci(n):\n", "class Stack:\n    def push(self, item):\n", "import os\n"]
TOKENS = 16
TARGET = "zoo:trunk"  # the large target's runs are the benchmark's


@pytest.fixture(scope="module")
def plain():
    """Token ids of the prompts, and their greedy continuations by transformers' generate."""
    from transformers import AutoTokenizer

    source = resolve(TARGET)
    tokenizer = AutoTokenizer.from_pretrained(source.tokenizer_path)
    model = build_hf_model(source, torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
        )
        outputs.append(tuple(out[0, len(prompt) :].tolist()))
    return prompts, outputs


@pytest.mark.parametrize("name", [n for n in PRESETS if n != "eagle3"])  # none for this target
def test_greedy_equals_transformers_generate(plain, name):
    prompts, expected = plain
    target = TargetConfig(model=TARGET, dtype="float32")
    hierarchy = hierarchy_of(preset(name, target, ["zoo:small", "zoo:mid"]))
    options = {"max_new_tokens": TOKENS, "ignore_eos": True}
    assert hierarchy.generate(prompts[0], **options).token_ids == expected[0]
    together = [r.token_ids for r in hierarchy.generate_batch(prompts, **options)]
    assert together == expected
