"""Draft models on the compiled kernels: the scores of the lean backend, whoever computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hierspec import Hierarchy
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.lean import kernels, own_weights
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.own_weights import DraftLean
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk
from hierspec.utils.testing import save_tiny

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # plain, windows, biases, norms of heads
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
    steps = [own_weights._FEW + 8, 1, 1, 5, 1, own_weights._FEW]
    draft, lean = (load(str(path), dtype, backend=name) for name in ("draft", "lean"))
    assert isinstance(draft, DraftLean)
    assert "kernels" in draft.fast_path
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
    scored(load(str(path), torch.float32, backend="draft"), [40, 1, 7, own_weights._FEW])
    assert calls == [40]


def run_by(path, monkeypatch, **facts) -> str:
    for name, value in facts.items():
        monkeypatch.setattr(*value if isinstance(value, tuple) else (own_weights, name, value))
    return load(str(path), torch.float32, backend="draft").fast_path


def test_without_kernels_or_too_large_or_in_another_dtype_it_is_the_lean_backend(path, monkeypatch):
    assert "kernels" not in load(str(path), torch.float64, backend="draft").fast_path
    with monkeypatch.context() as patch:
        assert "kernels" not in run_by(path, patch, _MOST_BYTES=1000)
    with monkeypatch.context() as patch:
        assert "kernels" not in run_by(path, patch, load=(kernels, "load", lambda: None))


@needs_compiler
def test_a_draft_model_has_it_by_itself_and_the_target_has_not(tmp_path):
    target = save_tiny("llama", tmp_path / "target", seed=1)
    draft = save_tiny("llama", tmp_path / "draft", seed=2)

    def backends(**level):
        level = {"method": "draft_model", "num_speculative_tokens": 2, **level}
        root = Hierarchy.from_config({"target": str(target), "levels": [level]}).root
        return [type(node.model.trunk.backend) for node in (root, root.below)]

    assert backends(model=str(draft)) == [LeanBackend, DraftLean]
    assert backends(model=str(draft), backend="lean") == [LeanBackend, LeanBackend]
    assert backends(model=str(target)) == [LeanBackend, LeanBackend], "one trunk for both"
