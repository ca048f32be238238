"""What a model's generation configuration says: which tokens end a text, how it is sampled."""

from __future__ import annotations

import contextlib
import warnings
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from hierspec.errors import HierspecError, HierspecWarning, first_line
from hierspec.lm.adapters import base_model_of, is_adapter, plain_model
from hierspec.lm.hub import local_files_only
from hierspec.utils.files import expand_user
from hierspec.utils.records import FrozenRecord
from hierspec.utils.schema import Expected, Integer, validate
from hierspec.zoo import registry

from .in_memory import ModelInMemory
from .target import model_config

_FILE = "generation_config.json"
_Id = NonNegativeInt
_EosIds = Annotated[Integer | list[Integer] | None, Expected("a token id or a list of them")]


class _Plain(FrozenRecord):
    """A generation configuration that needs no transformers to be read and checked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    bos_token_id: _Id | None = None
    eos_token_id: _Id | list[_Id] | None = None
    pad_token_id: _Id | None = None
    do_sample: bool | None = None
    temperature: PositiveFloat | None = None
    top_k: PositiveInt | None = None
    top_p: Annotated[PositiveFloat, Field(le=1)] | None = None
    repetition_penalty: PositiveFloat | None = None
    max_length: PositiveInt | None = None
    output_attentions: bool | None = None
    output_hidden_states: bool | None = None
    use_cache: bool | None = None
    transformers_version: str | None = None
    from_model_config: bool | None = Field(default=None, alias="_from_model_config")


class GenerationConfigWarning(HierspecWarning, UserWarning):
    """A model's generation configuration is not valid JSON and is not used."""


def model_eos_ids(model: str) -> frozenset[int]:
    """Return the ids in the model's generation configuration; else those in its configuration.

    A chat model may have several, of which its tokenizer has one: the end of a turn, or of a text.

    Warns:
        GenerationConfigWarning: it is no JSON, and the model's own configuration is used.
    """
    config = _generation_config(model)
    if config is None:
        _warn_of_unread(model)
        config = model_config(model)
    ids = validate(_EosIds, getattr(config, "eos_token_id", None), "the model's eos_token_id")
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def add_tokenizer_eos(eos_token_ids: frozenset[int], tokenizer: Any) -> frozenset[int]:
    eos_token_id = getattr(tokenizer, "eos_token_id", None)
    return eos_token_ids if eos_token_id is None else eos_token_ids | {eos_token_id}


_SAMPLING_DEFAULTS = {"do_sample": False, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}


def ignored_sampling(model: str) -> list[str]:
    """Return the sampling settings of a model's generation configuration, as ``name=value``.

    They would change the text of transformers' ``generate``; :class:`Hierarchy` and the command
    line ignore them, and are greedy by default.

    Raises:
        HierspecError: the generation configuration holds what transformers refuses, too.
    """
    config = _generation_config(model)
    values = {name: getattr(config, name, None) for name in _SAMPLING_DEFAULTS}
    return [f"{k}={v}" for k, v in values.items() if v not in (None, _SAMPLING_DEFAULTS[k])]


_CHAT_SAMPLING = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1}
# What a configuration that samples means by what it does not say.
_UNSAID = {"temperature": 1.0, "top_k": 50, "top_p": None, "min_p": None, "repetition_penalty": 1.0}


def chat_sampling(model: str) -> dict[str, float | int | None]:
    """Return how a model's answers in a chat are sampled: as its generation configuration says.

    A greedy configuration, or a missing one, does not apply to chats, where greedy answers of small
    models repeat themselves.
    """
    config = _generation_config(model)
    if not getattr(config, "do_sample", None):
        return dict(_CHAT_SAMPLING)
    values = {name: getattr(config, name, None) for name in _UNSAID}
    return {name: _UNSAID[name] if value is None else value for name, value in values.items()}


def _generation_config(model: str) -> Any:
    if isinstance(model, ModelInMemory):
        return getattr(plain_model(model.model), "generation_config", None)
    if registry.can_resolve(model):
        return None
    if is_adapter(model):
        return _generation_config(base_model_of(model))
    folder = expand_user(model)
    if folder.is_dir() and not (folder / _FILE).is_file():
        return None
    with contextlib.suppress(OSError, ValidationError):
        return _Plain.model_validate_json((folder / _FILE).read_bytes())
    from transformers import GenerationConfig

    path = folder if folder.is_dir() else model
    cached = local_files_only(str(path))
    try:
        return GenerationConfig.from_pretrained(path, local_files_only=cached)
    except OSError:  # missing, or no JSON: as in transformers, the model's own is used
        return None
    except Exception as error:  # its checks may raise anything
        raise HierspecError(
            f"the generation configuration of {model} cannot be used: {first_line(error)}"
        ) from error


def _warn_of_unread(model: str) -> None:
    if isinstance(model, ModelInMemory) or registry.can_resolve(model):
        return
    file = expand_user(base_model_of(model) if is_adapter(model) else model) / _FILE
    if file.is_file():
        warnings.warn(
            f"{file} is not valid JSON and is not used, as in transformers: what ends a text is "
            "read from config.json",
            GenerationConfigWarning,
            stacklevel=2,
        )
