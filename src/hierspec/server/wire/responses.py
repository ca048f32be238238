"""``/v1/responses``: text in, text out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from .chat import Function, NamedTool, TextPart, Tool
from .common import GenerationRequest, Name, RequestModel, ResponseModel, Text, text_only


class InputItemBase(RequestModel):
    """Fields that any item of the input may have: clients send back items of earlier outputs."""

    id: Name | None = None
    status: Name | None = None


class InputMessage(InputItemBase):
    """One message of the input."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Text | Annotated[list[TextPart], Field(max_length=1024)], BeforeValidator(text_only)
    ]
    phase: Name | None = None


class InputCall(InputItemBase):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Text


class InputResult(InputItemBase):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Name
    output: Text


def _kind(item: Any) -> str:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if kind in ("function_call", "function_call_output") else "message"


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputResult, Tag("function_call_output")],
    Discriminator(_kind),
]


class ResponsesTool(Function):
    """A function; in chat completions it is inside a tool's object."""

    type: Literal["function"]

    def as_tool(self) -> Tool:
        """Convert to a tool of chat completions."""
        return Tool(type="function", function=Function(**self.model_dump(exclude={"type"})))


class ResponsesNamedTool(RequestModel):
    type: Literal["function"] = "function"
    name: Name


class TextFormat(RequestModel):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name = "answer"
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(RequestModel):
    format: TextFormat | None = None
    verbosity: Name | None = None


class ResponsesRequest(GenerationRequest):
    """A text or a conversation to answer."""

    model: Name = Field(default=...)
    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=4096)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    text: TextOptions | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesNamedTool | None = None
    # Accepted because clients send them; they change nothing here.
    metadata: dict[str, str] | None = None
    service_tier: Name | None = None
    truncation: Literal["disabled"] | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Name], Field(max_length=0)] | None = None
    background: Literal[False] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None

    def chat_tools(self) -> list[Tool]:
        """Convert the tools to those of chat completions."""
        return [tool.as_tool() for tool in self.tools or ()]

    def chat_tool_choice(self) -> str | NamedTool | None:
        """Convert the choice of a tool to that of chat completions."""
        choice = self.tool_choice
        if isinstance(choice, ResponsesNamedTool):
            return NamedTool.model_validate({"function": {"name": choice.name}})
        return choice


class ResponsesAnswer(ResponseModel):
    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
