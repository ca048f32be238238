"""Tiny models and heads trained for them, once for all tests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from heads_cases import FAMILIES, QUICK

from hierspec.lm.exit_heads import KINDS
from hierspec.training.heads.settings import HeadsSettings
from hierspec.training.heads.train import train
from hierspec.utils.testing import save_tiny


@contextlib.contextmanager
def short_own_texts() -> Iterator[None]:
    """The models write 64 tokens at a time, which takes a quarter of the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hierspec.training.heads.data.OWN_LENGTH", 64)
        yield


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
    """Heads of each family; the model's own text, as it has no tokenizer."""
    out = {}
    with short_own_texts():  # made before what a module asks for
        for i, (name, model) in enumerate(models.items()):
            settings = HeadsSettings(exits=(1, 2), kind=KINDS[i % 3], **QUICK)
            out[name] = train(str(model), settings, folder / f"{name}.safetensors").path
    return out
