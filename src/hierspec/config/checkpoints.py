"""Checkpoints in memory: weights and tokenizers, loaded once for any number of hierarchies."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.errors import HierspecError, reason_of
from hierspec.lm.adapters import base_model_of, is_adapter, plain_model
from hierspec.lm.backend import Backend
from hierspec.lm.hub import local_files_only
from hierspec.lm.lean.shape import unsupported_reason
from hierspec.lm.load import load, wrap
from hierspec.lm.loaded import Watch, take
from hierspec.lm.native import library
from hierspec.lm.native.backend import FORMS
from hierspec.lm.saved_tokenizer import read_tokenizer
from hierspec.lm.weights import WeightSource, validate_reference
from hierspec.utils import machine
from hierspec.utils.files import expand_user
from hierspec.zoo import registry

from .in_memory import ModelInMemory
from .model_defaults import model_eos_ids
from .schema import TargetConfig
from .target import model_config

Key = tuple[str, str, str, str]  # name, dtype, backend and device


@dataclass(slots=True, eq=False)
class Loaded:
    """Checkpoints in memory, by their keys: any number of hierarchies share them."""

    backends: dict[Key, Backend] = field(default_factory=dict)
    tokenizers: dict[str, Any] = field(default_factory=dict)
    eos_ids_by_model: dict[str, frozenset[int]] = field(default_factory=dict)

    def add(self, target: TargetConfig, backend: Backend, tokenizer: Any) -> None:
        """Add a model that is in memory already; ``target.model`` is its name.

        No ids that end its texts are looked up by that name; the caller must know them.
        """
        self.backends[key_of(target)] = backend
        self.tokenizers[target.model] = tokenizer
        self.eos_ids_by_model[target.model] = frozenset()

    def use_tokenizer(self, target: str, name: str) -> None:
        """Give a target the tokenizer of another model, or of a folder, and what ends its texts.

        Args:
            name: a model with a tokenizer, the folder of one, or a ``tokenizer.json`` in it.

        Raises:
            HierspecError: there is none, or it has more tokens than the target scores.
        """
        file = expand_user(name)
        if file.is_file() and file.name.startswith("tokenizer"):
            name = str(file.parent)
        source = registry.resolve(name) if registry.can_resolve(name) else name
        if (tokenizer := load_tokenizer(source)) is None:
            raise HierspecError(
                f"no tokenizer at {name!r}: give a folder with one, or a model that has one "
                "(directory, hub id, FILE.gguf, or zoo:NAME)"
            )
        size = model_config(target).get_text_config(decoder=True).vocab_size
        if len(tokenizer) > size:
            raise HierspecError(
                f"the tokenizer of {name!r} has {len(tokenizer)} tokens, and the target scores "
                f"{size}: it is another model's"
            )
        self.tokenizers[target] = tokenizer
        if not self.eos_ids(target):
            with contextlib.suppress(HierspecError):  # a folder without a configuration
                self.eos_ids_by_model[target] = self.eos_ids(name)

    def eos_ids(self, model: str) -> frozenset[int]:
        """Return the ids that end a text of a model, apart from its tokenizer's own."""
        if model not in self.eos_ids_by_model:
            self.eos_ids_by_model[model] = model_eos_ids(model)
        return self.eos_ids_by_model[model]

    def watches(self) -> tuple[Watch, ...]:
        watches = (getattr(backend, "watch", None) for backend in self.backends.values())
        return tuple(watch for watch in watches if watch is not None)

    def backend(self, model: TargetConfig) -> Backend:
        """Return a model's weights; load them and its tokenizer first if they are missing.

        Raises:
            HierspecError: it cannot be read, or its dtype or device does not exist.
        """
        key, name = key_of(model), model.model
        if key in self.backends:
            return self.backends[key]
        if isinstance(name, ModelInMemory):
            self.backends[key] = wrap_in_memory(model)
            if name not in self.tokenizers:
                self.tokenizers[name] = load_tokenizer_of(name.model)
            return self.backends[key]
        device = machine.device(model.device)
        is_ours = registry.can_resolve(name)
        source = registry.resolve(name, device=str(device)) if is_ours else name
        self.backends[key] = load(
            source,
            dtype=_parse_dtype(model.dtype),
            device=device,
            backend=model.backend,
        )
        if name not in self.tokenizers:
            self.tokenizers[name] = load_tokenizer(source)
        return self.backends[key]


def key_of(model: TargetConfig) -> Key:
    # ``auto`` and the device that it stands for are one.
    return (model.model, model.dtype, model.backend, str(machine.device(model.device)))


def wrap_in_memory(target: TargetConfig) -> Backend:
    assert isinstance(target.model, ModelInMemory)
    model, name = plain_model(target.model.model), str(target.model)
    dtype = _parse_dtype(target.dtype)
    if dtype is not None and dtype != model.dtype:
        raise HierspecError(
            f"{name} is loaded in {str(model.dtype).removeprefix('torch.')}, not in dtype "
            f"{target.dtype!r}: load it in that, or leave dtype out"
        )
    if target.device != "auto" and torch.device(target.device).type != model.device.type:
        raise HierspecError(
            f"{name} is loaded on {model.device}, not on device {target.device!r}: move it there, "
            "or leave device out"
        )
    return wrap(model, name, target.backend, target.free_model)


def runs_on_own_layers(target: TargetConfig) -> bool:
    """Return whether a target is a loaded model that transformers' layers run, not the kernels."""
    if not isinstance(target.model, ModelInMemory) or target.backend == "lean":
        return False
    if target.backend == "hf":
        return True
    model = plain_model(target.model.model)
    return take(model, str(target.model), target.free_model).backend is None


def can_be_copied(target: TargetConfig) -> bool:
    """Return whether a model is of a kind that has copies in fewer bits.

    Raises:
        HierspecError: there is no such model.
    """
    # Adapters run on transformers' own layers.
    if target.backend == "hf" or is_adapter(target.model) or runs_on_own_layers(target):
        return False
    return unsupported_reason(model_config(target.model)) is None


def device_of(target: TargetConfig) -> torch.device:
    """Return where a target runs.

    Raises:
        HierspecError: this machine has no such device.
    """
    if isinstance(target.model, ModelInMemory):
        return plain_model(target.model.model).device
    return machine.device(target.device)


def kernels_take(target: TargetConfig) -> bool:
    """Return whether the kernels are asked for a target, on a CPU and in a type that they have.

    Raises:
        HierspecError: there is no such model.
    """
    is_ours = target.backend in ("auto", "deterministic")
    if not is_ours or device_of(target).type != "cpu":
        return False
    dtype = _parse_dtype(target.dtype)
    if dtype is None and not isinstance(target.model, ModelInMemory):
        dtype = getattr(model_config(target.model), "dtype", None)
    return dtype is None or dtype in FORMS


def bits_in_kernels(target: TargetConfig) -> float | None:
    """Return the bits of a weight of a file that the kernels run in its own; else ``None``."""
    as_stored = target.dtype == "auto" and target.backend in ("auto", "deterministic")
    if isinstance(target.model, ModelInMemory) or not as_stored:
        return None
    if machine.device(target.device).type != "cpu" or library.load() is None:
        return None
    bits = registry.bits_in_file(target.model)
    return None if bits is None or unsupported_reason(model_config(target.model)) else bits


def load_tokenizer_of(model: Any) -> Any:
    path = plain_model(model).config.name_or_path
    return load_tokenizer(path) if path else None


def load_tokenizer(source: str | WeightSource) -> Any:
    """Load the tokenizer saved with a model; return ``None`` if there is none.

    It is transformers', or one that stands in for it (:mod:`hierspec.lm.saved_tokenizer`).
    """
    path = source if isinstance(source, str) else source.tokenizer_path
    if path is None:
        return None
    folder = expand_user(path)
    if isinstance(source, str) and not folder.is_dir():
        validate_reference(source)
    if is_adapter(folder) and not (folder / "tokenizer_config.json").is_file():
        return load_tokenizer(base_model_of(folder))
    if (tokenizer := read_tokenizer(folder)) is not None:
        return tokenizer
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            path, local_files_only=local_files_only(str(path)), trust_remote_code=False
        )
    except Exception as error:  # tokenizers may raise anything
        if not (folder / "tokenizer.json").is_file():
            return None  # generation raises an error if it needs one
        raise HierspecError(
            f"the tokenizer in {folder} cannot be read ({reason_of(error)}): fetch its files "
            "again, or move them away and give token ids (--ids)"
        ) from None


def _parse_dtype(name: str) -> torch.dtype | None:
    return None if name == "auto" else getattr(torch, name.removeprefix("torch."))
