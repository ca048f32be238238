"""How heads are trained for tests, and hierarchies of the exits that they are for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hierspec import Hierarchy
from hierspec.core.context import Context
from hierspec.lm.base import Query

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
