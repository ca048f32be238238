"""The prompts and options of a call, resolved to the tokens and settings of each sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hierspec.engine.stopping import StopConditions
from hierspec.errors import HierspecError
from hierspec.lm.base import LanguageModel
from hierspec.lm.encoder_decoder import split_prompt
from hierspec.sampling.parameters import SamplingParams

from . import arguments, generation_config, options
from .template import Template

MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Requests:
    """A sequence for each entry of the lists, prompt by prompt.

    Attributes:
        prompts: token ids.
        seed: of the whole call, as it is reported.
        seeds: (seed, sample) of each sequence; ``None``: ``seed`` and the sequence's number.
        max_time: seconds, where a ``generation_config`` limits them.
    """

    prompts: list[list[int]]
    sampling: list[SamplingParams]
    stops: list[StopConditions]
    seed: int
    seeds: list[tuple[int, int]] | None
    max_time: float | None = None


def resolve_requests(
    model: LanguageModel,
    template: Template,
    eos_token_ids: Callable[[Any], frozenset[int]],
    prompts: Iterable[Any],
    *,
    sampling: Any,
    params: dict[str, Any],
    max_new_tokens: Any,
    seed: Any,
    num_return_sequences: int,
    stop: Any,
    stop_token_ids: Any,
    eos_token_id: Any,
    ignore_eos: bool,
    include_stop_str: bool,
    config: Any,
) -> Requests:
    """Resolve the options of :meth:`hierspec.Hierarchy.start`, which explains them.

    Args:
        model: the target.
        eos_token_ids: (the caller's ids, or ``None``) → the ids that end a text.
        params: fields of :class:`SamplingParams` that were passed one by one.
        config: transformers' ``generation_config``, or ``None``.

    Raises:
        HierspecError: an empty prompt, one longer than the context, a parameter out of range, or
            one that another sets too.
    """
    prompts = arguments.prompt_list(prompts)
    ids = [
        _check_prompt(template.ids(prompt), model, f" at place {i}" if len(prompts) > 1 else "")
        for i, prompt in enumerate(prompts)
    ]
    vocab_size, count, max_time = model.vocab_size, len(ids), None
    if config is not None:
        beginnings = [split_prompt(model, prompt) for prompt in ids]
        settings = generation_config.convert_config(
            config, beginnings, vocab_size, eos_token_ids(None)
        )
        options.refuse_beside_config(
            {"sampling": sampling, "stop": stop, "eos_token_id": eos_token_id, **params}
        )
        if settings.max_new_tokens is not None:
            if max_new_tokens != MAX_NEW_TOKENS:
                options.refuse_beside_config({"max_new_tokens": max_new_tokens})
            max_new_tokens = settings.max_new_tokens
        stop, eos_token_id, sampling = settings.stop, settings.eos_token_ids, settings.sampling
        max_time = settings.max_time
        if num_return_sequences == 1:
            num_return_sequences = settings.num_return_sequences
    else:
        sampling = options.sampling_params(sampling, params, count)
    for sampling_params in sampling:
        options.check_logit_bias(sampling_params, vocab_size)
    num_samples = options.num_samples(num_return_sequences, sampling)
    stop_ids = arguments.stop_token_ids(stop_token_ids, vocab_size)
    stops = [
        StopConditions(
            eos_token_ids=eos_token_ids(eos_token_id),
            ignore_eos=ignore_eos,
            stop=texts,
            stop_token_ids=stop_ids,
            max_new_tokens=length,
            max_length=model.max_length,
            include_stop_str=include_stop_str,
        )
        for texts, length in zip(
            options.stop_strings(stop, count), options.lengths(max_new_tokens, count), strict=True
        )
    ]
    common_seed, seeds = options.seeds(seed, count, num_samples)
    return Requests(
        _repeat(ids, num_samples),
        _repeat(sampling, num_samples),
        _repeat(stops, num_samples),
        common_seed,
        seeds,
        max_time,
    )


def _check_prompt(ids: list[int], model: LanguageModel, place: str) -> list[int]:
    """Return the ids of a prompt, provided that the target can continue it."""
    if not ids:
        raise HierspecError(f"the prompt{place} is empty: give at least one token to continue")
    if min(ids) < 0 or max(ids) >= model.vocab_size:
        raise HierspecError(
            f"a prompt token lies outside the target's vocabulary of {model.vocab_size}"
        )
    if len(ids) >= model.max_length:
        raise HierspecError(
            f"the prompt{place} has {len(ids)} tokens and the target's context holds "
            f"{model.max_length}: shorten it to leave room for output"
        )
    return ids


def _repeat(values: Sequence[Any], count: int) -> list[Any]:
    return [value for value in values for _ in range(count)]
