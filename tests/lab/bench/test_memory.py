"""What weights and runs take of memory, and how much of them a call reads."""

import pytest
import torch
from fake_methods import FakeMethod, fixed

from hierspec.errors import HierspecError
from hierspec_lab.bench import memory, roofline
from hierspec_lab.bench.methods.base import RunRequest, Unavailable
from hierspec_lab.bench.methods.ours import HierarchyMethod


def test_what_a_call_of_each_level_costs(models):
    """Three layers in all: an exit after the first has a third of the weights, a table none."""
    levels = [
        {"method": "prompt_lookup", "num_speculative_tokens": 2},
        {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": 3},
        {"method": "draft_model", "model": models.drafts[0], "num_speculative_tokens": 4},
    ]
    target = models.target.model
    whole = memory.count_parameters(target)
    found = memory.level_parameters(HierarchyMethod("x", models, levels))
    # A token reads one row of a table of embeddings; here it is no head as well.
    read = memory.count_parameters(target, embedding=False)
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


def test_weights_that_cannot_be_counted_are_none_and_a_bug_is_not_hidden(models, monkeypatch):
    method = HierarchyMethod("x", models)
    counts = (
        lambda: memory.level_parameters(method),
        lambda: memory.weight_bytes(method),
        lambda: roofline.roofline(models),
    )

    def fail(error):
        def count(*args, **included):
            raise error

        monkeypatch.setattr(memory, "count_parameters", count)
        monkeypatch.setattr(roofline, "count_parameters", count)

    fail(HierspecError("no such weights"))
    assert [count() for count in counts] == [None, None, None]
    fail(ValueError("shapes differ"))
    for count in counts:
        with pytest.raises(ValueError, match="shapes differ"):
            count()


def test_a_bug_in_a_hierarchy_of_ours_is_not_told_as_a_refusal(models, monkeypatch):
    method = HierarchyMethod("x", models)
    with pytest.raises(Unavailable, match="prompt"):
        method.run([], RunRequest(2))

    def build(*args):
        raise ValueError("shapes differ")

    monkeypatch.setattr("hierspec_lab.bench.methods.ours.build", build)
    other = HierarchyMethod("y", models, [{"method": "prompt_lookup", "num_speculative_tokens": 2}])
    with pytest.raises(ValueError, match="shapes differ") as error:
        other.run([1], RunRequest(2))
    assert not isinstance(error.value, Unavailable)
