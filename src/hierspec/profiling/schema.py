"""What a profile file holds, as typed records; ``docs/profiles.md`` says what every key means.

Further keys are allowed and kept.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict

from hierspec.config.chains import parse_level
from hierspec.config.levels import LevelConfig
from hierspec.config.schema import TargetConfig
from hierspec.utils.records import FrozenRecord
from hierspec.utils.schema import (
    Expected,
    Integer,
    Natural,
    NonNegativeNumber,
    Number,
    PositiveInteger,
    validate,
)
from hierspec.utils.validation import validate_temperature

Rule = Literal["block", "tokenwise"]
RULE, RULE_FOR_SEVERAL_DRAFTS = "block", "traversal"  # of plans; the same for a single draft
_Probability = Annotated[float, Strict(), Field(ge=0, le=1), Expected("a number from 0 to 1")]
SurvivalCurve = list[_Probability]  # entry m: that the first m tokens of a draft are kept
JointSurvival = list[SurvivalCurve]  # entry n, m: of a draft of n tokens whose first m are kept


def _validate_key(temperature: str) -> str:
    validate_temperature(float(temperature), "a temperature")
    return temperature


def _validate_target(target: dict[str, Any]) -> dict[str, Any]:
    validate(TargetConfig, target, "")
    return target


def _validate_level(level: dict[str, Any]) -> dict[str, Any]:
    parse_level(level, "")
    return level


TemperatureKey = Annotated[str, AfterValidator(_validate_key)]
# A target and a level stay the file's objects, since plans copy them into hierarchy files as they
# stand there: their keys in that order, and no defaults that they leave out. They are checked with
# the file; ``MeasuredModel.config`` and ``Profile.target_config`` are what code inside reads.
TargetObject = Annotated[dict[str, Any], AfterValidator(_validate_target)]
LevelObject = Annotated[dict[str, Any], AfterValidator(_validate_level)]


class MeasuredModel(FrozenRecord):
    """A candidate or the target.

    Attributes:
        level: as in a hierarchy file, without a budget; ``None`` for the target.
        weights: a hash of the files of ``owner``.
    """

    name: str
    level: LevelObject | None
    owner: str
    weights: str | None
    call_ms: Number

    @property
    def config(self) -> LevelConfig | None:
        """Its level as a configuration, of a budget of 1."""
        return None if self.level is None else parse_level(self.level, self.name)

    @property
    def makes_several(self) -> bool:
        """Whether it makes several drafts at once: a token tree, right below the target."""
        return self.config is not None and self.config.num_drafts > 1


class Survival(FrozenRecord):
    """Survival curves by rule."""

    block: SurvivalCurve
    tokenwise: SurvivalCurve


class MeasuredClass(Survival):
    """The curves of one class of text; ``joint`` survival where drafters stop by themselves."""

    joint: dict[Rule, JointSurvival] = Field(default_factory=dict)


class FollowedPair(FrozenRecord):
    """How well one model's drafts survive another's verification; models by their numbers."""

    drafter: Natural
    verifier: Natural
    drafts: Integer
    survival: Survival
    classes: list[MeasuredClass]
    tokens_per_call: Number
    standard_error: Number
    lengths: list[Integer]
    kept: list[Integer]
    joint: dict[Rule, JointSurvival] = Field(default_factory=dict)


class PairAgreement(FrozenRecord):
    """How alike two models' distributions are along the target's texts."""

    acceptance: Number | None = None
    equal_argmax: Number | None = None
    acceptance_on_prompts: Number | None = None
    positions: Integer = 0


class MeasuredPair(PairAgreement, FollowedPair):  # in the file, the last base's keys come first
    """What was measured of a pair; no agreement where the drafter has no distribution."""


class TimeSummary(FrozenRecord):
    """Milliseconds; ``low`` and ``high`` are quartiles."""

    mean: Annotated[Number, Field(gt=0), Expected("a positive number")]
    median: Number
    low: Number
    high: Number
    count: PositiveInteger


class MeasuredCost(FrozenRecord):
    """Times of a pair's calls by number of tokens; without a drafter, of a plain call."""

    drafter: Integer | None
    verifier: Integer
    draft: dict[int, TimeSummary]
    check: dict[int, TimeSummary]


class CallSamples(FrozenRecord):
    """Milliseconds of each of a pair's calls by number of tokens, while they are being timed.

    Attributes:
        draft: the drafter's, for n tokens, beginning right after the verifier's call.
        check: the verifier's, on n tokens, with the engine's own work in the round.
    """

    drafter: Integer | None
    verifier: Integer
    draft: dict[int, list[Number]]
    check: dict[int, list[Number]]


class ContextSlope(FrozenRecord):
    """Milliseconds that a token of context adds to a call without a draft, and on eight tokens."""

    model: Integer
    ms_per_token_0: Number
    ms_per_token_8: Number


class MeasuredContext(FrozenRecord):
    """How the cost of calls grows with the context: timed at ``tokens`` and at ``long`` tokens."""

    tokens: Integer
    long: Integer
    slopes: list[ContextSlope]


class CostNoise(FrozenRecord):
    """How steady the costs were: see :mod:`hierspec.profiling.noise`."""

    spread: Number
    load_average: list[Number]
    cores: Integer


class AtTemperature(FrozenRecord):
    """Everything at one temperature; ``priors``: what of it is not measured yet, in no file."""

    pairs: list[MeasuredPair]
    costs: list[MeasuredCost]
    context: MeasuredContext
    token_ms: NonNegativeNumber
    noise: CostNoise | None = None
    priors: list[str] = Field(default_factory=list)


class MeasuredSettings(FrozenRecord):
    """The part of the settings that readers need."""

    max_speculative_tokens: PositiveInteger
