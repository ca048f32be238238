"""A model's own configuration, without its weights."""

from __future__ import annotations

from typing import Any

from hierspec.errors import HierspecError

from .in_memory import ModelInMemory, plain_model


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

    try:
        return AutoConfig.from_pretrained(model)
    except Exception as error:  # transformers and its validators raise what they like
        raise HierspecError(f"cannot read the configuration of {model!r}: {error}") from error
