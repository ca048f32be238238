"""Exit heads with random weights, and hierarchies of the exits that they are for."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hierspec import Hierarchy
from hierspec.config.exit_heads import METADATA_KEY, SCHEMA, read
from hierspec.core.context import Context
from hierspec.lm.base import Query
from hierspec.lm.exit_heads import FULL, MLP, TRANSFORM, ExitHead, vocabulary_part
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
    generator, size = torch.Generator().manual_seed(1), backend.hidden_size
    tensors = {
        f"exit.{layer}.{name}": torch.randn(shape, generator=generator, dtype=backend.dtype) * 0.1
        for layer in exits
        for name, shape in (("weight", (size, size)), ("bias", (size,)))
    }
    info = {
        "schema_version": SCHEMA,
        "kind": TRANSFORM,
        "exits": list(exits),
        "model": backend.name,
        "fingerprint": fingerprint.compute(str(model)),
        "hidden_size": size,
        "vocab_size": backend.vocab_size,
        "num_layers": backend.num_layers,
    }
    save_file(tensors, path, {METADATA_KEY: json.dumps(info)})
    return path


def damaged(source: Path, to: Path, change: Any) -> Path:
    """A copy with tensors and description changed."""
    info, tensors = read(source).info.to_dict(), load_file(source)
    change(info, tensors)
    save_file(tensors, to, {"hierspec": json.dumps(info)})
    return to
