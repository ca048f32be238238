"""Which tokens end a text of a model, as transformers' ``generate`` reads them."""

from __future__ import annotations

from typing import Any

from hierspec.lm.adapters import base_model_of, is_adapter, plain_model
from hierspec.utils.files import expand_user
from hierspec.zoo import registry

from .in_memory import ModelInMemory
from .target import target_config


def ends_of(model: str) -> frozenset[int]:
    """Return the ids in the model's generation configuration; in its own where it has no other.

    A chat model may have several, of which its tokenizer knows one: that of a turn, or of a text.
    """
    found = _generation_config(model) or target_config(model)
    ids = getattr(found, "eos_token_id", None)
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def with_tokenizer(ends: frozenset[int], tokenizer: Any) -> frozenset[int]:
    """Return what ends a text by the model, and by its tokenizer if it names an end."""
    own = getattr(tokenizer, "eos_token_id", None)
    return ends if own is None else ends | {own}


_SAMPLING = {"do_sample": False, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}


def unread(model: str) -> list[str]:
    """Return sampling settings of a model's generation configuration, which apply only if asked.

    Fields that change ``generate``'s text, as ``repetition_penalty=1.2``; :class:`Hierarchy` and
    the command line are greedy by default.
    """
    found = _generation_config(model)
    values = {name: getattr(found, name, None) for name in _SAMPLING}
    return [f"{k}={v}" for k, v in values.items() if v is not None and v != _SAMPLING[k]]


def _generation_config(model: str) -> Any:
    """Return the generation configuration of a loaded model, or beside a saved one, if any."""
    from transformers import GenerationConfig

    if isinstance(model, ModelInMemory):
        return getattr(plain_model(model.model), "generation_config", None)
    if registry.can_resolve(model):
        return None
    if is_adapter(model):
        return _generation_config(base_model_of(model))
    folder = expand_user(model)
    try:
        return GenerationConfig.from_pretrained(folder if folder.is_dir() else model)
    except Exception:  # as in transformers: the model's own configuration counts
        return None
