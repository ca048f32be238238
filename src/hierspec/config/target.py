"""A model's own configuration, without its weights."""

from __future__ import annotations

from typing import Any

from hierspec.errors import HierspecError


def target_config(model: str) -> Any:
    """A model's own configuration, without its weights."""
    if model.startswith("zoo:"):
        from hierspec.zoo.registry import resolve

        return resolve(model).config
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except OSError as error:
        raise HierspecError(f"cannot read the configuration of {model!r}: {error}") from None
