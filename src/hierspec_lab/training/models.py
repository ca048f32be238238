"""What trainings share: checks of settings, output file, models, progress, and report."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hierspec.config.checkpoints import load_tokenizer
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, Span
from hierspec.lm.load import DTYPES, load
from hierspec.lm.weights import WeightSource
from hierspec.profiling.settings import ReportProgress
from hierspec.utils import machine
from hierspec.utils.files import expand_user, write_atomically
from hierspec.zoo import registry

# What files and users call settings whose names in the code say more.
_FILE_KEYS = {"adamw_rate": "other_rate", "measure_minutes": "measure", "watch_steps": "watch"}


def validate_numbers(settings: Any, positive: Sequence[str], counts: Sequence[str] = ()) -> None:
    """Refuse settings that are neither ``None`` nor above 0, and counts that are below 1.

    Raises:
        HierspecError: naming the setting.
    """
    for name in (*positive, *counts):
        value, key = getattr(settings, name), _FILE_KEYS.get(name, name)
        if value is None:
            continue
        if name in counts and value < 1:
            raise HierspecError(f"{key} must be at least 1, not {value}")
        if name in positive and not 0 < value < math.inf:
            raise HierspecError(f"{key} must be above 0, not {value}")


def as_written(settings: Any) -> dict[str, Any]:
    """Convert settings to a dictionary, under the keys that they have in files."""
    return asdict(settings, dict_factory=lambda items: {_FILE_KEYS.get(k, k): v for k, v in items})


def partial_progress(report_progress: ReportProgress, start: float, end: float) -> ReportProgress:
    """Return a progress callback for the part of the work from share ``start`` to ``end``."""
    return lambda stage, share: report_progress(stage, start + share * (end - start))


@dataclass(frozen=True, slots=True)
class WritingPace:
    """How fast texts are written, in a line of progress; an earlier run's do not count."""

    first: int  # done before this run
    total: int
    unit: str
    began: float = field(default_factory=time.monotonic)

    def text(self, done: int) -> str:
        """Return ``120 of 2,500 conversations, 95 a minute, done in about 25 min``."""
        line = f"{done:,} of {self.total:,} {self.unit}"
        if done <= self.first:
            return line
        per_minute = 60 * (done - self.first) / (time.monotonic() - self.began)
        minutes = max(self.total - done, 0) / per_minute
        return f"{line}, {per_minute:,.0f} a minute, done in about {minutes:.0f} min"


def output_file(model: str, output: Path | None, name: str, overwrite: bool) -> Path:
    """Return the file for trained heads: ``output``, or ``name`` in the model's directory.

    Raises:
        HierspecError: the model is no directory and there is no ``output``, that does not end in
            ``.safetensors``, or the file exists, unless ``overwrite``.
    """
    if output is None:
        if model.startswith(registry.PREFIX) or not expand_user(model).is_dir():
            raise HierspecError(
                f"{model} is not a directory to write heads into: say where with -o FILE"
            )
        output = expand_user(model)
    path = output / name if output.is_dir() else output
    if path.suffix != ".safetensors":
        raise HierspecError(f"heads are written as .safetensors; -o says {output}")
    if path.exists() and not overwrite:
        raise HierspecError(f"{path} exists already: give another -o, or --overwrite")
    return path


def load_model(model: str, dtype: str, device: str, backend: str = "auto") -> tuple[Backend, Any]:
    """Load a model and its tokenizer.

    Args:
        backend: as :func:`hierspec.lm.load.load` takes it; gradients pass through ``hf`` alone.

    Raises:
        HierspecError: an unknown dtype, or a model that cannot be loaded.
    """
    dtypes = {str(d).removeprefix("torch."): d for d in DTYPES}
    if dtype != "auto" and dtype not in dtypes:
        raise HierspecError(f"dtype must be auto or one of {', '.join(dtypes)}; got {dtype!r}")
    source = registry.resolve(model) if registry.can_resolve(model) else model
    loaded = load(source, dtypes.get(dtype), machine.device(device), backend=backend)
    return loaded, load_tokenizer(source)


def load_weights_and_tokenizer(model: str) -> tuple[WeightSource, Any]:
    """Load the weights behind a name, and the tokenizer that training on texts needs.

    Raises:
        HierspecError: no such model, or no tokenizer beside it.
    """
    source = registry.open_weights(model)
    tokenizer = load_tokenizer(source)
    if tokenizer is None:
        raise HierspecError(f"{model} has no tokenizer beside it: put it into its folder")
    return source, tokenizer


def hidden_states(
    backend: Backend, ids: torch.Tensor, spans: Sequence[Span], layers: Sequence[int] = ()
) -> list[torch.Tensor]:
    """Return hidden states [n, d] of ids [n] after each of ``layers``, then the last one."""
    h, previous_layer, states = backend.embed(ids, spans), 0, []
    for layer in (*layers, backend.num_layers):
        h, previous_layer = backend.layers(h, previous_layer, layer, spans), layer
        states.append(h)
    return states


def validate_width(width: int, *models: Backend) -> None:
    """Refuse windows that are longer than a model's context."""
    for model in models:
        if width > model.max_length:
            raise HierspecError(
                f"windows of {width} tokens exceed the longest context of {model.name}, "
                f"{model.max_length}: give a smaller --width"
            )


def write_report(path: Path, schema: int, info: Mapping[str, Any], device: torch.device) -> None:
    """Write the JSON report beside trained heads, with this machine's description."""
    report = {"schema_version": schema, **info, "environment": machine.hardware(device)}
    write_atomically(path.with_suffix(".json"), json.dumps(report, indent=1) + "\n", "the report")
