"""What a profile file holds, as declared types; ``docs/profiles.md`` says what every key means.

Typed dictionaries, because a profile is written piece by piece while it is measured, and in memory
it is the file's JSON object. Further keys are allowed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from hierspec.utils.checks import check_temperature
from hierspec.utils.schema import Integer, Number

KIND, SCHEMA_VERSION = "hierspec-profile", 1

Rule = Literal["block", "tokenwise"]
# The rule used instead for several drafts; the two are the same for a single draft.
RULES_FOR_SEVERAL_DRAFTS: dict[Rule, str] = {"block": "traversal", "tokenwise": "rrs"}
SurvivalCurve = list[Number]  # entry m: the probability that the first m tokens of a draft are kept
JointSurvival = list[SurvivalCurve]  # entry n, m: of a draft of n tokens whose first m are kept
TemperatureKey = Annotated[
    str, AfterValidator(lambda t: check_temperature(float(t), "a temperature"))
]


class MeasuredModel(TypedDict):
    """``level`` is as in a hierarchy file, ``None`` for the target; ``weights`` is a hash of the
    files of ``owner``."""

    name: str
    level: dict[str, Any] | None
    owner: str
    weights: str | None
    call_ms: Number


class Survival(TypedDict):
    """Survival curves by rule."""

    block: SurvivalCurve
    tokenwise: SurvivalCurve


class MeasuredClass(Survival):
    """The curves of one class of text; ``joint`` survival where drafters stop by themselves."""

    joint: NotRequired[dict[Rule, JointSurvival]]


class MeasuredPair(TypedDict):
    """How well one model's drafts survive another's verification; models by their numbers."""

    drafter: Integer
    verifier: Integer
    drafts: Integer
    survival: Survival
    joint: NotRequired[dict[Rule, JointSurvival]]
    classes: list[MeasuredClass]
    tokens_per_call: Number
    standard_error: Number
    lengths: list[Integer]
    kept: list[Integer]
    acceptance: NotRequired[Number]
    equal_argmax: NotRequired[Number]
    acceptance_on_prompts: NotRequired[Number | None]
    positions: NotRequired[Integer]


class TimeSummary(TypedDict):
    """Milliseconds; ``low`` and ``high`` are quartiles."""

    mean: Number
    median: Number
    low: Number
    high: Number
    count: Integer


class MeasuredCost(TypedDict):
    """Times of a pair's calls by number of tokens; without a drafter, of a plain call."""

    drafter: Integer | None
    verifier: Integer
    draft: dict[str, TimeSummary]
    check: dict[str, TimeSummary]


class ContextSlope(TypedDict):
    """Milliseconds that a token of context adds to a call without a draft, and on eight tokens."""

    model: Integer
    ms_per_token_0: Number
    ms_per_token_8: Number


class MeasuredContext(TypedDict):
    """How the cost of calls grows with the context: timed at ``tokens`` and at ``long`` tokens."""

    tokens: Integer
    long: Integer
    slopes: list[ContextSlope]


class CostNoise(TypedDict):
    """How steady the costs were: see :mod:`hierspec.profiling.noise`."""

    spread: Number
    load_average: list[Number]
    cores: Integer


class AtTemperature(TypedDict):
    """Everything at one temperature."""

    pairs: list[MeasuredPair]
    costs: list[MeasuredCost]
    context: MeasuredContext
    token_ms: Number
    noise: NotRequired[CostNoise]


class MeasuredSettings(TypedDict):
    """The part of the settings that readers need."""

    max_speculative_tokens: Integer


class ProfileData(TypedDict):
    """The whole file, finished. ``models``: cheapest first, the target last."""

    kind: Literal["hierspec-profile"]
    schema_version: Literal[1]
    hardware: dict[str, Any]
    target: dict[str, Any]
    settings: MeasuredSettings
    models: Annotated[list[MeasuredModel], Field(min_length=1)]
    memory: dict[str, Integer]
    temperatures: Annotated[dict[TemperatureKey, AtTemperature], Field(min_length=1)]
