"""Fields that several endpoints share, under OpenAI's and vLLM's names."""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    model_validator,
)

from hierspec.utils.schema import nearest_key

Text = Annotated[str, Field(max_length=1 << 22)]
Name = Annotated[str, Field(max_length=256)]
StopText = Annotated[str, Field(max_length=4096)]  # every round looks for it, in the engine


def refuse_bool(value: Any) -> Any:
    """Refuse true and false where a number is meant, as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def at_most(count: int) -> BeforeValidator:
    """Refuse an object of more entries before any is looked at: each wrong one would be an error.

    Lists of more than a few hundred entries fail fast (``fail_fast``) for the same reason.
    """

    def refuse_more(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"must have at most {count} entries")
        return value

    return BeforeValidator(refuse_more)


Int = Annotated[int, BeforeValidator(refuse_bool)]
Float = Annotated[float, BeforeValidator(refuse_bool)]
TokenId = Annotated[Int, Field(ge=0, lt=1 << 31)]
Bias = Annotated[Float, Field(ge=-100.0, le=100.0)]


def refuse_unlimited(value: Any) -> Any:
    """Refuse -1, which stands for no limit in llama.cpp's server and ollama; say what does."""
    if value == -1:
        raise ValueError("-1 is no limit here: 1000000 writes until the text or the context ends")
    return value


MaxTokens = Annotated[Int, Field(ge=1, lt=1 << 31), BeforeValidator(refuse_unlimited)]


def kind_of(value: Any) -> str | None:
    """Return what a JSON value is, as a tag of a union's alternatives.

    An error then tells of the one alternative that was meant. Tags are no identifiers, so that
    :func:`hierspec.server.errors.first_error` leaves them out of the place.
    """
    kinds = {str: "a text", list: "a list", dict: "an object"}
    return kinds.get(type(value), "an object" if isinstance(value, BaseModel) else None)


def either(*kinds: str) -> Discriminator:
    """Return what tells a union's alternatives apart by :func:`kind_of`."""
    return Discriminator(kind_of, "wrong_kind", f"must be {' or '.join(kinds)}")


_ELSEWHERE = {  # fields that clients know, and what takes them here
    "messages": "/v1/chat/completions takes it",
    "prompt": "/v1/completions takes a text; prompts are not stored here",
    "input": "/v1/responses takes it",
    "instructions": "send a message of the role system; /v1/responses takes it",
    "conversation": "conversations are not stored here, send the whole one as input",
    "top_logprobs": "/v1/chat/completions takes it; in /v1/completions logprobs is a number",
    "functions": "send tools",
    "function_call": "send tool_choice",
    "content": "a message has it; /v1/completions and /tokenize take a prompt",
    "n_predict": "send max_tokens",
    "guided_json": "send response_format",
    "guided_choice": "send response_format, with an enum in its schema",
    "guided_regex": "send response_format, with a pattern in its schema",
    "structured_outputs": "send response_format",
    "min_tokens": "texts have no least length here; with ignore_eos they have max_tokens",
    "continue_final_message": "/v1/completions continues texts",
    "prompt_logprobs": "/v1/completions has them, with echo and logprobs",
    "options": "send its entries as fields of the request: temperature, top_p, seed, stop; and "
    "num_predict as max_tokens",
    "num_predict": "send max_tokens",
    "grammar": "send response_format, with a JSON schema",
    "cache_prompt": "the setting prefix_caching decides, leave it out",
    "keep_alive": "the model stays loaded, leave it out",
    "format": "send response_format",
    "num_ctx": "contexts grow as texts need, leave it out",
    "web_search_options": "nothing is searched here, leave it out",
}


class RequestModel(BaseModel):
    """Base of what clients send: an unknown field is an error that names the nearest valid one."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        names = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [key for key in data if key not in names] if isinstance(data, dict) else ()
        for key in unknown:
            nearest = nearest_key(str(key), names)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            hint = f": {_ELSEWHERE[key]}" if key in _ELSEWHERE else hint
            raise ValueError(f"unknown parameter: {str(key)[:64]!r}{hint}")
        return data


_MOST_COMPARED = 16  # unknown fields of an object; comparing thousands takes seconds


class ConversationModel(RequestModel):
    """Base of what a conversation consists of: fields that are none of ours are left out.

    Clients send back what other servers gave them (``reasoning_content``, ``index``), and hints
    to those (``cache_control``). A field that looks like one of ours by another name is refused,
    and so is one without which the conversation would be another.

    Attributes:
        refused: such fields, and what to do without them.
    """

    model_config = ConfigDict(extra="ignore")
    refused: ClassVar[dict[str, str]] = dict.fromkeys(
        ("prefix", "partial"), "an answer does not go on with an earlier message"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        names = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [key for key, value in data.items() if key not in names and value]
        for key in filter(cls.refused.get, unknown):
            raise ValueError(f"{key} is not supported here: {cls.refused[key]}")
        for key in unknown[:_MOST_COMPARED]:
            nearest = nearest_key(str(key), [*names, *cls.refused], cutoff=0.8)
            if nearest and nearest not in data:
                raise ValueError(f"unknown parameter: {str(key)[:64]!r}; did you mean {nearest!r}?")
        return data


def text_only(content: Any) -> Any:
    """Refuse parts of a message that are not text, by name; say what to send."""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and ("image" in kind or "audio" in kind or "file" in kind):
            raise ValueError(f"{kind[:32]} parts are not supported: send text parts")
    return content


class ResponseModel(BaseModel):
    """Base of what clients receive."""

    model_config = ConfigDict(extra="allow")


TemplateVariables = Annotated[dict[str, Any], Field(max_length=64)]


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

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, data: Any) -> Any:
        kinds = ("text", "json_object", "json_schema")
        if isinstance(data, dict) and data.get("type") not in kinds:
            raise ValueError(
                'send "type" as "text", "json_object" or "json_schema", and a schema as '
                '"json_schema": {"schema": …}'
            )
        return data

    @property
    def schema_(self) -> dict[str, Any] | None:
        return self.json_schema and self.json_schema.schema_


class PredictedOutput(RequestModel):
    """Text that the answer is expected to repeat for the most part; drafts are copied from it."""

    type: Literal["content"] = "content"
    content: Annotated[
        Annotated[Text, Tag("a text")]
        | Annotated[list[dict[str, Any]], Field(fail_fast=True), Tag("a list")],
        either("a text", "a list of parts"),
    ]


class GenerationRequest(RequestModel):
    """Fields of every request that generates text."""

    _received: float = PrivateAttr(default_factory=time.monotonic)

    model: Name | None = None
    temperature: Annotated[Float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[Float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[Int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[Float, Field(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[Float, Field(gt=0.0, le=100.0)] | None = None
    frequency_penalty: Annotated[Float, Field(ge=-2.0, le=2.0)] | None = None
    presence_penalty: Annotated[Float, Field(ge=-2.0, le=2.0)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024), at_most(1024)] | None = None
    seed: Annotated[Int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: (
        Annotated[
            Annotated[StopText, Tag("a text")]
            | Annotated[list[StopText], Field(max_length=16), Tag("a list")],
            either("a text", "a list of texts"),
        ]
        | None
    ) = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1024, fail_fast=True)] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    n: Annotated[Int, Field(ge=1, le=128)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    prediction: PredictedOutput | None = None
    hierarchy: Name | None = None
    speculative: bool | None = None
    priority: Annotated[Int, Field(ge=-1000, le=1000)] = 0
    timeout: Annotated[Float, Field(gt=0.0, le=86_400.0)] | None = None
    return_levels: bool = False
    return_token_ids: bool = False
    # Accepted because clients send them; they change nothing here.
    user: Name | None = None
    metadata: Annotated[dict[str, str], at_most(1024)] | None = None
    service_tier: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None

    @property
    def received(self) -> float:
        """When it came, by ``time.monotonic``: its time runs from then on."""
        return self._received


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
