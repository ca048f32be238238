"""A model by its name: whether there is one, and its own configuration, without its weights."""

from __future__ import annotations

from typing import Any

from hierspec.errors import HierspecError
from hierspec.lm.adapters import base_model_of, is_adapter, plain_model
from hierspec.lm.weights import check_reference
from hierspec.utils.files import expand_user
from hierspec.zoo import registry

from .in_memory import ModelInMemory


def check_name(model: str) -> None:
    """Refuse a name that leads to no model. Nothing is loaded, torch neither.

    Raises:
        HierspecError: no folder, no file, or no name of ours; a hub id may be anything else.
    """
    if isinstance(model, ModelInMemory):
        return
    if registry.can_resolve(model):
        registry.check(model)
    elif not expand_user(model).is_dir():
        check_reference(model)


def target_config(model: str) -> Any:
    """Return the configuration of a model by name, as transformers reads it.

    Raises:
        HierspecError: there is none, or transformers cannot use it.
    """
    if isinstance(model, ModelInMemory):
        return plain_model(model.model).config.get_text_config(decoder=True)
    if registry.can_resolve(model):
        return registry.resolve(model).config
    from transformers import AutoConfig

    if is_adapter(model):
        return target_config(base_model_of(model))
    check_name(model)
    try:
        return AutoConfig.from_pretrained(model)
    except Exception as error:  # transformers and its validators raise what they like
        raise HierspecError(f"cannot read the configuration of {model!r}: {error}") from error
