"""Conversion of a client's request to the engine's requests."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

from hierspec.config.call import CallOptions
from hierspec.engine.request import Request
from hierspec.sampling.parameters import SamplingParams

from .errors import ApiError
from .grammar import Constraint
from .service import Service
from .settings import DEFAULT_TEMPERATURE
from .templates import template_traits
from .wire.common import GenerationRequest

_PROMPTS = ("messages", "input", "prompt")  # fields of the endpoints
DEFAULT_MODEL = "default"  # names the only model of a service


def engine_requests(
    service: Service,
    body: GenerationRequest,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    tenant: str,
    constraint: Constraint | None,
) -> list[Request]:
    """Make ``n`` engine requests for every prompt, prompt after prompt.

    Raises:
        ApiError: no such model or hierarchy, too many sequences, a prompt too long.
        HierspecError: a parameter that the engine refuses, or a hierarchy that would change what
            is written.
    """
    settings = service.settings
    hierarchy = requested_hierarchy(service, body.model, body.hierarchy)
    n = body.n or 1
    if n * len(prompts) > settings.max_choices:
        raise ApiError(
            f"{n * len(prompts)} choices are asked for, and {settings.max_choices} are allowed",
            param="n",
        )
    params = sampling_params(service, body)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if any(not text for text in stop):
        raise ApiError("stop must hold non-empty texts", param="stop")
    stop_ids = frozenset(body.stop_token_ids or ())
    if stop_ids and max(stop_ids) >= service.vocab_size:
        raise ApiError(
            f"stop_token_ids: {max(stop_ids)} is not a token id below {service.vocab_size}",
            param="stop_token_ids",
        )
    own = service.hierarchies[hierarchy]
    # Under `match` the target's own random numbers decide, whatever was drafted.
    same_for_any_plan = params.greedy or own.root.rule.draft_independent
    own.validate(greedy=params.greedy)
    for prompt in prompts:
        validate_prompt(service, prompt, next(name for name in _PROMPTS if hasattr(body, name)))
    call = CallOptions(
        max_new_tokens=max(max_tokens, 1),
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        stop=stop,
        stop_token_ids=sorted(stop_ids),
        ignore_eos=body.ignore_eos,
        include_stop_str=body.include_stop_str_in_output,
        logprobs=False if logprobs is None else logprobs,
        sampling=params,
    )
    copies = [prompt for prompt in prompts for _ in range(n)]
    requests = call.requests(copies, own.root.model, None, own.eos_token_ids())
    prediction: list[int] = []  # what the output is expected to repeat
    if body.prediction is not None:
        text = text_of(body.prediction.content)
        # No text is longer, and drafts are looked up in an index of all that is kept.
        prediction = tokenize(service, text, add_special_tokens=False)[: service.max_length]
    for request in requests:
        request.num_prompt_logprobs, request.hierarchy = prompt_logprobs, hierarchy
        request.priority, request.tenant = body.priority, tenant
        request.deadline = deadline_of(service, body)
        request.speculative = body.speculative is not False
        request.fixed_plan = body.seed is not None and not same_for_any_plan
        request.prediction = prediction
        if constraint is not None:
            held_by = service.grammars.processor(constraint, len(request.prompt))
            shown = template_traits(service.tokenizer).shown_ids
            request.params = dataclasses.replace(params, logits_processors=(held_by,))
            request.stop = dataclasses.replace(request.stop, shown_special_ids=shown)
    return requests


def deadline_of(service: Service, body: GenerationRequest) -> float | None:
    """Return when the time of a request is over, by ``time.monotonic``; ``None``: never."""
    timeouts = [seconds for seconds in (service.settings.request_timeout, body.timeout) if seconds]
    return body.received + min(timeouts) if timeouts else None


def text_of(content: Any) -> str:
    """Return the text of a message's content: the string itself, or its parts, which are texts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        if isinstance(part, dict):
            text = part.get("text")
        else:
            text = part.refusal if part.text is None else part.text
        if not isinstance(text, str):
            raise ApiError("only text is supported: every part of a content needs a text")
        texts.append(text)
    return "\n".join(texts)


def requested_hierarchy(service: Service, model: str | None, hierarchy: str | None = None) -> str:
    """Return the name of the hierarchy that these fields of a request choose.

    Raises:
        ApiError: ``model`` is neither that of the service, nor ``default``, nor a hierarchy of it,
            or names another hierarchy than ``hierarchy``; or there is no such hierarchy.
    """
    name = None if model in (None, DEFAULT_MODEL, service.model) else model
    if name is not None and name not in service.hierarchies:
        raise ApiError(
            f"there is no model {model!r}; this service has {service.model!r}",
            404,
            param="model",
            code="model_not_found",
        )
    if hierarchy is not None and name not in (None, hierarchy):
        raise ApiError(
            f"model asks for the hierarchy {name!r} and hierarchy for {hierarchy!r}: "
            "leave one of them out",
            param="hierarchy",
        )
    name = hierarchy or name or service.default
    if name not in service.hierarchies:
        names = ", ".join(service.hierarchies)
        raise ApiError(f"there is no hierarchy {name!r}; there are: {names}", param="hierarchy")
    return name


def sampling_params(service: Service, body: GenerationRequest) -> SamplingParams:
    """Return the engine's sampling parameters, with OpenAI's defaults for those left out."""
    bias: dict[int, float] = {}
    for key, value in (body.logit_bias or {}).items():
        is_number = key.isascii() and key.isdigit() and len(key) < 12
        if not is_number or int(key) >= service.vocab_size:
            raise ApiError(
                f"logit_bias: {key[:32]!r} is not a token id below {service.vocab_size}",
                param="logit_bias",
            )
        bias[int(key)] = value
    return SamplingParams.make(
        logit_bias=bias,
        temperature=DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
    )


def validate_prompt(service: Service, ids: Sequence[int], param: str) -> None:
    """Refuse a prompt that cannot be read; ``param`` is the field that it came in.

    Raises:
        ApiError: it is empty or too long, or has ids outside the model's vocabulary.
    """
    max_prompt = service.max_length - 1
    if service.settings.max_prompt_tokens is not None:
        max_prompt = min(max_prompt, service.settings.max_prompt_tokens)
    if not ids:
        raise ApiError("the prompt is empty: give at least one token to continue", param=param)
    if len(ids) > max_prompt:
        raise ApiError(
            f"the prompt has {len(ids)} tokens, and {max_prompt} are allowed: shorten it",
            param=param,
            code="context_length_exceeded",
        )
    if max(ids) >= service.vocab_size:
        raise ApiError(
            f"token {max(ids)} lies outside the vocabulary of {service.vocab_size}", param=param
        )


def tokenize(service: Service, text: str, add_special_tokens: bool = True) -> list[int]:
    """Tokenize a text; refuse it where the model has no tokenizer."""
    if service.tokenizer is None:
        raise ApiError(
            "this model has no tokenizer: send token ids as the prompt, or serve it with one "
            "(hierspec serve --tokenizer)"
        )
    encoding: Any = service.tokenizer(text, verbose=False, add_special_tokens=add_special_tokens)
    return [int(token) for token in encoding["input_ids"]]


def tokenize_prompt(service: Service, text: str) -> list[int]:
    """Tokenize a prompt; an empty one becomes the model's first token (BOS), if it has one."""
    ids = tokenize(service, text)
    first = getattr(service.tokenizer, "bos_token_id", None)
    return ids or ([] if first is None else [int(first)])
