"""``POST /v1/completions``: continue texts or token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import fastapi

from hierspec.engine.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    detokenizer,
    special_ids,
    token_bytes,
)
from hierspec.engine.request import Progress, Request, TokenScore
from hierspec.engine.results import TokenEvent
from hierspec.server.errors import ApiError
from hierspec.server.prepare import (
    engine_requests,
    requested_hierarchy,
    tokenize,
    tokenize_prompt,
)
from hierspec.server.replies import MIN_LOGPROB, ChoicesReply, reply, token_ids_field
from hierspec.server.service import Service
from hierspec.server.tools import OfferedTools
from hierspec.server.wire.completions import CompletionAnswer, CompletionRequest

router = fastapi.APIRouter()
_EXAMPLE = {"prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}


@router.post(
    "/v1/completions",
    response_model=CompletionAnswer,
    response_model_exclude_unset=True,
    openapi_extra={"requestBody": {"content": {"application/json": {"example": _EXAMPLE}}}},
)
async def completions(request: fastapi.Request, body: CompletionRequest) -> Any:
    """Continue one or several prompts."""
    return await reply(_CompletionReply, request, body)


def _sent(body: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts as the client sent them: texts or token ids."""
    prompt: Any = body.prompt
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


def _prompts(service: Service, body: CompletionRequest) -> list[list[int]]:
    sent = _sent(body)
    return [tokenize_prompt(service, part) if isinstance(part, str) else part for part in sent]


def _offsets(service: Service, sent: str | list[int], ids: list[int]) -> list[int]:
    """Return where in a prompt's text each of its tokens begins.

    Of a text that was sent, the tokens that the tokenizer puts around it are no part.
    """
    tokenizer = service.tokenizer
    if tokenizer is None:
        return [0] * len(ids)
    own = ids if isinstance(sent, list) else tokenize(service, sent, add_special_tokens=False)
    places = range(len(ids) - len(own) + 1)
    first = next((i for i in places if ids[i : i + len(own)] == own), 0)
    texts, position, offsets = detokenizer(tokenizer, shown_ids=special_ids(tokenizer)), 0, []
    for token in ids[first : first + len(own)]:
        offsets.append(position)
        piece = texts.add(token)
        if isinstance(sent, str) and not sent.startswith(piece, position):
            piece = piece.removeprefix(" ")  # which some decoders put behind a special token
        position += len(piece)
    return [0] * first + offsets + [position] * (len(ids) - first - len(own))


class _CompletionReply(ChoicesReply[CompletionRequest]):
    kind = chunk_kind = "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, tenant: str) -> None:
        requested_hierarchy(service, body.model, body.hierarchy)
        if body.suffix:
            raise ApiError("suffix needs a model trained to fill in; this one continues texts")
        if body.best_of not in (None, body.n or 1):
            raise ApiError(
                "best_of other than n is not supported: ask for n choices", param="best_of"
            )
        if body.max_tokens == 0 and not body.echo:
            raise ApiError("max_tokens is 0: ask for one token at least, or for echo")
        self.prompts = _prompts(service, body)
        constraint = None
        if body.response_format is not None:
            no_tools = OfferedTools(service.tokenizer, (), "none", False)
            constraint = no_tools.constraint(body.response_format)
        requests = engine_requests(
            service,
            body,
            self.prompts,
            max_tokens=16 if body.max_tokens is None else body.max_tokens,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
            tenant=tenant,
            constraint=constraint,
        )
        super().__init__(service, body, requests, "cmpl")
        self.num_prompts = len(self.prompts)
        self.only_prompts = body.max_tokens == 0  # the engine writes a token all the same: dropped
        self._prompt_offsets: list[list[int]] = []
        if body.echo and body.logprobs is not None:
            pairs = zip(_sent(body), self.prompts, strict=True)
            self._prompt_offsets = [_offsets(service, *pair) for pair in pairs]
        self._begun: set[int] = set()  # choices
        self._texts: dict[int, Detokenizer | ByteDetokenizer] = {}  # where log-probabilities are
        self._offsets: Counter[int] = Counter()  # characters of a choice's text so far

    def choice(self, index: int, ended: Request, events: list[TokenEvent]) -> dict[str, Any]:
        return self._part(index, ended.text, events, ended.prompt_logprobs, ended.finish_reason)

    def parts(self, index: int, progress: Progress, is_counted: bool) -> Iterator[dict[str, Any]]:
        text = "".join(token.text for token in progress.events)
        finish = None if progress.ended is None else progress.ended.finish_reason
        yield self._part(index, text, progress.events, progress.prompt_logprobs, finish)

    def _part(
        self,
        index: int,
        text: str,
        events: list[TokenEvent],
        prompt_scores: Sequence[TokenScore] | None,
        finish: str | None,
    ) -> dict[str, Any]:
        if self.only_prompts:
            text, events, finish = "", [], finish and "length"
        tokens: list[int] = []
        scores: list[TokenScore | None] = []
        offsets: list[int] = []
        if index not in self._begun and self.body.echo:
            prompt = self._prompt_text(index)
            text = prompt + text
            tokens += self._prompt(index)
            scores += [None, *(prompt_scores or ())]
            if self._prompt_offsets:
                offsets += self._prompt_offsets[index // (self.body.n or 1)]
            self._offsets[index] = len(prompt)
        self._begun.add(index)
        logprobs = None
        if self.body.logprobs is not None:
            tokens += [event.token_id for event in events]
            scores += [TokenScore(event.logprob or 0.0, event.top_logprobs) for event in events]
            logprobs = self._logprobs(tokens, scores, offsets + self._starts(index, events))
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish,
            **token_ids_field(self.body, events),
        }

    def _starts(self, index: int, events: Iterable[TokenEvent]) -> list[int]:
        """Return where in a choice's text its next tokens begin.

        An event's own text may be late: what may begin a stop string is held back.
        """
        if index not in self._texts:
            shown = self.requests[index].stop.shown_special_ids
            self._texts[index] = detokenizer(
                self.service.tokenizer, self._prompt(index), shown_ids=shown
            )
        lengths = (len(self._texts[index].add(event.token_id)) for event in events)
        *starts, self._offsets[index] = accumulate(lengths, initial=self._offsets[index])
        return starts

    def _prompt(self, index: int) -> list[int]:
        return self.prompts[index // (self.body.n or 1)]

    def _prompt_text(self, index: int) -> str:
        if self.service.tokenizer is None:
            return ""
        sent = _sent(self.body)[index // (self.body.n or 1)]
        if isinstance(sent, str):
            return sent
        return self.service.tokenizer.decode(sent, clean_up_tokenization_spaces=False)

    def _logprobs(
        self, tokens: list[int], scores: list[TokenScore | None], offsets: list[int]
    ) -> dict[str, Any]:
        """Describe tokens; the first one of a text has no score."""
        texts = [self._text(token) for token in tokens]
        tops: list[dict[str, float] | None] = []
        for text, score in zip(texts, scores, strict=True):
            if score is None:
                tops.append(None)
                continue
            best: dict[str, float] = {}
            for token, logprob in (*score.top_logprobs, (None, score.logprob)):
                name = text if token is None else self._text(token)
                best.setdefault(name, max(logprob, MIN_LOGPROB))
            tops.append(best)
        return {
            "tokens": texts,
            "token_logprobs": [None if s is None else max(s.logprob, MIN_LOGPROB) for s in scores],
            "top_logprobs": tops if self.body.logprobs else None,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return token_bytes(self.service.tokenizer, token).decode("utf-8", "replace")
