"""Fixtures of the profiling tests: models saved and measured once for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from ngram_tables import bigrams
from profiling_cases import PROMPTS, SMALL, EveryPair, V, save_model

from hierspec import TargetConfig
from hierspec.config.checkpoints import Loaded
from hierspec.profiling.candidates import parse
from hierspec.profiling.measure import measure
from hierspec.profiling.profile import save


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    """Names of a target of three layers, two drafts near it, and a table."""
    root = tmp_path_factory.mktemp("family")
    bigrams(np.random.default_rng(0).integers(0, V, 500), V).save(root / "ngram.safetensors")
    return {
        "target": save_model(root / "target"),
        "draft": save_model(root / "draft", 0.03),
        "small": save_model(root / "small", 0.08),
        "table": str(root / "ngram.safetensors"),
    }


@pytest.fixture(scope="session")
def loaded():
    return Loaded()


@pytest.fixture(scope="session")
def everything(family):
    """One candidate of every kind."""
    draft = family["draft"]
    return [
        parse(text)
        for text in (
            family["small"],
            draft,
            f"{draft},temperature=0.7",
            f"{draft},window=entropy",
            f"{draft},window=confidence",
            "exit:1",
            "exit:2",
            f"ngram:{family['table']}",
            "prompt-lookup",
        )
    ]


@pytest.fixture(scope="session")
def whole(family, everything, loaded):
    """A profile of all of them at two temperatures."""
    target = TargetConfig(model=family["target"])
    return measure(target, everything, PROMPTS, [0.0, 1.0], SMALL, loaded=loaded, stages=EveryPair)


@pytest.fixture
def file(whole, tmp_path):
    """The path of that profile's file."""
    path = tmp_path / "profile.json"
    save(whole, path)
    return path
