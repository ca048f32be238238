"""Checkpoints in memory: weights and tokenizers, loaded once however many hierarchies name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.errors import HierspecError, first_line
from hierspec.lm.adapters import base_model_of, is_adapter, plain_model
from hierspec.lm.backend import Backend
from hierspec.lm.lean.kernel_weights import draft_backend
from hierspec.lm.load import DTYPES, load, wrap
from hierspec.lm.weights import WeightSource, check_reference
from hierspec.utils import machine
from hierspec.utils.files import expand_user
from hierspec.zoo import registry

from .ends import ends_of
from .in_memory import ModelInMemory
from .schema import TargetConfig

Key = tuple[str, str, str]  # name, dtype and backend


@dataclass(slots=True, eq=False)
class Loaded:
    """Checkpoints in memory, by name, dtype and backend: any number of hierarchies share them."""

    backends: dict[Key, Backend] = field(default_factory=dict)
    tokenizers: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, frozenset[int]] = field(default_factory=dict)

    def put(self, target: TargetConfig, backend: Backend, tokenizer: Any) -> None:
        """Add a model that is in memory already; ``target.model`` is its name.

        What ends its texts is the caller's affair: nothing is looked up by that name.
        """
        self.backends[key_of(target)] = backend
        self.tokenizers[target.model] = tokenizer
        self.ends[target.model] = frozenset()

    def ends_of(self, model: str) -> frozenset[int]:
        """Return the tokens that end a text of a model, beside its tokenizer's own."""
        if model not in self.ends:
            self.ends[model] = ends_of(model)
        return self.ends[model]

    def backend(self, model: TargetConfig) -> Backend:
        """Return a model's weights; load them, and its tokenizer, where they are missing.

        Raises:
            HierspecError: it cannot be read, or has a dtype or device that there is not.
        """
        key = key_of(model)
        if key not in self.backends and isinstance(model.model, ModelInMemory):
            self.backends[key] = from_memory(model)
            if model.model not in self.tokenizers:
                self.tokenizers[model.model] = tokenizer_beside(model.model.model)
        if key not in self.backends:
            source: str | WeightSource = model.model
            if registry.can_resolve(model.model):
                source = registry.resolve(model.model)
            self.backends[key] = load(
                source,
                dtype=_dtype(model.dtype),
                device=machine.device(model.device),
                backend=model.backend,
            )
            if model.model not in self.tokenizers:
                self.tokenizers[model.model] = load_tokenizer(source)
        return self.backends[key]

    def drafting(self, model: TargetConfig) -> Backend:
        """Return a model's weights as a draft runs them (:mod:`hierspec.lm.lean.kernel_weights`).

        Raises:
            HierspecError: as :meth:`backend`.
        """
        key = draft_key_of(model)
        if key not in self.backends:
            self.backends[key] = draft_backend(self.backend(model))
        return self.backends[key]


def key_of(model: TargetConfig) -> Key:
    """Return what distinguishes checkpoints in memory."""
    return (model.model, model.dtype, model.backend)


def draft_key_of(model: TargetConfig) -> Key:
    """Return what distinguishes models in memory that draft."""
    return (model.model, model.dtype, "draft")


def from_memory(target: TargetConfig) -> Backend:
    """Run a model that its caller has loaded: its own layers, or ``lean`` on a copy.

    Raises:
        HierspecError: it cannot be driven, or is asked to be what it is not.
    """
    assert isinstance(target.model, ModelInMemory)
    model, name = plain_model(target.model.model), str(target.model)
    dtype = _dtype(target.dtype)
    if dtype is not None and dtype != model.dtype:
        raise HierspecError(
            f"{name} is loaded in {str(model.dtype).removeprefix('torch.')}, and dtype "
            f"{target.dtype!r} was asked: load it in that, or leave dtype out"
        )
    if target.device != "auto" and torch.device(target.device).type != model.device.type:
        raise HierspecError(
            f"{name} is loaded on {model.device}, and device {target.device!r} was asked: move it "
            "there, or leave device out"
        )
    return wrap(model, name, target.backend)


def tokenizer_beside(model: Any) -> Any:
    """Load the tokenizer saved beside a loaded model; ``None`` where there is none."""
    path = plain_model(model).config.name_or_path
    return load_tokenizer(path) if path else None


def load_tokenizer(source: str | WeightSource) -> Any:
    """Load the tokenizer beside a model; ``None`` where there is none (ids in, ids out)."""
    from transformers import AutoTokenizer

    path = source if isinstance(source, str) else source.tokenizer_path
    if path is None:
        return None
    folder = expand_user(path)
    if isinstance(source, str) and not folder.is_dir():
        check_reference(source)
    if is_adapter(folder) and not (folder / "tokenizer_config.json").is_file():
        return load_tokenizer(base_model_of(folder))
    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:  # tokenizers raise what they like
        file = folder / "tokenizer.json"
        if not file.is_file():
            return None  # generation says where one is needed
        why = first_line(error)
        raise HierspecError(
            f"the tokenizer beside {folder} cannot be read ({why}): fetch its files again, or move "
            "them away and give token ids (--ids)"
        ) from None


def _dtype(name: str) -> torch.dtype | None:
    if name == "auto":
        return None
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if dtype not in DTYPES:
        raise HierspecError(
            f"unsupported dtype {name!r}; use auto, float32, bfloat16, float16 or float64"
        )
    return dtype
