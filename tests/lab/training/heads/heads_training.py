"""How heads are trained for tests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.heads.train import train

FAMILIES = ("llama", "qwen3", "gpt2", "gemma2", "opt")
QUICK = {"tokens": 2000, "width": 32, "rows": 4, "learning_rate": 3e-3, "steps": 40}


@contextlib.contextmanager
def short_own_texts() -> Iterator[None]:
    """The models write 64 tokens at a time, which takes a quarter of the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hierspec_lab.training.heads.data.OWN_LENGTH", 64)
        yield


def train_quickly(model: Path, kind: str, path: Path) -> Path:
    """Heads for two exits, of the model's own text, as it has no tokenizer."""
    with short_own_texts():
        return train(str(model), HeadsSettings(exits=(1, 2), kind=kind, **QUICK), path).path
