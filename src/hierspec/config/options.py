"""Options of a request, for each of its prompts: a list of values, or one for all.

What transformers and vLLM call otherwise is refused with what it is called here; nothing that a
caller says is ignored.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hierspec.engine.caches import KeptCache
from hierspec.errors import HierspecError
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.schema import check_keys, nearest_key, short_repr

from . import arguments
from .arguments import integer

SAMPLING = tuple(field.name for field in fields(SamplingParams))


def known(options: Mapping[str, Any], others: Sequence[str]) -> None:
    """Refuse an option that there is not, with what transformers' options are called here.

    Args:
        others: names of the call's options beyond those of sampling.
    """
    for name in options:
        if name in SAMPLING:
            continue
        hint = _ELSEWHERE.get(name)
        if hint is None and name in _fields_of_generation_config():
            hint = f"give it as generation_config=GenerationConfig({name}=...)"
        near = nearest_key(name, [*SAMPLING, *others])
        if hint is None and near is not None:
            hint = f"did you mean {near!r}? help(Hierarchy.generate) lists them all"
        raise HierspecError(f"no option {name!r}: {hint or 'help(Hierarchy.generate) lists them'}")


_ELSEWHERE = {
    "assistant_model": "name draft models in drafts= when the Hierarchy is made",
    "do_sample": "temperature=0 is greedy (the default), and any above it samples",
    "hierarchy": "make the Hierarchy with it: Hierarchy.from_config(hierarchy)",
    "input_ids": "the ids are the prompt itself, the first argument",
    "attention_mask": "give each prompt without padding, as a list of ids",
    "max_length": "say max_new_tokens, which does not count the prompt",
    "max_tokens": "say max_new_tokens",
    "n": "say num_return_sequences",
    "num_beams": "beam search is not done",
    "stop_strings": "say stop",
    "stop_token_ids": "say eos_token_id",
    "use_cache": "there always is one",
}


def known_to_make(options: Mapping[str, Any]) -> None:
    """Refuse an argument that ``Hierarchy(...)`` has not, with what it is called there."""
    for name in options:
        hint = _MAKING.get(name)
        if hint is None and name in (*SAMPLING, *_fields_of_generation_config()):
            hint = f"it is an option of each call: generate(prompt, {name}=...)"
        near = nearest_key(name, ["target", "tokenizer", "drafts", "controller"])
        if hint is None and near is not None:
            hint = f"did you mean {near!r}?"
        raise HierspecError(f"Hierarchy has no {name!r}: {hint or 'see help(Hierarchy)'}")


_FILE = 'give a mapping: Hierarchy({{"target": {{"model": ..., "{}": ...}}, "levels": [...]}})'
_MAKING = {
    **dict.fromkeys(
        ("draft", "draft_model", "assistant_model", "assistant", "speculative_model"),
        "say drafts=[model], smallest first",
    ),
    **dict.fromkeys(
        ("num_speculative_tokens", "num_assistant_tokens"),
        'give levels: drafts=[{"method": "draft_model", "model": ..., '
        '"num_speculative_tokens": ...}]',
    ),
    **dict.fromkeys(("dtype", "torch_dtype"), _FILE.format("dtype")),
    **dict.fromkeys(("device", "device_map"), _FILE.format("device")),
    **dict.fromkeys(
        ("preset", "name"), "say Hierarchy.from_preset(name, target=model, drafts=[...])"
    ),
    **dict.fromkeys(
        ("hierarchy", "config", "levels"), "say Hierarchy.from_config(file, mapping or preset)"
    ),
    "model": "the target is the first argument: Hierarchy(model, tokenizer, drafts=[...])",
}


def _fields_of_generation_config() -> frozenset[str]:
    from transformers import GenerationConfig

    return frozenset(GenerationConfig().to_dict())


def sampling_params(value: Any, options: Mapping[str, Any], count: int) -> list[SamplingParams]:
    """Return sampling parameters for each of ``count`` prompts.

    Args:
        value: of ``sampling=``: one or a mapping for all, or a list with one for each.
        options: given one by one; a number may be a list with one for each.
    """
    if value is not None and options:
        raise HierspecError(f"give sampling=... or {', '.join(options)}, not both")
    if value is not None:
        return [_params(one) for one in each(value, count, "sampling")]
    single = {name: options[name] for name in _NOT_NUMBERS if name in options}
    numbers = {name: each(options[name], count, name) for name in options if name not in single}
    if not any(isinstance(options[name], list | tuple) for name in numbers):
        return [SamplingParams.make(**options)] * count
    rows = [{name: several[i] for name, several in numbers.items()} for i in range(count)]
    return [SamplingParams.make(**single, **row) for row in rows]


_NOT_NUMBERS = ("logit_bias", "logits_processors")


def _params(value: Any) -> SamplingParams:
    if isinstance(value, SamplingParams):
        return value
    if isinstance(value, Mapping):
        return SamplingParams.make(**check_keys(value, list(SAMPLING), "sampling"))
    raise HierspecError(f"sampling must be SamplingParams or a mapping, not {short_repr(value)}")


def not_twice(said: Mapping[str, Any], by: str) -> None:
    """Refuse an option that something else, given too, says as well."""
    for name, value in said.items():
        if value is not None:
            raise HierspecError(f"{by} says it: leave {name} out, or set it there")


def lengths(value: Any, count: int) -> list[int | None]:
    """Return each prompt's maximum of output tokens; ``None``: what the context holds."""
    return [
        None if one is None else integer(one, "max_new_tokens")
        for one in each(value, count, "max_new_tokens")
    ]


def copies(value: Any, sampling: Sequence[SamplingParams]) -> int:
    """Return the number of samples of each prompt."""
    number = integer(value, "num_return_sequences")
    if number < 1:
        raise HierspecError(f"num_return_sequences must be at least 1, not {number}")
    if number > 1 and any(one.greedy for one in sampling):
        raise HierspecError(
            "num_return_sequences above 1 needs sampling, since greedy decoding gives one text: "
            "set a temperature above 0"
        )
    return number


def seeds(value: Any, count: int, copies: int) -> tuple[int, list[tuple[int, int]] | None]:
    """Return a batch's seed and, where prompts have their own, each sequence's (seed, place)."""
    if not isinstance(value, list | tuple):
        return _seed(value), None
    own = [_seed(one) for one in each(value, count, "seed")]
    return (own or [0])[0], [(one, place) for one in own for place in range(copies)]


def _seed(value: Any) -> int:
    chosen = arguments.seed(value)
    return secrets.randbits(32) if chosen is None else chosen


def inside(sampling: SamplingParams, vocab_size: int) -> None:
    """Refuse biases of tokens that there are not."""
    for token, _ in sampling.logit_bias:
        if token >= vocab_size:
            raise HierspecError(
                f"logit_bias: the target has {vocab_size} tokens, from 0 on, and no token {token}"
            )


def caches(value: Any, count: int) -> list[KeptCache | None] | None:
    """Return a kept cache for each sequence, or ``None`` for all."""
    if value is None:
        return None
    if isinstance(value, KeptCache):
        if count != 1:
            raise HierspecError(
                f"a cache serves one sequence, and there are {count}: give a list of caches"
            )
        return [value]
    found = each(value, count, "cache")
    if not all(one is None or isinstance(one, KeptCache) for one in found):
        raise HierspecError("cache must be a KeptCache, or a list of them (Hierarchy.session())")
    return found


def logprobs(value: Any) -> tuple[bool, int]:
    """Return whether log-probabilities are wanted, and of how many alternatives to a token."""
    if value is None or isinstance(value, bool):
        return bool(value), 0
    number = integer(value, "logprobs")
    if number < 0:
        raise HierspecError(
            f"logprobs must be true, or how many alternatives to report, not {number}"
        )
    return True, number


def each(value: Any, count: int, what: str) -> list[Any]:
    """Return one value for each of ``count`` prompts, from a list of them or one for all."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise HierspecError(f"{what} has {len(value)} entries for {count} prompts")
    return list(value)


def stops(value: Any, count: int) -> list[tuple[str, ...]]:
    """Stop strings of each prompt: one text or several for all, or a list with one entry each.

    A list of texts alone is for all; entries that are lists, or ``None``, are one for each.
    """
    several = isinstance(value, list | tuple) and any(not isinstance(one, str) for one in value)
    if several and all(one is None or isinstance(one, str | list | tuple) for one in value):
        return [arguments.stop_strings(one) for one in each(value, count, "stop")]
    return [arguments.stop_strings(value)] * count


Until = Callable[[int, Sequence[int]], bool]


def until(value: Any, criteria: Any, max_time: float | None) -> Until | None:
    """Return what ends sequences, as a function of a sequence's number and its tokens so far.

    Args:
        value: such a function.
        criteria: of transformers; asked about one text at a time, and handed no scores.
        max_time: seconds from now.
    """
    if value is not None and not callable(value):
        raise HierspecError(
            f"until must be a function of (sequence, tokens), not {short_repr(value)}"
        )
    last = None if max_time is None else time.monotonic() + max_time
    found: list[Any] = [value, _criteria(criteria)]
    ends: list[Until] = [one for one in found if one is not None]
    if last is not None:
        ends.append(lambda sequence, tokens: time.monotonic() > last)
    if len(ends) < 2:
        return ends[0] if ends else None
    return lambda sequence, tokens: any(one(sequence, tokens) for one in ends)


def _criteria(value: Any) -> Until | None:
    if value is None:
        return None
    found = list(value) if isinstance(value, Iterable) else [value]
    for one in found:
        if not callable(one):
            raise HierspecError(
                "stopping_criteria must be functions of (input_ids [1, L], scores), as "
                f"transformers' are, not {short_repr(one)}"
            )
    import torch

    def met(_: int, tokens: Sequence[int]) -> bool:
        ids = torch.tensor([list(tokens)])
        return any(bool(torch.as_tensor(one(ids, None)).all()) for one in found)

    return met
