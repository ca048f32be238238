"""Targets, with early exits or a draft model, that tests of several files use."""

import pytest
import torch
from paper_cases import HEADS, KNOWN
from tiny_models import save_tiny

from hierspec.config import exit_heads
from hierspec.config.schema import TargetConfig
from hierspec.lm.exit_heads import TRANSFORM
from hierspec.lm.load import load as load_model
from hierspec_lab.bench.methods.ours import BenchModels
from hierspec_lab.training.heads.heads import Heads, write


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Save a tiny target of eight layers, float64: exits 1 and 2 are its default ones."""
    return str(save_tiny("llama", tmp_path_factory.mktemp("deep"), seed=3, layers=8))


@pytest.fixture(scope="module")
def headed(tmp_path_factory):
    """Save the same target with heads in its folder that score as exits without heads do."""
    folder = save_tiny("llama", tmp_path_factory.mktemp("headed"), seed=3, layers=8)
    backend = load_model(str(folder), backend="hf")
    heads = Heads(TRANSFORM, HEADS, backend, torch.arange(KNOWN))
    info = {
        "kind": TRANSFORM,
        "exits": list(HEADS),
        "model": str(folder),
        "vocabulary_size": KNOWN,
        **{key: getattr(backend, key) for key in ("hidden_size", "vocab_size", "num_layers")},
    }
    write(folder / exit_heads.FILE, heads, torch.float64, info)
    return str(folder)


@pytest.fixture(scope="session")
def models(tiny_family):
    """Return a tiny target and a draft near it, float64."""
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    return BenchModels(target, (tiny_family["draft"],))
