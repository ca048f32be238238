"""The options of a call: a value for each of its prompts, from a list of values or one for all.

Options that transformers and vLLM call otherwise are refused with their names here; no option is
ignored.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hierspec.engine.caches import SessionCache
from hierspec.errors import HierspecError
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.schema import check_keys, nearest_key, short_repr

from . import arguments
from .arguments import integer

SAMPLING = tuple(field.name for field in fields(SamplingParams))


def refuse_unknown_options(options: Mapping[str, Any], other_names: Sequence[str]) -> None:
    """Refuse an option that does not exist; name the one that replaces it.

    Args:
        other_names: names of the call's options beyond those of sampling.
    """
    for name in options:
        if name in SAMPLING:
            continue
        hint = _OPTION_HINTS.get(name)
        if hint is None and name in _generation_config_fields():
            hint = f"give it as generation_config=GenerationConfig({name}=...)"
        near = nearest_key(name, [*SAMPLING, *other_names])
        if hint is None and near is not None:
            hint = f"did you mean {near!r}? help(Hierarchy.generate) lists them all"
        raise HierspecError(f"no option {name!r}: {hint or 'help(Hierarchy.generate) lists them'}")


_OPTION_HINTS = {
    "assistant_model": "name draft models in drafts= when the Hierarchy is made",
    "do_sample": "temperature=0 is greedy (the default), and any above it samples",
    "hierarchy": "make the Hierarchy with it: Hierarchy.from_config(hierarchy)",
    **dict.fromkeys(
        ("input_ids", "inputs"),
        "the ids are the prompt, one row of them, and come first: generate(input_ids[0], ...)",
    ),
    "attention_mask": "give each prompt without padding, as a list of ids",
    "max_length": "use max_new_tokens, which does not count the prompt",
    "max_tokens": "use max_new_tokens",
    "n": "use num_return_sequences",
    "num_beams": "beam search is not supported",
    "stop_strings": "use stop",
    "use_cache": "there always is one",
}


def refuse_unknown_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that ``Hierarchy(...)`` does not have; name what replaces it."""
    for name in arguments:
        hint = _ARGUMENT_HINTS.get(name)
        if hint is None and name in (*SAMPLING, *_generation_config_fields()):
            hint = f"it is an option of each call: generate(prompt, {name}=...)"
        near = nearest_key(name, ["target", "tokenizer", "drafts", "controller"])
        if hint is None and near is not None:
            hint = f"did you mean {near!r}?"
        raise HierspecError(f"Hierarchy has no {name!r}: {hint or 'see help(Hierarchy)'}")


_IN_MAPPING = (
    'give a mapping: Hierarchy({{"target": {{"model": ..., "{}": ...}}, "levels": [...]}})'
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
    **dict.fromkeys(("dtype", "torch_dtype"), _IN_MAPPING.format("dtype")),
    **dict.fromkeys(("device", "device_map"), _IN_MAPPING.format("device")),
    **dict.fromkeys(
        ("preset", "name"), "use Hierarchy.from_preset(name, target=model, drafts=[...])"
    ),
    **dict.fromkeys(
        ("hierarchy", "config", "levels"), "use Hierarchy.from_config(file, mapping or preset)"
    ),
    "model": "the target is the first argument: Hierarchy(model, tokenizer, drafts=[...])",
}


def _generation_config_fields() -> frozenset[str]:
    from transformers import GenerationConfig

    return frozenset(GenerationConfig().to_dict())


def sampling_params(value: Any, options: Mapping[str, Any], count: int) -> list[SamplingParams]:
    """Return sampling parameters for each of ``count`` prompts.

    Args:
        value: the argument ``sampling``: parameters or a mapping for all, or a list with one entry
            for each.
        options: the parameters passed one by one; a number may be a list with one for each.
    """
    if value is not None and options:
        raise HierspecError(f"give sampling=... or {', '.join(options)}, not both")
    if value is not None:
        return [_params(entry) for entry in broadcast(value, count, "sampling")]
    shared = {name: options[name] for name in _NOT_NUMBERS if name in options}
    numbers = {
        name: broadcast(options[name], count, name) for name in options if name not in shared
    }
    if not any(isinstance(options[name], list | tuple) for name in numbers):
        return [SamplingParams.make(**options)] * count
    rows = [{name: values[i] for name, values in numbers.items()} for i in range(count)]
    return [SamplingParams.make(**shared, **row) for row in rows]


_NOT_NUMBERS = ("logit_bias", "logits_processors")


def _params(value: Any) -> SamplingParams:
    if isinstance(value, SamplingParams):
        return value
    if isinstance(value, Mapping):
        return SamplingParams.make(**check_keys(value, list(SAMPLING), "sampling"))
    raise HierspecError(f"sampling must be SamplingParams or a mapping, not {short_repr(value)}")


def refuse_beside_config(options: Mapping[str, Any]) -> None:
    """Refuse options that are not ``None``, since a ``generation_config`` sets them too."""
    for name, value in options.items():
        if value is not None:
            raise HierspecError(f"generation_config sets {name} too: leave it out, or set it there")


def lengths(value: Any, count: int) -> list[int | None]:
    """Return each prompt's ``max_new_tokens``; ``None``: as many as fit into the context."""
    return [
        None if length is None else integer(length, "max_new_tokens")
        for length in broadcast(value, count, "max_new_tokens")
    ]


def num_samples(value: Any, sampling: Sequence[SamplingParams]) -> int:
    """Return the number of samples of each prompt."""
    number = integer(value, "num_return_sequences")
    if number < 1:
        raise HierspecError(f"num_return_sequences must be at least 1, not {number}")
    if number > 1 and any(params.greedy for params in sampling):
        raise HierspecError(
            "num_return_sequences above 1 needs sampling, since greedy decoding gives one text: "
            "set a temperature above 0"
        )
    return number


def seeds(value: Any, count: int, num_samples: int) -> list[tuple[int, int]]:
    """Return (seed, index among the sequences with that seed) of each sequence."""
    if isinstance(value, list | tuple):
        own = [_seed(seed) for seed in broadcast(value, count, "seed")]
        return [(seed, sample) for seed in own for sample in range(num_samples)]
    seed = _seed(value)
    return [(seed, place) for place in range(count * num_samples)]


def _seed(value: Any) -> int:
    seed = arguments.seed(value)
    return secrets.randbits(32) if seed is None else seed


def check_logit_bias(sampling: SamplingParams, vocab_size: int) -> None:
    """Refuse biases of tokens outside the vocabulary."""
    for token, _ in sampling.logit_bias:
        if token >= vocab_size:
            raise HierspecError(
                f"logit_bias: the target has {vocab_size} tokens, from 0 on, and no token {token}"
            )


def caches(value: Any, count: int) -> list[SessionCache | None]:
    """Return a session cache, or ``None``, for each sequence."""
    if value is None:
        return [None] * count
    if isinstance(value, SessionCache):
        if count != 1:
            raise HierspecError(
                f"a cache serves one sequence, and there are {count}: give a list of caches"
            )
        return [value]
    given = broadcast(value, count, "cache")
    if not all(cache is None or isinstance(cache, SessionCache) for cache in given):
        raise HierspecError("cache must be a SessionCache, or a list of them (Hierarchy.session())")
    return given


def logprobs(value: Any) -> int | None:
    """Return of how many alternatives to each token to report log-probabilities; ``None``: none,
    not even its own."""
    if value is None or isinstance(value, bool):
        return 0 if value else None
    number = integer(value, "logprobs")
    if number < 0:
        raise HierspecError(
            f"logprobs must be true, or how many alternatives to report, not {number}"
        )
    return number


def broadcast(value: Any, count: int, name: str) -> list[Any]:
    """Return a value for each of ``count`` prompts, from a list of them or one for all."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise HierspecError(f"{name} has {len(value)} entries for {count} prompts")
    return list(value)


def stop_strings(value: Any, count: int) -> list[tuple[str, ...]]:
    """Return the stop strings of each prompt.

    A text or a list of texts is for all prompts; of a list that contains lists, or ``None``, each
    prompt has one entry.
    """
    is_nested = isinstance(value, list | tuple) and any(not isinstance(v, str) for v in value)
    if is_nested and all(v is None or isinstance(v, str | list | tuple) for v in value):
        return [arguments.stop_strings(entry) for entry in broadcast(value, count, "stop")]
    return [arguments.stop_strings(value)] * count


StopTest = Callable[[int, Sequence[int]], bool]  # (sequence, its tokens so far) → whether it ends


def stop_test(until: Any, criteria: Any, max_time: float | None) -> StopTest | None:
    """Combine what ends sequences; return ``None`` if nothing does.

    Args:
        until: a test of the caller's.
        criteria: of transformers; called for one text at a time, without scores.
        max_time: seconds from now.
    """
    if until is not None and not callable(until):
        raise HierspecError(
            f"until must be a function of (sequence, tokens), not {short_repr(until)}"
        )
    candidates: list[Any] = [until, _criteria_test(criteria)]
    tests: list[StopTest] = [test for test in candidates if test is not None]
    if max_time is not None:
        deadline = time.monotonic() + max_time
        tests.append(lambda sequence, tokens: time.monotonic() > deadline)
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda sequence, tokens: any(test(sequence, tokens) for test in tests)


def _criteria_test(value: Any) -> StopTest | None:
    if value is None:
        return None
    criteria = list(value) if isinstance(value, Iterable) else [value]
    for criterion in criteria:
        if not callable(criterion):
            raise HierspecError(
                "stopping_criteria must be functions of (input_ids [1, L], scores), like those "
                f"of transformers, not {short_repr(criterion)}"
            )
    import torch

    def is_met(_: int, tokens: Sequence[int]) -> bool:
        ids = torch.tensor([list(tokens)])
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in criteria)

    return is_met
