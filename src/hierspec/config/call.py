"""The options of a call, declared once, and the requests that they make of its prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hierspec.engine.caches import SessionCache
from hierspec.engine.observers import Observer
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.engine.trace import Tracer
from hierspec.errors import HierspecError
from hierspec.lm.base import LanguageModel
from hierspec.lm.encoder_decoder import split_prompt
from hierspec.sampling.parameters import SamplingParams

from . import arguments, generation_config, options
from .template import Template

MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What a call of :meth:`hierspec.Hierarchy.generate` and its like may ask for.

    ``max_new_tokens``, ``stop``, ``seed``, ``sampling`` and its fields are one for all prompts, or
    a list with one for each.

    Attributes:
        max_new_tokens: per sequence; the context length may end it sooner, and alone does where it
            is ``None``.
        seed: of all randomness, below 2**64; drawn afresh (and reported) where ``None``. With one
            for all, sequence i has the randomness of (seed, i); with a list, each prompt has the
            randomness that it would have alone.
        num_return_sequences: samples of each prompt; results and ``sequence`` of events count them
            prompt by prompt.
        stop: texts that end the output where they appear; they are left out of ``text``. They may
            name special tokens (``"<|im_end|>"``). A list of lists has those of each prompt.
        stop_token_ids: end the output besides ``eos_token_id``, whatever ``ignore_eos`` says.
        eos_token_id: ends the output; default: the tokenizer's and the model's.
        chat: apply the tokenizer's chat template to prompts that are texts, too.
        tools: functions, or their JSON schemas, for the chat template.
        chat_template_kwargs: further variables of it.
        logprobs: report the raw target's log-probability of every emitted token; a number k asks
            also for the k likeliest tokens in its place.
        until: called ``until(sequence, tokens so far)`` after every token; true ends it.
        stopping_criteria: of transformers; asked about each sequence apart, without scores.
        generation_config: of transformers: sampling, length and ends as ``generate`` reads them
            (:mod:`hierspec.config.generation_config`).
        cache: kept from one generation to the next (:meth:`hierspec.Hierarchy.session`): one for a
            single sequence, or a list with one for each.
        tracer: gets an event for every draft, every check with its verdict, and every row.
        observers: see every round, with its distributions: objects of classes derived from
            :class:`hierspec.engine.observers.Observer`.
        sampling: :class:`SamplingParams` or a mapping.
        params: its fields, where they are given one by one: ``temperature`` (0: greedy), ``top_k``,
            ``top_p``, ``min_p``, ``repetition_penalty``, ``frequency_penalty``,
            ``presence_penalty``, ``logit_bias``, ``logits_processors``.
    """

    max_new_tokens: int | Sequence[int] | None = MAX_NEW_TOKENS
    seed: int | Sequence[int] | None = None
    num_return_sequences: int = 1
    stop: Any = None
    stop_token_ids: int | Sequence[int] | None = None
    eos_token_id: int | Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str: bool = False
    chat: bool = False
    tools: Sequence[Any] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    logprobs: bool | int = False
    until: Callable[[int, Sequence[int]], bool] | None = None
    stopping_criteria: Any = None
    generation_config: Any = None
    cache: SessionCache | Sequence[SessionCache | None] | None = None
    tracer: Tracer | None = None
    observers: Iterable[Observer] = ()
    sampling: SamplingParams | Sequence[Any] | Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CallOptions:
        """Return the options of a call from its keywords.

        Raises:
            HierspecError: one that does not exist, with what replaces it.
        """
        names = [each.name for each in fields(cls) if each.name != "params"]
        own = {name: value for name, value in given.items() if name in names}
        params = {name: value for name, value in given.items() if name not in names}
        options.refuse_unknown_options(params, names)
        return cls(**own, params=params)

    def requests(
        self,
        prompts: Iterable[Any],
        model: LanguageModel,
        tokenizer: Any,
        eos_token_ids: Callable[[Any], frozenset[int]],
    ) -> list[Request]:
        """Return a request for each sequence, prompt by prompt.

        Args:
            prompts: texts, token ids, or conversations.
            model: the target.
            eos_token_ids: (the caller's ids, or ``None``) → the ids that end a text.

        Raises:
            HierspecError: an empty prompt, one longer than the context, a parameter out of range,
                or one that another sets too.
        """
        template = Template(tokenizer, self.chat, self.tools, self.chat_template_kwargs)
        given = arguments.prompt_list(prompts)
        ids = [
            _check_prompt(template.ids(prompt), model, f" at place {i}" if len(given) > 1 else "")
            for i, prompt in enumerate(given)
        ]
        vocab_size, count, max_time = model.vocab_size, len(ids), None
        lengths, num_samples = self.max_new_tokens, self.num_return_sequences
        if self.generation_config is None:
            sampling = options.sampling_params(self.sampling, self.params, count)
            stop, eos_ids = self.stop, eos_token_ids(self.eos_token_id)
        else:
            settings = generation_config.convert_config(
                self.generation_config,
                [split_prompt(model, prompt) for prompt in ids],
                vocab_size,
                eos_token_ids(None),
            )
            others = {"sampling": self.sampling, "stop": self.stop, **self.params}
            options.refuse_beside_config({**others, "eos_token_id": self.eos_token_id})
            if settings.max_new_tokens is not None:
                if lengths != MAX_NEW_TOKENS:
                    options.refuse_beside_config({"max_new_tokens": lengths})
                lengths = settings.max_new_tokens
            sampling, stop, max_time = settings.sampling, settings.stop, settings.max_time
            eos_ids = eos_token_ids(settings.eos_token_ids)
            if num_samples == 1:
                num_samples = settings.num_return_sequences
        for params in sampling:
            options.check_logit_bias(params, vocab_size)
        num_samples = options.num_samples(num_samples, sampling)
        stop_ids = arguments.stop_token_ids(self.stop_token_ids, vocab_size)
        stops = [
            StopConditions(
                eos_token_ids=eos_ids,
                ignore_eos=self.ignore_eos,
                stop=texts,
                stop_token_ids=stop_ids,
                max_new_tokens=length,
                max_length=model.max_length,
                include_stop_str=self.include_stop_str,
            )
            for texts, length in zip(
                options.stop_strings(stop, count), options.lengths(lengths, count), strict=True
            )
        ]
        seeds = options.seeds(self.seed, count, num_samples)
        num_logprobs = options.logprobs(self.logprobs)
        until = options.stop_test(self.until, self.stopping_criteria, max_time)
        caches = options.caches(self.cache, count * num_samples)
        places = [place for place in range(count) for _ in range(num_samples)]
        return [
            Request(
                prompt=ids[place],
                params=sampling[place],
                stop=stops[place],
                seed=seed,
                place=number,
                num_logprobs=num_logprobs,
                until=until,
                cache=cache,
            )
            for place, (seed, number), cache in zip(places, seeds, caches, strict=True)
        ]


def _check_prompt(ids: list[int], model: LanguageModel, place: str) -> list[int]:
    """Return the ids of a prompt, provided that the target can continue it."""
    if not ids:
        raise HierspecError(f"the prompt{place} is empty: give at least one token to continue")
    if min(ids) < 0 or max(ids) >= model.vocab_size:
        raise HierspecError(
            f"a prompt token lies outside the target's vocabulary of {model.vocab_size}"
        )
    check_length(ids, model.max_length, place)
    return ids


def check_length(ids: Sequence[int], max_length: float, place: str = "") -> None:
    """Refuse a prompt that leaves no room for output.

    Raises:
        HierspecError: it fills the context of ``max_length`` tokens.
    """
    if len(ids) >= max_length:
        raise HierspecError(
            f"the prompt{place} has {len(ids)} tokens and the target's context holds "
            f"{max_length}: shorten it to leave room for output"
        )
