"""Draft models on the compiled kernels: the scores of the lean backend, whoever computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hierspec.config.build import build
from hierspec.config.checkpoints import Loaded
from hierspec.config.schema import HierarchyConfig
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.lean import kernel_weights, kernels
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.kernel_weights import DraftLeanBackend, draft_backend
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.utils.testing import save_tiny

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # plain, windows, biases, norms of heads
FEW = kernel_weights.MAX_ROWS
TEXT = torch.randint(3, 90, (80,), generator=torch.Generator().manual_seed(0)).tolist()
needs_compiler = pytest.mark.skipif(
    kernels.load() is None, reason="no C compiler here: torch's own operations run instead"
)


@pytest.fixture(scope="module", params=FAMILIES)
def path(request, tmp_path_factory):
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param) / "m", seed=1)


def scored(backend: Any, steps: list[int]) -> torch.Tensor:
    """Scores after every token of the text, which comes in steps of so many tokens."""
    view = Trunk(backend).view()
    slot, rows, at = view.open(), [], 0
    for n in steps:
        rows.append(view.score([Query(slot, Context(TEXT[: at + n]), at + 1)]))
        at += n
    return torch.cat(rows)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_are_the_lean_backends(path, dtype):
    """A prompt that oneDNN reads, then a few rows by the kernels, on one cache."""
    steps = [FEW + 8, 1, 1, 5, 1, FEW]
    lean = load(str(path), dtype)
    draft = draft_backend(lean)
    assert isinstance(draft, DraftLeanBackend)
    assert draft.kernel_bytes > 0
    ours, theirs = scored(draft, steps), scored(lean, steps)
    # bfloat16 keeps 8 bits of every product's inputs, which the two round in different places.
    most = 1e-5 if dtype == torch.float32 else 0.03
    assert (ours - theirs).pow(2).mean().sqrt() < most * theirs.std()
    assert not torch.equal(ours[-40:], theirs[-40:]), "by other sums"


@needs_compiler
def test_few_rows_run_in_the_kernels_and_many_do_not(path, monkeypatch):
    calls: list[int] = []
    usual = LeanBackend.layers
    monkeypatch.setattr(
        LeanBackend, "layers", lambda self, h, *rest: calls.append(len(h)) or usual(self, h, *rest)
    )
    scored(draft_backend(load(str(path), torch.float32)), [40, 1, 7, FEW])
    assert calls == [40]


def test_where_the_kernels_do_not_run_it_or_it_is_large_it_stays_as_it_is(path, monkeypatch):
    for dtype in (torch.float64, torch.float16):
        other = load(str(path), dtype)
        assert draft_backend(other) is other
    hf, lean = load(str(path), torch.float32, backend="hf"), load(str(path), torch.float32)
    assert draft_backend(hf) is hf
    with monkeypatch.context() as patch:
        patch.setattr(kernel_weights, "MAX_BYTES", 1000)
        assert draft_backend(lean) is lean
    monkeypatch.setattr(kernels, "load", lambda: None)
    assert draft_backend(lean) is lean


@needs_compiler
def test_a_draft_model_runs_so_by_itself_and_the_target_does_not(tmp_path):
    target = save_tiny("llama", tmp_path / "target", seed=1, dtype=torch.float32)
    draft = save_tiny("llama", tmp_path / "draft", seed=2, dtype=torch.float32)
    loaded = Loaded()

    def backends(target=target, **level):
        level = {"method": "draft_model", "num_speculative_tokens": 2, **level}
        data = {"target": str(target), "levels": [level]}
        root = build(HierarchyConfig.from_dict(data), loaded).root
        return [node.model.trunk.backend for node in (root, root.below)]

    top, below = backends(model=str(draft))
    assert [type(one) for one in (top, below)] == [LeanBackend, DraftLeanBackend]
    assert backends(model=str(draft))[1] is below, "another hierarchy has it, too"
    assert type(backends(model=str(draft), ahead=True)[1]) is LeanBackend
    assert type(backends(model=str(draft), backend="lean")[1]) is LeanBackend
    assert backends(model=str(target)) == [top, top], "one trunk for both"
    other = backends(target=draft, model=str(target))
    assert type(other[0]) is LeanBackend
    assert other[0]._lm_head is below._lm_head, "the draft's weights, which a target may be"
