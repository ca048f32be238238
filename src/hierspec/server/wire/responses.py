"""``/v1/responses``: text in, text out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter, model_validator

from .chat import Content, Function, NamedFunction, refuse_missing_content
from .common import (
    ConversationModel,
    GenerationRequest,
    JsonSchemaFormat,
    MaxTokens,
    Name,
    RequestModel,
    ResponseModel,
    TemplateVariables,
    Text,
    either,
)


class InputItemBase(ConversationModel):
    """Fields that any item of the input may have: clients send back items of earlier outputs."""

    id: Name | None = None
    status: Name | None = None


class InputMessage(InputItemBase):
    """One message of the input."""

    type: Literal["message"] | None = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None
    phase: Name | None = None
    _validate_content = model_validator(mode="after")(refuse_missing_content)
    refused = ConversationModel.refused | dict.fromkeys(
        ("tool_calls", "function_call", "tool_call_id"), "calls and their results are items"
    )


class InputCall(InputItemBase):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Text


class InputResult(InputItemBase):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Name | None = None
    output: Content | None = None


class InputReasoning(InputItemBase):
    """What another model thought; no model here reads it."""

    type: Literal["reasoning"]


class InputReference(InputItemBase):
    """An item that was sent or answered before, by its id."""

    type: Literal["item_reference"] | None = None
    id: Name = Field(default=...)


def _kind(item: Any) -> str:
    kind = item.get("type")
    if kind is None:
        kind = "item_reference" if "id" in item and "role" not in item else "message"
    return f"{kind} item"


def _validate_kind(item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError("an item of the input must be an object")
    if (kind := _kind(item)).removesuffix(" item") not in _KINDS:
        raise ValueError(f"{kind[:64]}s are not supported: leave them out")
    return item


_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
InputItem = Annotated[
    Annotated[InputMessage, Tag("message item")]
    | Annotated[InputCall, Tag("function_call item")]
    | Annotated[InputResult, Tag("function_call_output item")]
    | Annotated[InputReasoning, Tag("reasoning item")]
    | Annotated[InputReference, Tag("item_reference item")],
    Discriminator(_kind),
    BeforeValidator(_validate_kind),
]
INPUT_ITEM: TypeAdapter[Any] = TypeAdapter(InputItem)  # reads items of an output, too

# What may be asked to be in the output: kinds of items that it never has here.
_NEVER_INCLUDED = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponsesTool(Function):
    """A function; in chat completions it is inside a tool's object."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _refuse_nested(cls, data: Any) -> Any:
        if isinstance(data, dict) and "function" in data and "name" not in data:
            raise ValueError('name, description and parameters belong beside "type" here')
        return data


class ResponsesNamedTool(NamedFunction):
    type: Literal["function"] = "function"


class TextFormat(JsonSchemaFormat):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"


class TextOptions(RequestModel):
    format: TextFormat | None = None
    verbosity: Name | None = None


class Reasoning(RequestModel):
    effort: Name | None = None
    summary: None = None


class ResponsesRequest(GenerationRequest):
    """A text or a conversation to answer."""

    input: Annotated[
        Annotated[Text, Tag("a text")]
        | Annotated[list[InputItem], Field(max_length=4096, fail_fast=True), Tag("a list")],
        either("a text", "a list of items"),
    ]
    instructions: Text | None = None
    max_output_tokens: MaxTokens | None = None
    text: TextOptions | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=128)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("a text")]
            | Annotated[ResponsesNamedTool, Tag("an object")],
            either('"none", "auto", "required"', "an object that names a function"),
        ]
        | None
    ) = None
    chat_template_kwargs: TemplateVariables | None = None
    parallel_tool_calls: bool | None = None
    # These change nothing here, either.
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[_NEVER_INCLUDED], Field(max_length=16)] | None = None
    background: Literal[False] | None = None

    def text_format(self) -> TextFormat | None:
        """Return what the text must be: ``text.format``, or ``response_format`` of chats."""
        if self.text is not None and self.text.format is not None:
            return self.text.format
        if self.response_format is None:
            return None
        schema = self.response_format.json_schema or JsonSchemaFormat()
        form = {"type": self.response_format.type, **schema.model_dump(by_alias=True)}
        return TextFormat.model_validate(form)


class ResponsesAnswer(ResponseModel):
    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
