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
from hierspec.lm.exit_heads import FULL, MLP, ExitHead, vocabulary_part
from hierspec_lab.training.heads.settings import HeadsSettings
from hierspec_lab.training.heads.train import train

FAMILIES = ("llama", "qwen3", "gpt2", "gemma2", "opt")
QUICK = {"tokens": 2000, "width": 32, "rows": 4, "learning_rate": 3e-3, "steps": 40}


def level(layer: int, head: Any = None, **more: Any) -> dict[str, Any]:
    out = {"method": "early_exit", "exit_layer": layer, "num_speculative_tokens": 3, **more}
    return out if head is None else {**out, "head": str(head)}


def hierarchy(model: Path, *levels: dict[str, Any], backend: str = "auto") -> Hierarchy:
    target = {"model": str(model), "backend": backend}
    return Hierarchy.from_config({"target": target, "levels": list(levels)})


def random_head(kind: str, backend: Any, some_tokens: bool = False) -> ExitHead:
    """A head with random weights; the inner size of an mlp fills no vectors."""
    generator, size = torch.Generator().manual_seed(len(kind)), backend.hidden_size
    ids = torch.arange(1, backend.vocab_size, 3) if some_tokens else None
    num_out = backend.vocab_size if ids is None else len(ids)
    if kind != FULL:
        num_out = size + (13 if kind == MLP else 0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * size**-0.5

    bias = None if kind == FULL else normal(num_out)
    down = normal(size, 13) if kind == MLP else None
    part = None if ids is None else vocabulary_part(backend, ids, kind)
    return ExitHead(kind, normal(num_out, size), bias, backend, down, part)


def rows_of(model: Any, ids: Sequence[int], start: int = 1) -> torch.Tensor:
    return model.score([Query(model.open(), Context(list(ids)), start)])


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
