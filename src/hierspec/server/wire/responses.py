"""``/v1/responses``: text in, text out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .chat import TextPart
from .common import Answer, Name, Sampling, Text, Wire, text_only


class InputMessage(Wire):
    """One message of the input."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Text | Annotated[list[TextPart], Field(max_length=1024)], BeforeValidator(text_only)
    ]
    id: Name | None = None
    status: Name | None = None


class TextFormat(Wire):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name = "answer"
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Wire):
    format: TextFormat | None = None
    verbosity: Name | None = None


class ResponsesRequest(Sampling):
    """A text or a conversation to answer."""

    input: Text | Annotated[list[InputMessage], Field(min_length=1, max_length=4096)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    text: TextOptions | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    # Accepted because clients send them; they change nothing here.
    metadata: dict[str, str] | None = None
    service_tier: Name | None = None
    truncation: Literal["disabled"] | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Name], Field(max_length=0)] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    background: Literal[False] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None


class ResponsesAnswer(Answer):
    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
