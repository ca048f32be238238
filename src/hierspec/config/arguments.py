"""The arguments of Python callers, converted to one form each; every refusal names the fix.

Lists, tuples, one-dimensional tensors and arrays are all fine as token ids; a text in place of a
list, or a number in place of a text, is refused.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from hierspec.errors import HierspecError
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.prompts import apply_chat, is_conversation, template_variables
from hierspec.utils.schema import nearest_key, short_repr
from hierspec.utils.validation import HALF_CHARACTERS

from .in_memory import ModelInMemory, is_model, wrap_model
from .schema import TargetConfig

SAMPLING = tuple(field.name for field in fields(SamplingParams))


def refuse_unknown_arguments(given: Mapping[str, Any]) -> None:
    for name in given:
        hint = _ARGUMENT_HINTS.get(name)
        if hint is None and name in (*SAMPLING, *generation_config_fields()):
            hint = f"it is an option of each call: generate(prompt, {name}=...)"
        near = nearest_key(name, ["target", "tokenizer", "drafts", "controller"])
        if hint is None and near is not None:
            hint = f"did you mean {near!r}?"
        raise HierspecError(f"Hierarchy has no {name!r}: {hint or 'see help(Hierarchy)'}")


_IN_MAPPING = (
    'give a mapping: Hierarchy({{"target": {{"model": ..., "{}": "{}"}}, "levels": [...]}})'
)
_ARGUMENT_HINTS = {
    **dict.fromkeys(
        ("draft", "draft_model", "assistant_model", "assistant", "speculative_model"),
        "use drafts=[model], smallest first",
    ),
    **dict.fromkeys(
        ("num_speculative_tokens", "num_assistant_tokens"),
        'give levels: drafts=[{"method": "draft_model", "model": ..., '
        '"num_speculative_tokens": ...}]',
    ),
    **dict.fromkeys(("dtype", "torch_dtype"), _IN_MAPPING.format("dtype", "bfloat16")),
    **dict.fromkeys(("device", "device_map"), _IN_MAPPING.format("device", "cuda")),
    **dict.fromkeys(
        ("preset", "name"), "use Hierarchy.from_preset(name, target=model, drafts=[...])"
    ),
    **dict.fromkeys(
        ("hierarchy", "config", "levels"), "use Hierarchy.from_config(file, mapping or preset)"
    ),
    **dict.fromkeys(
        (
            *("attn_implementation", "load_in_4bit", "load_in_8bit", "quantization_config"),
            *("revision", "token", "trust_remote_code"),
        ),
        "load the model with it, by AutoModelForCausalLM.from_pretrained, and give that: "
        "Hierarchy(model, tokenizer, drafts=[...])",
    ),
    "model": "the target is the first argument: Hierarchy(model, tokenizer, drafts=[...])",
}


def generation_config_fields() -> frozenset[str]:
    from transformers import GenerationConfig

    return frozenset(GenerationConfig().to_dict())


def prompt_list(value: Any, pad_token_id: int | None = None) -> list[Any]:
    """Return a list of prompts from any iterable of them.

    Refuse a text, which is one prompt, and padded rows, whose pads would be read as text.
    """
    if isinstance(value, Mapping) and "input_ids" in value:
        raise HierspecError(
            "prompts must be a list of prompts, not a tokenizer's whole output: give the texts "
            'themselves, or its ["input_ids"] made without padding'
        )
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise HierspecError(
            f"prompts must be a list of prompts, not {short_repr(value)}: write [prompt]"
        )
    if pad_token_id is not None and getattr(value, "ndim", 1) == 2:
        rows = list[list[int]](cast(Any, value).tolist())
        starts = [_run_length(row, pad_token_id) for row in rows]
        ends = [_run_length(row[::-1], pad_token_id) for row in rows]
        if len({*starts}) > 1 or len({*ends}) > 1:
            raise HierspecError(
                f"the rows seem padded with token {pad_token_id}, which would be read as text: "
                "give the texts themselves, or lists of ids without padding (if none of it is "
                "padding: rows.tolist())"
            )
    return list(value)


def _run_length(row: list[int], token: int) -> int:
    return next((i for i, other in enumerate(row) if other != token), len(row))


def prompt_ids(
    prompt: Any,
    tokenizer: Any,
    chat: bool = False,
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of a text or of a conversation, or ids as they are.

    Args:
        tokenizer: the target's; ``None``: only ids are accepted.
        chat: apply the chat template to texts, too.
        tools, variables: for the template (:func:`hierspec.utils.prompts.apply_chat`).

    Raises:
        HierspecError: no tokenizer, no chat template, or options that only a template reads.
    """
    has_messages = is_conversation(prompt)
    needs_template = has_messages or (chat and isinstance(prompt, str))
    if (tools or variables) and not needs_template:
        raise HierspecError(
            "tools and chat_template_kwargs are for the chat template: add chat=True, or give "
            "a list of messages"
        )
    if not isinstance(prompt, str) and not has_messages:
        return token_ids(prompt)
    require_tokenizer(tokenizer)
    text = prompt
    if not isinstance(prompt, str):
        text = json.dumps(prompt, ensure_ascii=False, skipkeys=True, default=str)
    if HALF_CHARACTERS.search(text):
        raise HierspecError("a prompt holds half a character (a lone surrogate): leave it out")
    if needs_template:
        return apply_chat(tokenizer, prompt, tools, **template_variables(variables))
    ids = tokenizer(prompt, verbose=False)["input_ids"]  # its length is checked later
    if prompt and not ids:
        raise HierspecError(
            f"the tokenizer ({type(tokenizer).__name__}) makes no token of this text: "
            "check that it is the model's own, or give token ids"
        )
    return ids


def require_tokenizer(tokenizer: Any) -> None:
    """Refuse texts where there is no tokenizer to read them."""
    if tokenizer is None:
        raise HierspecError(
            "the target has no tokenizer beside it that is read: name one (on the command line "
            "--tokenizer FOLDER, in Python the second argument), or give token ids (--ids)"
        )


def token_ids(value: Any) -> list[int]:
    """Return the integers of a list, a tuple, a one-dimensional tensor or array."""
    if hasattr(value, "tolist"):
        if getattr(value, "ndim", 1) != 1:
            raise HierspecError(
                f"a prompt must be one row of token ids, not a tensor of shape "
                f"{tuple(value.shape)}: give value[0], or each row to generate_batch"
            )
        value = value.tolist()
    if isinstance(value, Mapping) and "input_ids" in value:
        raise HierspecError(
            "a prompt must be a text or one row of token ids, not a tokenizer's whole output: give "
            'its ["input_ids"], and for a batch each row of them, without padding'
        )
    if isinstance(value, Mapping):
        raise HierspecError(
            "a prompt must be a text, a list of token ids, or a list of messages, not a mapping: a "
            "conversation of one message is [message]"
        )
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise HierspecError(
            f"a prompt must be a text or a list of token ids, not {short_repr(value)}"
        )
    ids = list(value)
    if all(type(token) is int for token in ids):
        return ids
    if ids and all(isinstance(token, str) for token in ids):
        raise HierspecError(
            f"a prompt holds {short_repr(ids[0])}, which is not a token id: give one text without "
            "a list, and several to generate_batch"
        )
    if ids and (isinstance(ids[0], list | tuple) or getattr(ids[0], "ndim", 0) > 0):
        raise HierspecError(
            "a prompt must be one text, row of token ids or conversation, not a list of them: give "
            "value[0], or all of them to generate_batch"
        )
    return [_token_id(token, "a prompt") for token in ids]


def seed(value: Any) -> int | None:
    """Return a seed of 64 bits, or ``None`` for a fresh one."""
    if value is None:
        return None
    number = integer(value, "seed")
    if not -(2**63) <= number < 2**64:
        raise HierspecError(f"seed must have at most 64 bits, not be {number}")
    return number


def eos_ids(value: Any) -> frozenset[int]:
    return _id_set(value, "eos_token_id", " (ignore_eos=True: none)")


def stop_token_ids(value: Any, vocab_size: int) -> frozenset[int]:
    ids = frozenset[int]() if value is None else _id_set(value, "stop_token_ids")
    if ids and max(ids) >= vocab_size:
        raise HierspecError(
            f"stop_token_ids: {max(ids)} is not a token of the target: its ids are 0 to "
            f"{vocab_size - 1}"
        )
    return ids


def _id_set(value: Any, name: str, hint: str = "") -> frozenset[int]:
    is_vector = hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1
    if is_vector or isinstance(value, list | tuple | set | frozenset | range):
        ids = [_token_id(token, name) for token in value]
    else:
        ids = [_token_id(value, name)]
    if ids and min(ids) < 0:
        raise HierspecError(f"{name} must be at least 0, not {min(ids)}{hint}")
    return frozenset(ids)


def target(value: Any) -> TargetConfig | None:
    if value is None or isinstance(value, TargetConfig):
        return value
    return TargetConfig(model=model_name(value, "target"))


def model_names(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(model_name(model, name) for model in value)
    return (model_name(value, name),)


def model_name(value: Any, name: str) -> str:
    """Return a directory, a hub id, ``FILE.gguf``, ``zoo:NAME``, or a loaded model as text."""
    value = wrap_model(value)
    if isinstance(value, ModelInMemory):
        return value
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        raise HierspecError(
            f"{name} must be a directory, a hub id, FILE.gguf, zoo:NAME or a loaded model, "
            f"not {short_repr(value)}"
        )
    return str(value)


AUTO_TOKENIZER = (
    "auto reads the tokenizer saved beside the model, in the folder that model.config.name_or_path "
    "names: leave it out here, and give models that draft as drafts=[model]"
)


def is_tokenizer(value: Any) -> bool:
    """Return whether a value is a loaded tokenizer, by what it can do."""
    return callable(value) and hasattr(value, "decode") and not is_model(value)


def validate_tokenizer(value: Any) -> None:
    if is_model(value):
        raise HierspecError(
            "the second argument is the tokenizer, not a model: give models that draft as "
            "drafts=[model]"
        )
    if not is_tokenizer(value):
        raise HierspecError(
            "tokenizer must be a loaded one, as from AutoTokenizer.from_pretrained, not "
            f"{short_repr(value)}; without it the one saved beside the model is used"
        )


def integer(value: Any, name: str) -> int:
    """Return an integer; refuse booleans, texts and fractions."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise HierspecError(f"{name} must be an integer, not {short_repr(value)}")


def _token_id(value: Any, name: str) -> int:
    try:
        return integer(value, "")
    except HierspecError:
        raise HierspecError(f"{name} holds {short_repr(value)}, which is not a token id") from None
