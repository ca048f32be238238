"""``/v1/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag

from .common import (
    GenerationRequest,
    Int,
    ResponseModel,
    Text,
    TokenId,
    Usage,
    kind_of,
    refuse_unlimited,
)

_Ids = Annotated[list[TokenId], Field(min_length=1, max_length=1 << 20, fail_fast=True)]


def _kind(prompt: Any) -> str | None:
    if not isinstance(prompt, list):
        return kind_of(prompt)
    inner = prompt[0] if prompt else ""
    if isinstance(inner, int | float):
        return "token ids"
    return {"a text": "a list of texts", "a list": "lists of token ids"}.get(kind_of(inner) or "")


class CompletionRequest(GenerationRequest):
    """A prompt to continue: text or token ids, one or several."""

    prompt: Annotated[
        Annotated[Text, Tag("a text")]
        | Annotated[_Ids, Tag("token ids")]
        | Annotated[
            list[Text], Field(min_length=1, max_length=2048, fail_fast=True), Tag("a list of texts")
        ]
        | Annotated[
            list[_Ids],
            Field(min_length=1, max_length=2048, fail_fast=True),
            Tag("lists of token ids"),
        ],
        Discriminator(_kind, "wrong_kind", "must be a text, token ids, or a list of such"),
    ]
    max_tokens: (
        Annotated[Int, Field(ge=0, lt=1 << 31), BeforeValidator(refuse_unlimited)] | None
    ) = 16
    echo: bool | None = False
    logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[Int, Field(ge=1, le=128)] | None = None
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
    system_fingerprint: str
    speculative: dict[str, Any] | None = None
