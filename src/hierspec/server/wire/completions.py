"""``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from .common import GenerationRequest, ResponseModel, Text, TokenId, Usage

_Ids = Annotated[list[TokenId], Field(min_length=1, max_length=1 << 20)]


class CompletionRequest(GenerationRequest):
    """A prompt to continue: text or token ids, one or several."""

    prompt: (
        Text
        | _Ids
        | Annotated[list[Text], Field(min_length=1, max_length=2048)]
        | Annotated[list[_Ids], Field(min_length=1, max_length=2048)]
    )
    max_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = 16
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: Text | None = None


class CompletionLogprobs(ResponseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None


class CompletionAnswer(ResponseModel):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    speculative: dict[str, Any] | None = None
