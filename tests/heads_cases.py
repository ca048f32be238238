"""Exit heads with random weights, and hierarchies of the exits that they are for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hierspec import Hierarchy
from hierspec.config import exit_heads
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.exit_heads import FULL, MLP, TRANSFORM, ExitHead, Heads, vocabulary_part
from hierspec.lm.load import load
from hierspec.zoo import fingerprint


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


def save_random_heads(model: Path, path: Path, exits: Sequence[int] = (1, 2)) -> Path:
    """A file of transforms with random weights, as training writes it."""
    backend: Any = load(str(model), torch.float64, backend="hf")
    heads = Heads(TRANSFORM, exits, backend)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_(0, 0.1, generator=generator)
    info = {
        "kind": TRANSFORM,
        "exits": list(exits),
        "model": backend.name,
        "fingerprint": fingerprint.compute(str(model)),
        "hidden_size": backend.hidden_size,
        "vocab_size": backend.vocab_size,
        "num_layers": backend.num_layers,
        "input_size": heads.input_size,
    }
    exit_heads.write(path, heads, backend.dtype, info)
    return path
