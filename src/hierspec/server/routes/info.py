"""The playground, and what the service says: models, health, metrics, version, tokens of a text."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import Field

from hierspec import __version__
from hierspec.core.nodes import walk_levels
from hierspec.server.access import service_of
from hierspec.server.conversation import chat_ids, plain_messages
from hierspec.server.errors import ApiError
from hierspec.server.playground.page import build_page
from hierspec.server.prepare import requested_hierarchy, tokenize
from hierspec.server.wire.chat import Message
from hierspec.server.wire.common import (
    Name,
    RequestModel,
    ResponseModel,
    TemplateVariables,
    Text,
    TokenId,
)
from hierspec.utils.files import without_folders

router = APIRouter()


class TokenizeRequest(RequestModel):
    """A text, or a conversation in the model's chat format."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(max_length=4096, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: TemplateVariables | None = None


class TokenizeAnswer(ResponseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(RequestModel):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=1 << 20, fail_fast=True)]


class DetokenizeAnswer(ResponseModel):
    prompt: str


class ModelCard(ResponseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "hierspec"
    max_model_len: int
    hierarchies: list[str]
    levels: dict[str, list[str]]
    chat_template: bool


class ModelList(ResponseModel):
    object: str = "list"
    data: list[ModelCard]


def _card(request: Request) -> ModelCard:
    service = service_of(request)
    levels = {
        name: list(dict.fromkeys(without_folders(level.name) for level in walk_levels(h.root)))
        for name, h in service.hierarchies.items()
    }
    return ModelCard(
        id=service.model,
        created=service.created,
        max_model_len=service.max_length,
        hierarchies=list(service.hierarchies),
        levels=levels,
        chat_template=bool(getattr(service.tokenizer, "chat_template", None)),
    )


@router.get("/", include_in_schema=False)
async def playground() -> HTMLResponse:
    """Show the playground, a page that sends requests to this service only."""
    return build_page()


@router.get("/v1/models", summary="List models")
async def models(request: Request) -> ModelList:
    """List the model that is served, and the hierarchies that requests may name."""
    return ModelList(data=[_card(request)])


@router.get("/v1/models/{model:path}", summary="Describe a model")
async def model(request: Request, model: str) -> ModelCard:
    """Describe the model, also by the name ``default`` or that of a hierarchy."""
    requested_hierarchy(service_of(request), model)
    return _card(request)


@router.post("/tokenize", summary="Tokens of a text")
async def to_tokens(request: Request, body: TokenizeRequest) -> TokenizeAnswer:
    """Return the token ids of a text or a conversation."""
    service = service_of(request)
    requested_hierarchy(service, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("give either a prompt or messages")
    if body.prompt is not None:
        ids = await service.in_background(tokenize, service, body.prompt, body.add_special_tokens)
    else:
        plain = plain_messages(body.messages or [])
        ids = await service.in_background(
            chat_ids, service, plain, (), body.add_generation_prompt, body.chat_template_kwargs
        )
    return TokenizeAnswer(tokens=ids, count=len(ids), max_model_len=service.max_length)


@router.post("/detokenize", summary="Text of tokens")
async def to_text(request: Request, body: DetokenizeRequest) -> DetokenizeAnswer:
    """Return the text of token ids."""
    service = service_of(request)
    requested_hierarchy(service, body.model)
    if service.tokenizer is None:
        raise ApiError("this model has no tokenizer")
    if any(token >= service.vocab_size for token in body.tokens):
        raise ApiError(f"a token lies outside the vocabulary of {service.vocab_size}")
    text = await service.in_background(service.tokenizer.decode, body.tokens)
    return DetokenizeAnswer(prompt=text)


@router.get("/health", summary="Readiness")
@router.get("/health/ready", include_in_schema=False)
async def health(request: Request) -> JSONResponse:
    """Return 200 while requests are accepted and served; 503 once the service is shutting down, or
    where its engine makes no progress."""
    engine = service_of(request).engine
    return _health(engine.problem or (None if engine.accepts_requests else "shutting down"))


@router.get("/health/live", summary="Liveness")
async def live(request: Request) -> JSONResponse:
    """Return 503 where the engine makes no progress: restart it; else 200, at shutdown as well."""
    return _health(service_of(request).engine.problem)


def _health(problem: str | None) -> JSONResponse:
    return JSONResponse({"status": problem or "ok"}, 503 if problem else 200)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return metrics in Prometheus' format."""
    text = service_of(request).metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version() -> dict[str, str]:
    """Return the version of hierspec."""
    return {"version": __version__}
