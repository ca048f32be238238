"""Token trees on every backend that takes them: the engine's output law is the target's.

Drafts and checks share a slot of tiny transformers, of which exits and copies draft; all of the
engine's randomness is enumerated.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_cases import ALIKE, MULTI_DRAFT, PROMPT, SAMPLING
from engine_law import engine_law
from engine_paths import distance
from fakes.tables import ModelAsTable
from installed import LAB
from tiny_models import save_tiny

from hierspec.core.nodes import Draft, Verify
from hierspec.lm.base import takes_trees
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.lm.trunk.self_draft import SelfDraft
from hierspec.lm.trunk.trunk import Trunk
from hierspec.methods.quantized import quantize
from hierspec.verifiers.registry import get
from hierspec.verifiers.soundness import validate

if LAB:
    from hierspec_lab.methods.adaptive_exit.model import AdaptiveExit
    from hierspec_lab.methods.layer_skip.skipping import SkippingBackend


V = 3
IN_KERNELS = ("bit-exact", "8 bits", "4 bits", "4 bits, bit-exact")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A target of three tokens, and what drafts in its slots."""
    folder, ids = tmp_path_factory.mktemp("models"), ("bos", "eos", "pad")
    small: Any = {"vocab_size": V, **{f"{name}_token_id": None for name in ids}}

    def make(kind: str) -> tuple[Any, Any]:
        if kind in IN_KERNELS and library.load() is None:
            pytest.skip("no C compiler here")
        family = kind if kind in ("bloom", "falcon_alibi") else "mistral"
        sizes = {**small, "sliding_window": 3} if family == "mistral" else small
        path = save_tiny(family, folder / kind, seed=3, layers=2, **sizes)
        dtype = torch.float32 if kind in IN_KERNELS else torch.float64
        backend: Any = load(path, dtype, backend="deterministic" if "exact" in kind else "auto")
        trunk = Trunk(backend, [1])
        if "bits" in kind:
            return trunk.view(), SelfDraft(trunk, quantize(backend, int(kind[0])))
        if kind == "without a layer":
            return trunk.view(), SelfDraft(trunk, SkippingBackend(backend, [0]))
        if kind == "adaptive":
            return trunk.view(), AdaptiveExit([trunk.view(1), trunk.view()], 0.6, "adaptive")
        return trunk.view(), trunk.view(1)

    return make


@pytest.mark.parametrize("beside", [(), ALIKE], ids=["alone", "in a batch"])
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        *(("8 bits", rule) for rule in MULTI_DRAFT),
        *(
            (kind, MULTI_DRAFT[-1])
            for kind in (
                *("4 bits", "bit-exact", "4 bits, bit-exact", "bloom", "falcon_alibi"),
                *(("without a layer", "adaptive") if LAB else ()),
            )
        ),
    ],
)
def test_the_engines_law_over_trees_is_the_targets(pair, kind, rule, beside):
    target, drafter = pair(kind)
    assert takes_trees(target)
    assert takes_trees(drafter)
    leaf = Draft(0, "drafter", drafter, 2, num_drafts=2).for_rule(get(rule))
    root = Verify(1, "target", target, 1, get(rule), leaf)
    validate(root)
    found = engine_law(root, PROMPT, 2, SAMPLING, beside)
    tight = 1e-6 if kind in (*IN_KERNELS, "bloom") else 1e-9  # BLOOM's softmax is in float32
    assert distance(found, ModelAsTable(target), PROMPT, 2) < tight
