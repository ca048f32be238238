"""``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from .common import (
    ConversationModel,
    GenerationRequest,
    Int,
    MaxTokens,
    Name,
    RequestModel,
    ResponseModel,
    TemplateVariables,
    Text,
    Usage,
    either,
    text_only,
)


class TextPart(ConversationModel):
    """A part of a message; only text is supported."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: Text | None = None
    refusal: Text | None = None


Content = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[list[TextPart], Field(max_length=1024, fail_fast=True), Tag("a list")],
    either("a text", "a list of parts"),
    BeforeValidator(text_only),
]


class FunctionCall(ConversationModel):
    name: Name
    arguments: Text


class ToolCall(ConversationModel):
    id: Name | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


def refuse_missing_content(message: Any) -> Any:
    """Refuse a message without content, unless a model or a tool may have written it."""
    if message.content is None and message.role in ("system", "developer", "user"):
        raise ValueError(f"a message of the role {message.role} needs content")
    return message


class Message(ConversationModel):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: Name | None = None
    refusal: Text | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: FunctionCall | None = None

    _validate_content = model_validator(mode="after")(refuse_missing_content)


class Function(ConversationModel):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(ConversationModel):
    type: Literal["function"]
    function: Function

    @model_validator(mode="before")
    @classmethod
    def _refuse_flat(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") == "function" and "function" not in data:
            raise ValueError('name, description and parameters belong inside its "function"')
        return data


class NamedFunction(RequestModel):
    name: Name


class NamedTool(RequestModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class ChatRequest(GenerationRequest):
    """A conversation to answer."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("a text")]
            | Annotated[NamedTool, Tag("an object")],
            either('"none", "auto", "required"', "an object that names a function"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: TemplateVariables | None = None
    # These change nothing here, either.
    store: bool | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: Name | None = None
    verbosity: Name | None = None


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseModel):
    content: list[TokenLogprob] | None
    refusal: None = None


class ChatMessage(ResponseModel):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    annotations: list[Any] = Field(default_factory=list)
    tool_calls: list[ToolCall] | None = None


class ChatChoice(ResponseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatAnswer(ResponseModel):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    speculative: dict[str, Any] | None = None
