"""The prompts and options of a call, resolved: what each of its sequences begins with and obeys."""

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
        seed: of all sequences together, as it is reported.
        seeds: (seed, place) of each sequence; ``None``: ``seed`` and its number.
        max_time: seconds, where a ``generation_config`` limits them.
    """

    prompts: list[list[int]]
    sampling: list[SamplingParams]
    stops: list[StopConditions]
    seed: int
    seeds: list[tuple[int, int]] | None
    max_time: float | None = None


def resolve(
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
    eos_token_id: Any,
    ignore_eos: bool,
    include_stop_str: bool,
    config: Any,
) -> Requests:
    """Resolve the options of :meth:`hierspec.Hierarchy.start`, which explains them.

    Args:
        model: the target.
        eos_token_ids: called with the caller's ids, or ``None`` → what ends a text.
        params: fields of :class:`SamplingParams` that were given one by one.
        config: transformers' ``generation_config``, or ``None``.

    Raises:
        HierspecError: an empty prompt, one longer than the context, a parameter out of range, or
            one that says what another says too.
    """
    given = arguments.prompt_list(prompts)
    places = [f" at place {i}" if len(given) > 1 else "" for i in range(len(given))]
    ids = [
        _checked(template.ids(prompt), model, place)
        for prompt, place in zip(given, places, strict=True)
    ]
    vocab, count, max_time = model.vocab_size, len(ids), None
    if config is not None:
        beginnings = [split_prompt(model, prompt) for prompt in ids]
        asked = generation_config.read(config, beginnings, vocab, eos_token_ids(None))
        others = {"sampling": sampling, "stop": stop, "eos_token_id": eos_token_id, **params}
        options.not_twice(others, "generation_config")
        if asked.max_new_tokens is not None:
            if max_new_tokens != MAX_NEW_TOKENS:
                options.not_twice({"max_new_tokens": max_new_tokens}, "generation_config")
            max_new_tokens = asked.max_new_tokens
        stop, eos_token_id, each = asked.stop, asked.eos_token_ids, asked.sampling
        max_time = asked.max_time
        if num_return_sequences == 1:
            num_return_sequences = asked.num_return_sequences
    else:
        each = options.sampling_params(sampling, params, count)
    for own in each:
        options.inside(own, vocab)
    copies = options.copies(num_return_sequences, each)
    stops = [
        StopConditions(
            eos_token_ids=eos_token_ids(eos_token_id),
            ignore_eos=ignore_eos,
            stop=texts,
            max_new_tokens=length,
            max_length=model.max_length,
            include_stop_str=include_stop_str,
        )
        for texts, length in zip(
            options.stops(stop, count), options.lengths(max_new_tokens, count), strict=True
        )
    ]
    common_seed, seeds = options.seeds(seed, count, copies)
    return Requests(
        _repeat(ids, copies),
        _repeat(each, copies),
        _repeat(stops, copies),
        common_seed,
        seeds,
        max_time,
    )


def _checked(ids: list[int], model: LanguageModel, place: str) -> list[int]:
    """Refuse a prompt that the target cannot continue."""
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


def _repeat(values: Sequence[Any], copies: int) -> list[Any]:
    return [value for value in values for _ in range(copies)]
