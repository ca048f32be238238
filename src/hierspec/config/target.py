"""A model's own configuration, without its weights."""

from __future__ import annotations

from typing import Any

from hierspec.errors import HierspecError


def target_config(model: str) -> Any:
    """The configuration of a model by name, as transformers reads it.

    Raises:
        HierspecError: there is none, or transformers cannot use it.
    """
    if model.startswith("zoo:"):
        from hierspec.zoo.registry import resolve

        return resolve(model).config
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except Exception as error:  # transformers and its validators raise what they like
        raise HierspecError(f"cannot read the configuration of {model!r}: {error}") from error
