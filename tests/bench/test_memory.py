"""What weights and runs take of memory, and how much of them a call reads."""

import torch
from fakes import FakeMethod, fixed

from hierspec.bench import memory, roofline
from hierspec.bench.methods.ours import HierarchyMethod


def test_what_a_call_of_each_level_costs(models):
    """Three layers in all: an exit after the first has a third of the weights, a table none."""
    levels = [
        {"method": "prompt_lookup", "num_speculative_tokens": 2},
        {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 3},
        {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 4},
    ]
    target = models.target.model
    whole = memory.parameters(target)
    found = memory.level_parameters(HierarchyMethod("x", models, levels))
    # A token reads one row of a table of embeddings; here it is no head as well.
    read = memory.parameters(target, embedding=False)
    assert read < whole
    assert list(found.values()) == [0, round(read / 3), read, read]
    # Exits share the target's weights, a draft model has its own; float32 has four bytes.
    assert memory.weight_bytes(HierarchyMethod("x", models, levels)) == 2 * 4 * whole
    assert memory.weight_bytes(HierarchyMethod("x", models, levels[:2])) == 4 * whole
    assert memory.weight_bytes(FakeMethod("x", fixed)) is None
    assert memory.level_parameters(FakeMethod("x", fixed)) is None
    # The embedding (96 × 32) is a table apart: a token reads one row of it.
    assert roofline.weight_bytes_per_token(models) == 4 * (whole - 96 * 32)


def test_memory_sees_what_a_run_takes():
    if not memory._CLEAR.exists():
        assert memory.peak_rise(lambda: None) is None
        return
    size = 64 << 20
    assert memory.peak_rise(lambda: torch.ones(size // 4).sum()) >= 0.9 * size
