"""The options of a call, declared once, and the requests that they make of its prompts.

Options that transformers and vLLM call otherwise are refused with their names here; no option is
ignored.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hierspec.engine.caches import SessionCache
from hierspec.engine.observers import Observer
from hierspec.engine.request import Request
from hierspec.engine.stopping import StopConditions
from hierspec.engine.trace import Tracer
from hierspec.errors import HierspecError
from hierspec.lm.base import LanguageModel
from hierspec.lm.encoder_decoder import SplitPrompt, split_prompt
from hierspec.sampling.parameters import SamplingParams
from hierspec.utils.schema import nearest_key, short_repr, validate_keys

from . import arguments, generation_config

MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What a call of :meth:`hierspec.Hierarchy.generate` and its like may ask for.

    ``max_new_tokens``, ``stop``, ``seed``, ``sampling`` and its fields are one for all prompts, or
    a list with one for each.

    Attributes:
        max_new_tokens: per sequence; the context length may end it sooner, and alone does where it
            is ``None``.
        seed: of all randomness, 64 bits; drawn afresh (and reported) where ``None``. With one
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
        named: which of these were given, whatever their value.
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
    named: frozenset[str] = frozenset()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CallOptions:
        """Return the options of a call from its keywords.

        Raises:
            HierspecError: one that does not exist, with what replaces it.
        """
        names = [each.name for each in fields(cls) if each.name not in ("params", "named")]
        own = {name: value for name, value in given.items() if name in names}
        params = {name: value for name, value in given.items() if name not in names}
        _refuse_unknown_options(params, names)
        return cls(**own, params=params, named=frozenset(own))

    def requests(
        self,
        prompts: Iterable[Any] | None,
        model: LanguageModel,
        tokenizer: Any,
        eos_token_ids: frozenset[int],
    ) -> list[Request]:
        """Return a request for each sequence, prompt by prompt.

        Args:
            prompts: texts, token ids, or conversations.
            model: the target.
            eos_token_ids: end a text where the options name none.

        Raises:
            HierspecError: an empty prompt, one longer than the context, a parameter out of range,
                or one that another sets too.
        """
        template = (tokenizer, self.chat, self.tools, self.chat_template_kwargs)
        given = arguments.prompt_list(prompts, getattr(tokenizer, "pad_token_id", None))
        ids = [
            _validate_prompt(
                arguments.prompt_ids(prompt, *template),
                model,
                f" at place {i}" if len(given) > 1 else "",
            )
            for i, prompt in enumerate(given)
        ]
        vocab_size, count, options = model.vocab_size, len(ids), self
        if self.generation_config is not None:
            starts = [split_prompt(model, prompt) for prompt in ids]
            options = self._with_config(starts, model, eos_token_ids)
        sampling = _sampling_params(options.sampling, options.params, count)
        for token, _ in (pair for params in sampling for pair in params.logit_bias):
            if token >= vocab_size:
                raise HierspecError(
                    f"logit_bias: {token} is not a token of the target: its ids are 0 to "
                    f"{vocab_size - 1}"
                )
        num_samples = _num_samples(options.num_return_sequences, sampling)
        ends = eos_token_ids
        if options.eos_token_id is not None:
            ends = arguments.eos_ids(options.eos_token_id)
        stop_ids = arguments.stop_token_ids(self.stop_token_ids, vocab_size)
        stops = [
            StopConditions(
                eos_token_ids=ends,
                ignore_eos=self.ignore_eos,
                stop=texts,
                stop_token_ids=stop_ids,
                max_new_tokens=(
                    None if length is None else arguments.integer(length, "max_new_tokens")
                ),
                max_length=model.max_length,
                include_stop_str=self.include_stop_str,
            )
            for texts, length in zip(
                _stop_strings(options.stop, count),
                _broadcast(options.max_new_tokens, count, "max_new_tokens"),
                strict=True,
            )
        ]
        seeds = _seeds(self.seed, count, num_samples)
        num_logprobs = _logprobs(self.logprobs)
        max_time = getattr(self.generation_config, "max_time", None)
        until = _stop_test(self.until, self.stopping_criteria, max_time)
        caches = _caches(self.cache, count * num_samples)
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

    def _with_config(
        self, prompts: Sequence[SplitPrompt], model: LanguageModel, eos_token_ids: frozenset[int]
    ) -> CallOptions:
        """Return the options with what ``generation_config`` sets, which no other may set too."""
        config = self.generation_config
        lengths = [
            None if length is None else arguments.integer(length, "max_new_tokens")
            for length in _broadcast(self.max_new_tokens, len(prompts), "max_new_tokens")
        ]
        settings = generation_config.convert_config(config, prompts, lengths, model, eos_token_ids)
        given = {"sampling": self.sampling, "stop": self.stop, "eos_token_id": self.eos_token_id}
        clashes = [name for name, v in {**given, **self.params}.items() if v is not None]
        lengths_and_numbers = ("max_new_tokens", "num_return_sequences")
        clashes += [name for name in lengths_and_numbers if name in settings.keys() & self.named]
        for name in clashes:
            if name in arguments.generation_config_fields():
                raise HierspecError(
                    f"generation_config sets {name} too: leave it out, or set it there"
                )
            raise HierspecError(f"{name} does not go with generation_config: leave one of them out")
        return replace(self, **settings, params={})


def _refuse_unknown_options(options: Mapping[str, Any], other_names: Sequence[str]) -> None:
    for name in options:
        if name in arguments.SAMPLING:
            continue
        hint = _OPTION_HINTS.get(name)
        if hint is None and name in arguments.generation_config_fields():
            hint = f"give it as generation_config=GenerationConfig({name}=...)"
        near = nearest_key(name, [*arguments.SAMPLING, *other_names])
        if hint is None and near is not None:
            hint = f"did you mean {near!r}? help(Hierarchy.generate) lists them all"
        raise HierspecError(f"no option {name!r}: {hint or 'help(Hierarchy.generate) lists them'}")


_OPTION_HINTS = {
    "assistant_model": "name draft models in drafts= when the Hierarchy is made",
    "do_sample": "temperature=0 is greedy (the default), and any above it samples",
    "hierarchy": "make the Hierarchy with it: Hierarchy.from_config(hierarchy)",
    **dict.fromkeys(
        ("input_ids", "inputs"),
        "the ids are the prompt, one row of them, and come first: generate(input_ids[0], ...), or "
        "generate_batch(rows, ...) without padding",
    ),
    "attention_mask": "give each prompt without padding, as a list of ids",
    "max_length": "use max_new_tokens, which does not count the prompt",
    "max_tokens": "use max_new_tokens",
    "n": "use num_return_sequences",
    "num_beams": "beam search is not supported",
    "stop_strings": "use stop",
    "use_cache": "there always is one",
}


def _sampling_params(value: Any, options: Mapping[str, Any], count: int) -> list[SamplingParams]:
    if value is not None and options:
        raise HierspecError(f"give sampling=... or {', '.join(options)}, not both")
    if value is not None:
        return [_params(entry) for entry in _broadcast(value, count, "sampling")]
    shared = {name: options[name] for name in _NOT_NUMBERS if name in options}
    numbers = {
        name: _broadcast(options[name], count, name) for name in options if name not in shared
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
        return SamplingParams.make(**validate_keys(value, list(arguments.SAMPLING), "sampling"))
    raise HierspecError(f"sampling must be SamplingParams or a mapping, not {short_repr(value)}")


def _num_samples(value: Any, sampling: Sequence[SamplingParams]) -> int:
    number = arguments.integer(value, "num_return_sequences")
    if number < 1:
        raise HierspecError(f"num_return_sequences must be at least 1, not {number}")
    if number > 1 and any(params.greedy for params in sampling):
        raise HierspecError(
            "num_return_sequences above 1 needs sampling, since greedy decoding gives one text: "
            "set a temperature above 0"
        )
    return number


def _seeds(value: Any, count: int, num_samples: int) -> list[tuple[int, int]]:
    """Return (seed, index among the sequences with that seed) of each sequence."""
    one_each = isinstance(value, list | tuple)
    seeds = [
        secrets.randbits(32) if (seed := arguments.seed(given)) is None else seed
        for given in (_broadcast(value, count, "seed") if one_each else [value])
    ]
    num_places = num_samples if one_each else count * num_samples
    return [(seed, place) for seed in seeds for place in range(num_places)]


def _caches(value: Any, count: int) -> list[SessionCache | None]:
    if value is None:
        return [None] * count
    if isinstance(value, SessionCache):
        if count != 1:
            raise HierspecError(
                f"a cache serves one sequence, and there are {count}: give a list of caches"
            )
        return [value]
    given = _broadcast(value, count, "cache")
    if not all(cache is None or isinstance(cache, SessionCache) for cache in given):
        raise HierspecError("cache must be a SessionCache, or a list of them (Hierarchy.session())")
    return given


def _logprobs(value: Any) -> int | None:
    """Return of how many alternatives to each token to report log-probabilities; ``None``: none,
    not even its own."""
    if value is None or isinstance(value, bool):
        return 0 if value else None
    number = arguments.integer(value, "logprobs")
    if number < 0:
        raise HierspecError(
            f"logprobs must be true, or how many alternatives to report, not {number}"
        )
    return number


def _broadcast(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise HierspecError(f"{name} has {len(value)} entries for {count} prompts")
    return list(value)


def _stop_strings(value: Any, count: int) -> list[tuple[str, ...]]:
    """Return the stop strings of each prompt.

    A text or a list of texts is for all prompts; of a list that contains lists, or ``None``, each
    prompt has one entry.
    """
    is_nested = isinstance(value, list | tuple) and any(not isinstance(v, str) for v in value)
    if is_nested and all(v is None or isinstance(v, str | list | tuple) for v in value):
        return [_stop_strings(entry, 1)[0] for entry in _broadcast(value, count, "stop")]
    if value is None or isinstance(value, str):
        return [() if value is None else (value,)] * count
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise HierspecError(f"stop must be a text or a list of texts, not {short_repr(value)}")
    return [tuple(value)] * count


StopTest = Callable[[int, Sequence[int]], bool]  # (sequence, its tokens so far) → whether it ends


def _stop_test(until: Any, criteria: Any, max_time: float | None) -> StopTest | None:
    """Combine what ends sequences, ``max_time`` in seconds from now; ``None`` if nothing does."""
    if until is not None and not callable(until):
        raise HierspecError(
            f"until must be a function of (sequence, tokens), not {short_repr(until)}"
        )
    given: list[Any] = [] if until is None else [until]
    tests: list[StopTest] = given
    if criteria is not None:
        tests.append(_criteria_test(criteria))
    if max_time is not None:
        deadline = time.monotonic() + max_time
        tests.append(lambda sequence, tokens: time.monotonic() > deadline)
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda sequence, tokens: any(test(sequence, tokens) for test in tests)


def _criteria_test(value: Any) -> StopTest:
    criteria = list(value) if isinstance(value, Iterable) else [value]
    for criterion in criteria:
        if not callable(criterion):
            raise HierspecError(
                "stopping_criteria must be functions of (input_ids [1, L], scores), like those "
                f"of transformers, not {short_repr(criterion)}"
            )
    import torch

    def is_met(_: int, tokens: Sequence[int]) -> bool:
        ids = torch.tensor([list(tokens)], device="cpu")
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in criteria)

    return is_met


def _validate_prompt(ids: list[int], model: LanguageModel, place: str) -> list[int]:
    if not ids:
        raise HierspecError(f"the prompt{place} is empty: give at least one token to continue")
    validate_ids(ids, model.vocab_size, place)
    validate_length(ids, model.max_length, place)
    return ids


def validate_ids(ids: Sequence[int], vocab_size: int, place: str = "") -> None:
    """Refuse a prompt with a token that the target does not have."""
    if unknown := [token for token in ids if not 0 <= token < vocab_size]:
        raise HierspecError(
            f"the prompt{place} has token {unknown[0]}, outside the target's vocabulary of "
            f"{vocab_size}"
        )


def validate_length(ids: Sequence[int], max_length: float, place: str = "") -> None:
    """Refuse a prompt that fills the context of ``max_length`` tokens: output needs room."""
    if len(ids) >= max_length:
        raise HierspecError(
            f"the prompt{place} has {len(ids)} tokens and the target's context holds "
            f"{max_length}: shorten it to leave room for output"
        )
