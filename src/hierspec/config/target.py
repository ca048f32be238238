"""A model's own configuration, without its weights."""

from __future__ import annotations

from typing import Any

from hierspec.errors import HierspecError
from hierspec.lm.adapters import base_of, is_adapter, plain_model
from hierspec.lm.load import check_reference
from hierspec.utils.files import expanded

from .in_memory import ModelInMemory


def target_config(model: str) -> Any:
    """The configuration of a model by name, as transformers reads it.

    Raises:
        HierspecError: there is none, or transformers cannot use it.
    """
    from hierspec.zoo import registry

    if isinstance(model, ModelInMemory):
        return plain_model(model.model).config.get_text_config(decoder=True)
    if registry.resolves(model):
        return registry.resolve(model).config
    from transformers import AutoConfig

    if is_adapter(model):
        return target_config(base_of(model))
    if not expanded(model).is_dir():
        check_reference(model)
    try:
        return AutoConfig.from_pretrained(model)
    except Exception as error:  # transformers and its validators raise what they like
        raise HierspecError(f"cannot read the configuration of {model!r}: {error}") from error
