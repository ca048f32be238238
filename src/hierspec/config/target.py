"""Models by name: whether one exists, and its configuration, without its weights."""

from __future__ import annotations

import re
from typing import Any

from hierspec.errors import HierspecError, reason_of
from hierspec.lm.adapters import base_model_of, is_adapter, plain_model
from hierspec.lm.hub import local_files_only, what_it_may_be
from hierspec.lm.llama_config import read_llama_config
from hierspec.lm.weights import validate_reference
from hierspec.utils.files import expand_user
from hierspec.zoo import registry

from .in_memory import ModelInMemory


def validate_model_name(model: str) -> None:
    """Refuse the name of a model that does not exist; nothing is loaded, not even torch.

    Raises:
        HierspecError: it is no folder, no file, not in the zoo, and cannot be a hub id either.
    """
    if isinstance(model, ModelInMemory):
        return
    if registry.can_resolve(model):
        registry.validate(model)
    elif not (folder := expand_user(model)).is_dir():
        _validate_hub_id(model)
        validate_reference(model)
    elif (files := sorted(folder.glob("*.gguf"))) and not any(
        (folder / name).is_file() for name in ("config.json", "adapter_config.json")
    ):
        raise HierspecError(f"{model} is a folder of GGUF files: name one, as in {files[0]}")


def _validate_hub_id(model: str) -> None:
    """Refuse ollama's name of a model, and that of one in the zoo without its prefix."""
    if f"{registry.PREFIX}{model}" in registry.names():
        raise HierspecError(f"no directory {model!r}; did you mean {registry.PREFIX}{model}?")
    hosts = ("hf.co/", "huggingface.co/")
    if model.startswith(hosts) or re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?:[\w.-]+", model):
        raise HierspecError(
            f"{model!r} is not a directory, and hierspec does not read ollama's names: fetch the "
            "model's GGUF file (hf download OWNER/NAME FILE.gguf --local-dir .) and name that"
        )


def model_config(model: str) -> Any:
    """Return the configuration of the model of that name: transformers', or a stand-in for it
    (:mod:`hierspec.lm.llama_config`).

    Raises:
        HierspecError: there is none, or transformers cannot use it.
    """
    if isinstance(model, ModelInMemory):
        return plain_model(model.model).config.get_text_config(decoder=True)
    if registry.can_resolve(model):
        return registry.resolve(model).config
    if is_adapter(model):
        return model_config(base_model_of(model))
    validate_model_name(model)
    if (config := read_llama_config(expand_user(model))) is not None:
        return config
    from transformers import AutoConfig

    cached = local_files_only(model)
    try:
        return AutoConfig.from_pretrained(model, local_files_only=cached, trust_remote_code=False)
    except Exception as error:  # transformers and its validators may raise anything
        raise HierspecError(
            f"cannot read the configuration of {model!r} ({reason_of(error)})"
            f"{what_it_may_be(model)}"
        ) from error
