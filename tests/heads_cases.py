"""How heads are trained for tests, and hierarchies of the exits that they are for."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hierspec import Hierarchy
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.training.heads.settings import HeadsSettings
from hierspec.training.heads.train import train

FAMILIES = ("llama", "qwen3", "gpt2", "gemma2", "opt")
QUICK = {"tokens": 2000, "width": 32, "rows": 4, "learning_rate": 3e-3, "steps": 40}


def level(layer: int, head: Any = None, **more: Any) -> dict[str, Any]:
    out = {"method": "early_exit", "exit_layer": layer, "num_speculative_tokens": 3, **more}
    return out if head is None else {**out, "head": str(head)}


def hierarchy(model: Path, *levels: dict[str, Any], backend: str = "auto") -> Hierarchy:
    target = {"model": str(model), "backend": backend}
    return Hierarchy.from_config({"target": target, "levels": list(levels)})


def rows_of(model: Any, ids: Sequence[int], start: int = 1) -> torch.Tensor:
    return model.score([Query(model.open(), Context(list(ids)), start)])


@contextlib.contextmanager
def short_own_texts() -> Iterator[None]:
    """The models write 64 tokens at a time, which takes a quarter of the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hierspec.training.heads.data.OWN_LENGTH", 64)
        yield


def train_quickly(model: Path, kind: str, path: Path) -> Path:
    """Heads for two exits, of the model's own text, as it has no tokenizer."""
    with short_own_texts():
        return train(str(model), HeadsSettings(exits=(1, 2), kind=kind, **QUICK), path).path
