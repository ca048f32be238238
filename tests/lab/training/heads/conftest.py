"""Tiny models and heads trained for them, once for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from heads_training import FAMILIES, short_own_texts, train_quickly
from tiny_models import save_tiny

from hierspec.lm.exit_heads import KINDS


@pytest.fixture(autouse=True, scope="module")
def _short_own_texts() -> Iterator[None]:
    with short_own_texts():
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def models(folder: Path) -> dict[str, Path]:
    """A tiny float64 model of each family, the second exit one layer below the last."""
    return {name: save_tiny(name, folder / name, seed=3) for name in FAMILIES}


@pytest.fixture(scope="session")
def trained(models: dict[str, Path], folder: Path) -> dict[str, Path]:
    """Heads of each family."""
    return {
        name: train_quickly(model, KINDS[i % 3], folder / f"{name}.safetensors")
        for i, (name, model) in enumerate(models.items())
    }
