"""Fields that several endpoints share, under OpenAI's and vLLM's names."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Text = Annotated[str, Field(max_length=1 << 22)]
Name = Annotated[str, Field(max_length=256)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]


class RequestModel(BaseModel):
    """Base of what clients send: an unknown field is an error that names the nearest valid one."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if isinstance(data, dict):
            names = [field.alias or name for name, field in cls.model_fields.items()]
            for key in data:
                if key not in names:
                    nearest = difflib.get_close_matches(str(key), names, n=1, cutoff=0.6)
                    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                    raise ValueError(f"unknown parameter: {str(key)[:64]!r}{hint}")
        return data


def text_only(content: Any) -> Any:
    """Refuse parts of a message that are not text, by name.

    Raises:
        ValueError: names the kind of part, and says what to send.
    """
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and ("image" in kind or "audio" in kind or "file" in kind):
            raise ValueError(f"{kind[:32]} parts are not supported: send text parts")
    return content


class ResponseModel(BaseModel):
    """Base of what clients receive."""

    model_config = ConfigDict(extra="allow")


class StreamOptions(RequestModel):
    """``include_usage``: end the stream with a chunk that counts tokens.

    ``continuous_usage_stats`` (vLLM's): then every chunk also counts the tokens so far.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool | None = None


class JsonSchemaFormat(RequestModel):
    name: Name = "answer"
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """What the text must be: any text, JSON, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class PredictedOutput(RequestModel):
    """Text that the answer is expected to repeat for the most part; drafts are copied from it."""

    type: Literal["content"] = "content"
    content: Text | list[dict[str, Any]]


class GenerationRequest(RequestModel):
    """Fields of every request that generates text."""

    model: Name | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    prediction: PredictedOutput | None = None
    user: Name | None = None
    hierarchy: Name | None = None
    speculative: bool | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    timeout: Annotated[float, Field(gt=0.0, le=86_400.0)] | None = None
    return_levels: bool = False


class PromptTokensDetails(ResponseModel):
    cached_tokens: int = 0


class CompletionTokensDetails(ResponseModel):
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int = 0


class Usage(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """The answer to every failed request."""

    error: ErrorBody
