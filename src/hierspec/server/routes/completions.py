"""``POST /v1/completions``: continue texts or token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import fastapi

from hierspec.engine.request import Request, TokenScore
from hierspec.engine.results import TokenEvent
from hierspec.server.access import service_of, tenant_of
from hierspec.server.answer_parts import (
    DONE,
    StreamUsage,
    completion_logprobs,
    count_usage,
    describe_round,
    format_event,
    new_id,
    summarise_speculation,
    token_ids_field,
)
from hierspec.server.constraints import constraint_processors, request_constraint
from hierspec.server.errors import ApiError
from hierspec.server.prepare import engine_requests, requested_hierarchy, tokenize_prompt
from hierspec.server.service import FinishedSequence, Service, Streams
from hierspec.server.streaming import stream_events, wait_for_answer
from hierspec.server.wire.common import ErrorAnswer
from hierspec.server.wire.completions import CompletionAnswer, CompletionChoice, CompletionRequest

router = fastapi.APIRouter()
_EXAMPLE = {"prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}


@router.post(
    "/v1/completions",
    response_model=CompletionAnswer,
    responses={"4XX": {"model": ErrorAnswer}},
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def completions(request: fastapi.Request, body: CompletionRequest) -> Any:
    """Continue one or several prompts."""
    service = service_of(request)
    prompts, requests = await service.in_background(_prepare, service, body, tenant_of(request))
    streams = service.submit(requests)
    answer = _CompletionAnswer(service, body, prompts)
    if body.stream:
        return stream_events(streams, answer.events(streams))
    return await wait_for_answer(request, streams, answer.complete(streams))


def _prepare(
    service: Service, body: CompletionRequest, tenant: str
) -> tuple[list[list[int]], list[Request]]:
    requested_hierarchy(service, body)
    if body.suffix:
        raise ApiError("suffix needs a model trained to fill in; this one continues texts")
    n = body.n or 1
    if body.best_of is not None and body.best_of != n:
        raise ApiError("best_of other than n is not supported: ask for n choices", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError("max_tokens is 0: ask for one token at least, or for echo")
    prompts = _prompts(service, body)
    requests = engine_requests(
        service,
        body,
        prompts,
        max_tokens=16 if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        tenant=tenant,
        processors=constraint_processors(
            service, request_constraint(body.response_format), prompts, n
        ),
    )
    return prompts, requests


def _prompts(service: Service, body: CompletionRequest) -> list[list[int]]:
    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return [tokenize_prompt(service, prompt)]
    if isinstance(prompt[0], int):
        return [prompt]
    return [tokenize_prompt(service, part) if isinstance(part, str) else part for part in prompt]


class _CompletionAnswer:
    """The answer to one request, complete or in events."""

    def __init__(self, service: Service, body: CompletionRequest, prompts: list[list[int]]) -> None:
        self.service, self.body, self.prompts = service, body, prompts
        self.id, self.created = new_id("cmpl"), int(time.time())
        self.n = body.n or 1
        self.only_echo = body.max_tokens == 0  # the engine writes a token all the same: dropped

    def _echoed_prompt(self, index: int) -> str:
        if not self.body.echo or self.service.tokenizer is None:
            return ""
        prompt: Any = self.body.prompt
        if isinstance(prompt, str):
            return prompt
        place = index // self.n
        if isinstance(prompt[0], str):
            return prompt[place]
        ids = self.prompts[place]
        return self.service.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    async def complete(self, streams: Streams) -> CompletionAnswer:
        sequences = await streams.finish()
        ended = [sequence.ended for sequence in sequences]
        return CompletionAnswer(
            id=self.id,
            created=self.created,
            model=self.service.model,
            choices=[self._choice(i, sequence) for i, sequence in enumerate(sequences)],
            usage=count_usage(ended, len(self.prompts), only_prompts=self.only_echo),
            system_fingerprint=self.service.fingerprint,
            speculative=summarise_speculation(ended),
        )

    def _choice(self, index: int, sequence: FinishedSequence) -> CompletionChoice:
        ended = sequence.ended
        logprobs = None
        if self.body.logprobs is not None:
            events = [] if self.only_echo else sequence.events
            logprobs = self._logprobs(index, events, ended.prompt_logprobs, 0)
        return CompletionChoice(
            index=index,
            text=self._echoed_prompt(index) + ("" if self.only_echo else ended.text),
            logprobs=logprobs,
            finish_reason="length" if self.only_echo else ended.finish_reason,
            **token_ids_field(self.body, [] if self.only_echo else sequence.events),
        )

    def _logprobs(
        self,
        index: int,
        events: list[TokenEvent],
        prompt_logprobs: Sequence[TokenScore] | None,
        offset: int,
    ) -> Any:
        tokens: list[int] = []
        scores: list[TokenScore | None] = []
        if prompt_logprobs is not None and self.body.echo:
            tokens += self.prompts[index // self.n]
            scores += [None, *prompt_logprobs]
        for token in events:
            tokens.append(token.token_id)
            scores.append(TokenScore(token.logprob or 0.0, token.top_logprobs))
        return completion_logprobs(self.service, tokens, scores, offset, bool(self.body.logprobs))

    async def events(self, streams: Streams) -> AsyncIterator[str]:
        body, service = self.body, self.service
        usage = StreamUsage(body.stream_options, streams, len(self.prompts))
        base = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": service.model,
            "system_fingerprint": service.fingerprint,
        }
        offsets = [0] * len(streams.requests)
        started = set[int]()
        all_ended: list[Request] = []
        async for index, progress in streams:
            ended = progress.ended
            if ended is not None:
                if ended.error is not None:
                    raise ended.error
                all_ended.append(ended)
            events = [] if self.only_echo else progress.events
            text = "".join(token.text for token in events)
            logprobs = None
            is_first = index not in started
            if is_first:
                started.add(index)
                text = self._echoed_prompt(index) + text
            if body.logprobs is not None:
                prompt_logprobs = progress.prompt_logprobs if is_first else None
                logprobs = self._logprobs(index, events, prompt_logprobs, offsets[index])
            offsets[index] += len(text)
            finish = None if ended is None else ended.finish_reason
            if finish is not None and self.only_echo:
                finish = "length"
            chunk: dict[str, Any] = {
                **base,
                "choices": [
                    {
                        "index": index,
                        "text": text,
                        "logprobs": None if logprobs is None else logprobs.model_dump(),
                        "finish_reason": finish,
                        **token_ids_field(body, events),
                    }
                ],
            }
            chunk |= usage.field(progress)
            if body.return_levels:
                chunk["hierspec"] = describe_round(progress)
            yield format_event(chunk)
        if usage.included:
            total = count_usage(all_ended, len(self.prompts), only_prompts=self.only_echo)
            last = {**base, "choices": [], "usage": total.model_dump()}
            yield format_event({**last, "speculative": summarise_speculation(all_ended)})
        yield DONE
