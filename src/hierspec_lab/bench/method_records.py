"""What a results file holds of one method: its runs, their summary, and how it was tuned.

The records of :mod:`hierspec_lab.bench.records` hold these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Strict,
    WrapSerializer,
    model_validator,
)

from hierspec.errors import HierspecError
from hierspec.utils import schema
from hierspec.utils.records import Record
from hierspec.utils.schema import Boolean, Expected, Natural

PLAIN = "plain"  # the method that all others are compared with
GROUPS = {  # group of methods → its title
    "plain": "plain decoding",
    "planned": "planned",
    "paper": "papers' systems",
    "baseline": "baselines",
    "peer": "other libraries",
}

FiniteNumber = Annotated[float, Strict(), Expected("a finite number")]
Positive = Annotated[float, Strict(), Field(gt=0), Expected("a number above 0")]  # a divisor
Tally = (
    Annotated[int, Strict()] | FiniteNumber
)  # a sequence's share of a batch's counter is a fraction


class Spread(Record):
    """Median, quartiles and mean of values; the error of a single one is unknown."""

    median: FiniteNumber
    q1: FiniteNumber
    q3: FiniteNumber
    n: Natural
    mean: FiniteNumber
    standard_error: FiniteNumber | None


MIN_PROMPTS_FOR_INTERVAL = 5


class PairedRatio(Record):
    """Ratios per prompt, above 1 is faster: quartiles and the median's 95 % interval."""

    median: FiniteNumber
    q1: FiniteNumber
    q3: FiniteNumber
    n: Natural
    low95: FiniteNumber
    high95: FiniteNumber

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; ``None`` for fewer than five prompts, or a method over itself.

        A bootstrap of so few prompts could only repeat their few ratios.
        """
        if self.n < MIN_PROMPTS_FOR_INTERVAL or self.low95 >= self.high95:
            return None
        return self.low95, self.high95

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The interval as two columns of a table: ``None`` twice where there is none."""
        return self.interval or (None, None)

    def format(self, decimals: int = 2, unit: str = "×") -> str:
        """Format the median with its interval, as in ``2.68× [2.22, 3.35]``, if it has one."""
        low, high = self.bounds
        interval = "" if low is None else f" [{low:.{decimals}f}, {high:.{decimals}f}]"
        return f"{self.median:.{decimals}f}{unit}{interval}"


class LevelCounters(Record):
    """A level's counters in a run, as ``generate --json`` has them."""

    name: str
    calls: Tally
    num_drafts: Tally
    num_draft_tokens: Tally
    num_accepted_tokens: Tally
    acceptance_rate: FiniteNumber | None = None
    num_accepted_tokens_per_pos: list[Tally]
    seconds: FiniteNumber
    forward_seconds: FiniteNumber
    verify_seconds: FiniteNumber | None = None


# Other engines report no counters; the file has an empty object for them.
TargetCounters = Annotated[
    LevelCounters | None,
    BeforeValidator(lambda value: None if value == {} else value),
    WrapSerializer(lambda value, write: {} if value is None else write(value)),
]


class RunRecord(Record):
    """A method's run on a prompt.

    Attributes:
        prompt: its index.
        turn: this method's place, from 0, in the order in which methods ran on this prompt.
        first_difference_gap: where this output and plain decoding's first differ, the target's best
            score minus the lower of the two tokens' scores, in logits; ``None`` if none differ, one
            only ends sooner, or the target excludes one.
    """

    prompt: Natural
    turn: Natural | None = None
    num_tokens: Natural
    seconds: Positive
    decode_seconds: FiniteNumber | None
    ms_per_token: Positive
    decode_ms_per_token: FiniteNumber | None
    overhead_ms_per_token: FiniteNumber | None
    target_calls: Tally | None
    mean_acceptance_length: FiniteNumber | None
    same_as_plain: Boolean | None
    logprob_per_token: FiniteNumber | None
    token_ids: list[Natural]
    levels: list[LevelCounters]
    target: TargetCounters
    first_difference_gap: FiniteNumber | None = None

    @property
    def counters(self) -> tuple[LevelCounters, ...]:
        """Those of all levels, the target's last; empty for other engines."""
        return (*self.levels, self.target) if self.target else ()


class LevelSummary(Record):
    """Calls and times of a level per token after the first, over all runs."""

    name: str
    calls_per_token: FiniteNumber
    ms_per_token: FiniteNumber
    forward_ms_per_token: FiniteNumber
    acceptance_rate: FiniteNumber | None


class LikelihoodSummary(Record):
    """Sampled text under the target: mean log-probability per token, in nats, and its tests."""

    mean: FiniteNumber
    difference_from_plain: FiniteNumber
    standard_error: FiniteNumber | None
    law_z: FiniteNumber | None = None
    within_noise: Boolean


class CategorySpeedup(Record):
    """Medians on the prompts of a category."""

    speedup: FiniteNumber
    n: Natural | None = None
    ms_per_token: FiniteNumber | None = None


class MethodSummary(Record):
    """A method's runs summed up by :mod:`.summary`; ``levels``: the target last."""

    ms_per_token: Spread
    decode_ms_per_token: Spread | None
    tokens_per_second: FiniteNumber
    overhead_ms_per_token: Spread | None
    mean_acceptance_length: FiniteNumber | None
    speedup: PairedRatio | None
    speedup_over_best_transformers: PairedRatio | None
    standardized_walltime_improvement: FiniteNumber | None
    acceptance_per_position: dict[str, list[FiniteNumber]]
    levels: list[LevelSummary]
    same_as_plain: Natural | None
    logprob: LikelihoodSummary | None
    peak_memory_bytes: Tally | None
    by_category: dict[str, CategorySpeedup] = Field(default_factory=dict)


class LevelShape(Record):
    """The fields of a hierarchy file's level that tables show."""

    method: str
    model: str | None = None
    num_speculative_tokens: Natural | None = None
    exit_layer: Natural | None = None
    parts: list[list[LevelShape]] | None = None
    repeat: Natural = 1

    @model_validator(mode="after")
    def _validate_keys(self) -> LevelShape:
        needed = ["parts"] if self.method == "concatenate" else ["num_speculative_tokens"]
        needed += ["exit_layer"] if self.method == "early_exit" else []
        for key in needed:
            if getattr(self, key) is None:
                raise HierspecError(f"{key!r} is missing")
        return self


def level_shapes(configuration: Mapping[str, Any]) -> list[LevelShape]:
    """Read the levels of a hierarchy's configuration.

    Raises:
        HierspecError: a level is damaged; names the place.
    """
    return schema.validate(list[LevelShape], configuration["levels"], "levels")


def _validate_levels(configuration: dict[str, Any]) -> dict[str, Any]:
    if "levels" in configuration:
        level_shapes(configuration)
    return configuration


class TuningTrial(Record):
    """A configuration that was tried, and its median time, or why it could not run."""

    configuration: dict[str, Any]
    ms_per_token: FiniteNumber | None
    skipped: str | None = None


class TuningRecord(Record):
    """All configurations tried, on how many prompts, and how many at once."""

    prompts: Natural
    batch_size: Natural = 1
    trials: list[TuningTrial]


@dataclass(frozen=True, slots=True)
class PredictionComparison:
    """Predicted and measured mean ms per token after the first; ``error`` = their ratio − 1."""

    predicted: float
    measured: float
    error: float


class MethodRecord(Record):
    """A method's results at a temperature.

    Attributes:
        configuration: a hierarchy file's levels and rule, or another engine's options.
        skipped: why it was left out.
        parameters: weights that a call of each level runs through.
        near_tie_tolerance: the method's own, if its data type differs from the target's.
    """

    name: str
    title: str
    group: str
    source: str
    lossless: Boolean
    configuration: Annotated[dict[str, Any], AfterValidator(_validate_levels)] | None = None
    skipped: str | None = None
    tuning: TuningRecord | None = None
    predicted_ms_per_token: FiniteNumber | None = None
    parameters: dict[str, Natural] | None = None
    runs: list[RunRecord]
    summary: MethodSummary | None = None
    near_tie_tolerance: FiniteNumber | None = None

    @property
    def distinct_title(self) -> str:
        """The title, or an empty text where it only repeats the name."""
        name, title = (
            text.lower().replace("-", " ").replace(",", "") for text in (self.name, self.title)
        )
        return "" if name == title else self.title

    @property
    def full_name(self) -> str:
        """Name and title, as in ``hierarchy (chain of drafts)``."""
        return f"{self.name} ({self.distinct_title})" if self.distinct_title else self.name

    @property
    def final_summary(self) -> MethodSummary:
        """The summary of a method that was measured to the end."""
        assert self.summary is not None
        return self.summary

    @property
    def median_speedup(self) -> float | None:
        """The median speed-up over plain decoding; plain decoding's own is 1."""
        if self.summary is None or self.summary.speedup is None:
            return 1.0 if self.name == PLAIN and self.summary else None
        return self.summary.speedup.median

    @property
    def prediction(self) -> PredictionComparison | None:
        """The planner's prediction beside what was measured."""
        measured = self.summary and self.summary.decode_ms_per_token
        if self.predicted_ms_per_token is None or not measured or not measured.mean:
            return None
        predicted = self.predicted_ms_per_token
        return PredictionComparison(predicted, measured.mean, predicted / measured.mean - 1)
