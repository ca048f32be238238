"""``POST /v1/completions``: continue texts or token ids."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request

from hierspec.engine.results import TokenEvent
from hierspec.engine.tickets import Ended, TokenScore

from ..access import service_of, tenant_of
from ..answers import (
    DONE,
    StreamUsage,
    completion_logprobs,
    event,
    levels_of,
    new_id,
    speculation_summary,
    usage,
)
from ..constraints import format_grammar, processors
from ..errors import ApiError
from ..prepare import engine_requests, requested_hierarchy, tokenize_prompt
from ..service import Service, Streams, Written
from ..streaming import streamed, unless_gone
from ..wire.common import ErrorAnswer
from ..wire.completions import CompletionAnswer, CompletionChoice, CompletionRequest

router = APIRouter()
_EXAMPLE = {"prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}


@router.post(
    "/v1/completions",
    response_model=CompletionAnswer,
    responses={"4XX": {"model": ErrorAnswer}},
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def completions(request: Request, body: CompletionRequest) -> Any:
    """Continue one or several prompts."""
    service = service_of(request)
    prompts, made = await service.in_background(_prepare, service, body, tenant_of(request))
    streams = service.submit(made)
    answer = _CompletionAnswer(service, body, prompts)
    if body.stream:
        return streamed(streams, answer.events(streams))
    return await unless_gone(request, streams, answer.whole(streams))


def _prepare(service: Service, body: CompletionRequest, tenant: str) -> tuple[list[Any], Any]:
    requested_hierarchy(service, body)
    if body.suffix:
        raise ApiError("suffix needs a model trained to fill in; this one continues texts")
    n = body.n or 1
    if body.best_of is not None and body.best_of != n:
        raise ApiError("best_of other than n is not supported: ask for n choices", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError("max_tokens is 0: ask for one token at least, or for echo")
    prompts = _prompts(service, body)
    asked = body.logprobs
    made = engine_requests(
        service,
        body,
        prompts,
        max_tokens=16 if body.max_tokens is None else body.max_tokens,
        logprobs=asked,
        prompt_logprobs=asked if body.echo else None,
        tenant=tenant,
        processors=processors(service, format_grammar(body.response_format), prompts, n),
    )
    return prompts, made


def _prompts(service: Service, body: CompletionRequest) -> list[list[int]]:
    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return [tokenize_prompt(service, prompt)]
    if isinstance(prompt[0], int):
        return [prompt]
    return [tokenize_prompt(service, one) if isinstance(one, str) else one for one in prompt]


class _CompletionAnswer:
    """The answer to one request, whole or in events."""

    def __init__(self, service: Service, body: CompletionRequest, prompts: list[list[int]]) -> None:
        self.service, self.body, self.prompts = service, body, prompts
        self.id, self.created = new_id("cmpl"), int(time.time())
        self.n = body.n or 1

    def _echoed(self, which: int) -> str:
        if not self.body.echo or self.service.tokenizer is None:
            return ""
        ids = self.prompts[which // self.n]
        prompt: Any = self.body.prompt
        if isinstance(prompt, str):
            return prompt
        if not isinstance(prompt[0], int) and isinstance(prompt[which // self.n], str):
            return prompt[which // self.n]
        return self.service.tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    async def whole(self, streams: Streams) -> CompletionAnswer:
        found = await streams.all()
        ended = [one.ended for one in found if one.ended is not None]
        return CompletionAnswer(
            id=self.id,
            created=self.created,
            model=self.service.model,
            choices=[self._choice(i, one) for i, one in enumerate(found)],
            usage=usage(self._counted(ended), len(self.prompts)),
            speculative=speculation_summary(ended),
        )

    def _choice(self, which: int, written: Written) -> CompletionChoice:
        ended = written.ended
        assert ended is not None
        echoed = self._echoed(which)
        nothing = self.body.max_tokens == 0
        logprobs = None
        if self.body.logprobs is not None:
            events = [] if nothing else written.events
            logprobs = self._logprobs(which, events, ended.prompt_logprobs, 0)
        return CompletionChoice(
            index=which,
            text=echoed + ("" if nothing else ended.text),
            logprobs=logprobs,
            finish_reason="length" if nothing else ended.finish_reason,
        )

    def _logprobs(
        self,
        which: int,
        events: list[TokenEvent],
        read: Sequence[TokenScore] | None,
        offset: int,
    ) -> Any:
        tokens: list[int] = []
        scores: list[TokenScore | None] = []
        if read is not None and self.body.echo:
            tokens += self.prompts[which // self.n]
            scores += [None, *read]
        for one in events:
            tokens.append(one.token_id)
            scores.append(TokenScore(one.logprob or 0.0, one.top_logprobs))
        return completion_logprobs(self.service, tokens, scores, offset, bool(self.body.logprobs))

    def _counted(self, ended: list[Ended]) -> list[Ended]:
        if self.body.max_tokens == 0:
            return [dataclasses.replace(one, token_ids=()) for one in ended]
        return ended

    async def events(self, streams: Streams) -> AsyncIterator[str]:
        body, service = self.body, self.service
        counting = StreamUsage(body.stream_options, streams, len(self.prompts))
        base = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": service.model,
        }
        offsets = [0] * len(streams.tickets)
        begun = [False] * len(streams.tickets)
        ended: list[Ended] = []
        async for which, progress in streams:
            if progress.ended is not None:
                if progress.ended.error is not None:
                    raise progress.ended.error
                ended.append(progress.ended)
            events = [] if body.max_tokens == 0 else progress.events
            text = "".join(one.text for one in events)
            logprobs = None
            first = not begun[which]
            if first:
                text, begun[which] = self._echoed(which) + text, True
            if body.logprobs is not None:
                read = progress.prompt_logprobs if first else None
                logprobs = self._logprobs(which, events, read, offsets[which])
            offsets[which] += len(text)
            finish = progress.ended.finish_reason if progress.ended is not None else None
            if finish is not None and body.max_tokens == 0:
                finish = "length"
            chunk: dict[str, Any] = {
                **base,
                "choices": [
                    {
                        "index": which,
                        "text": text,
                        "logprobs": None if logprobs is None else logprobs.model_dump(),
                        "finish_reason": finish,
                    }
                ],
            }
            chunk |= counting.of(progress)
            if body.return_levels:
                chunk["hierspec"] = levels_of(progress)
            yield event(chunk)
        if counting.wanted:
            ended = self._counted(ended)
            yield event(
                {
                    **base,
                    "choices": [],
                    "usage": usage(ended, len(self.prompts)).model_dump(),
                    "speculative": speculation_summary(ended),
                }
            )
        yield DONE
