"""What a results file holds, as typed records: bench, temperatures, methods, runs, summaries.

``docs/bench.md`` describes the file; pydantic checks it (:mod:`hierspec.utils.schema`). Keys that
an older version did not write have defaults and stay absent when the file is written again; keys
of a later one are kept as they are. Units: seconds, milliseconds (``ms``), bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    WrapSerializer,
    model_validator,
)

from hierspec.errors import HierspecError
from hierspec.utils import schema
from hierspec.utils.schema import Boolean, Expected
from hierspec.utils.schema import Natural as Count

KIND, SCHEMA_VERSION = "hierspec-bench", 1
PLAIN = "plain"  # the method that all others are compared with
GROUPS = {  # group of methods → what it is called
    "plain": "plain decoding",
    "planned": "planned",
    "paper": "papers' systems",
    "baseline": "baselines",
    "peer": "other libraries",
}

Number = Annotated[float, Strict(), Expected("a finite number")]
Positive = Annotated[float, Strict(), Field(gt=0), Expected("a number above 0")]  # a divisor
Tally = Annotated[int, Strict()] | Number  # a sequence's share of a batch's counter is a fraction


class Record(BaseModel):
    """A JSON object of the file."""

    model_config = ConfigDict(
        extra="allow", allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
    )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object: what was set or read, in the file's order."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Spread(Record):
    """Median, quartiles and mean of values; the error of a single one is unknown."""

    median: Number
    q1: Number
    q3: Number
    n: Count
    mean: Number
    standard_error: Number | None


PROMPTS_OF_AN_INTERVAL = 5  # the fewest that have one


class PairedRatio(Record):
    """Ratios per prompt, above 1 is faster: quartiles and the median's 95 % interval."""

    median: Number
    q1: Number
    q3: Number
    n: Count
    low95: Number
    high95: Number

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval; ``None`` for fewer than five prompts, or a method over itself.

        Resampling so few can only give back the few values there are, whatever lies between.
        """
        if self.n < PROMPTS_OF_AN_INTERVAL or self.low95 >= self.high95:
            return None
        return self.low95, self.high95

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The same as two columns of a table."""
        return self.interval or (None, None)

    def said(self, decimals: int = 2, unit: str = "×") -> str:
        """The median with its interval, as in ``2.68× [2.22, 3.35]``, or alone without one."""
        low, high = self.ends
        ends = "" if low is None else f" [{low:.{decimals}f}, {high:.{decimals}f}]"
        return f"{self.median:.{decimals}f}{unit}{ends}"


class LevelCounters(Record):
    """A level's counters in a run, as ``generate --json`` has them."""

    name: str
    calls: Tally
    num_drafts: Tally
    num_draft_tokens: Tally
    num_accepted_tokens: Tally
    acceptance_rate: Number | None = None
    num_accepted_tokens_per_pos: list[Tally]
    seconds: Number
    forward_seconds: Number
    verify_seconds: Number | None = None


# Other engines report no counters; the file has an empty object for them.
TargetCounters = Annotated[
    LevelCounters | None,
    BeforeValidator(lambda value: None if value == {} else value),
    WrapSerializer(lambda value, write: {} if value is None else write(value)),
]


class RunRecord(Record):
    """A method's run on a prompt.

    Attributes:
        prompt: its number; ``turn``: the method's place in the round, from 0 on.
        first_difference_gap: how far the first token that differs from plain decoding's lies below
            the target's best score, in logits; ``None`` where no score says so.
    """

    prompt: Count
    turn: Count | None = None
    num_tokens: Count
    seconds: Positive
    decode_seconds: Number | None
    ms_per_token: Positive
    decode_ms_per_token: Number | None
    overhead_ms_per_token: Number | None
    target_calls: Tally | None
    mean_acceptance_length: Number | None
    same_as_plain: Boolean | None
    logprob_per_token: Number | None
    token_ids: list[Count]
    levels: list[LevelCounters]
    target: TargetCounters
    first_difference_gap: Number | None = None


class LevelSummary(Record):
    """What a token after the first takes at a level, over all runs."""

    name: str
    calls_per_token: Number
    ms_per_token: Number
    forward_ms_per_token: Number
    acceptance_rate: Number | None


class LikelihoodSummary(Record):
    """Sampled text under the target: mean log-probability per token, in nats, and its tests."""

    mean: Number
    difference_from_plain: Number
    standard_error: Number | None
    law_z: Number | None = None
    within_noise: Boolean


class CategorySpeedup(Record):
    """Medians on the prompts of a category."""

    speedup: Number
    n: Count | None = None
    ms_per_token: Number | None = None


class MethodSummary(Record):
    """A method's runs summed up, by :mod:`hierspec.bench.summary`; ``levels``: the target last."""

    ms_per_token: Spread
    decode_ms_per_token: Spread | None
    tokens_per_second: Number
    overhead_ms_per_token: Spread | None
    mean_acceptance_length: Number | None
    speedup: PairedRatio | None
    speedup_over_best_transformers: PairedRatio | None
    standardized_walltime_improvement: Number | None
    acceptance_per_position: dict[str, list[Number]]
    levels: list[LevelSummary]
    same_as_plain: Count | None
    logprob: LikelihoodSummary | None
    peak_memory_bytes: Tally | None
    by_category: dict[str, CategorySpeedup] = {}


class LevelShape(Record):
    """A level of a hierarchy file, as far as tables name it."""

    method: str
    model: str | None = None
    num_speculative_tokens: Count | None = None
    exit_layer: Count | None = None
    parts: list[list[LevelShape]] | None = None
    repeat: Count = 1

    @model_validator(mode="after")
    def _complete(self) -> LevelShape:
        needed = ["parts"] if self.method == "concatenate" else ["num_speculative_tokens"]
        needed += ["exit_layer"] if self.method == "early_exit" else []
        for key in needed:
            if getattr(self, key) is None:
                raise HierspecError(f"{key!r} is missing")
        return self


def level_shapes(configuration: Mapping[str, Any]) -> list[LevelShape]:
    """The levels of a configuration that is a hierarchy's.

    Raises:
        HierspecError: names the place.
    """
    return schema.read(list[LevelShape], configuration["levels"], "levels")


def _with_sound_levels(configuration: dict[str, Any]) -> dict[str, Any]:
    if "levels" in configuration:
        level_shapes(configuration)
    return configuration


class TuningTrial(Record):
    """A configuration that was tried, and the median it took, or why it could not run."""

    configuration: dict[str, Any]
    ms_per_token: Number | None
    skipped: str | None = None


class TuningRecord(Record):
    """What a method's configuration was chosen from, on how many prompts, how many at once."""

    prompts: Count
    batch_size: Count = 1
    trials: list[TuningTrial]


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Predicted and measured mean ms per token after the first; ``error`` = their ratio − 1."""

    predicted: float
    measured: float
    error: float


class MethodRecord(Record):
    """A method at a temperature.

    Attributes:
        configuration: a hierarchy file's levels and rule, or another engine's options.
        skipped: why it was left out.
        parameters: weights that a call of each level runs through.
        near_tie_tolerance: its own, where it computes in another data type than the target.
    """

    name: str
    title: str
    group: str
    source: str
    lossless: Boolean
    configuration: Annotated[dict[str, Any], AfterValidator(_with_sound_levels)] | None = None
    skipped: str | None = None
    tuning: TuningRecord | None = None
    predicted_ms_per_token: Number | None = None
    parameters: dict[str, Count] | None = None
    runs: list[RunRecord]
    summary: MethodSummary | None = None
    near_tie_tolerance: Number | None = None

    @property
    def described(self) -> str:
        """The title, where it says more than the name; else empty."""
        name, title = (
            text.lower().replace("-", " ").replace(",", "") for text in (self.name, self.title)
        )
        return "" if name == title else self.title

    @property
    def full_name(self) -> str:
        """``hierarchy (chain of drafts)``."""
        return f"{self.name} ({self.described})" if self.described else self.name

    @property
    def summed(self) -> MethodSummary:
        """The summary of a method that was measured to the end."""
        assert self.summary is not None
        return self.summary

    @property
    def median_speedup(self) -> float | None:
        """Over plain decoding, whose own is 1."""
        if self.summary is None or self.summary.speedup is None:
            return 1.0 if self.name == PLAIN and self.summary else None
        return self.summary.speedup.median

    @property
    def prediction(self) -> PredictionError | None:
        """The planner's prediction beside what was measured."""
        measured = self.summary and self.summary.decode_ms_per_token
        if self.predicted_ms_per_token is None or not measured or not measured.mean:
            return None
        predicted = self.predicted_ms_per_token
        return PredictionError(predicted, measured.mean, predicted / measured.mean - 1)


class LoadAverages(Record):
    """Of 1, 5 and 15 minutes, before and after a temperature."""

    before: list[Number] | None
    after: list[Number] | None


@dataclass(frozen=True, slots=True)
class GreedyComparison:
    """How many of a method's greedy texts are plain decoding's, part from it at a near-tie, are
    wrong."""

    equal: int
    near_ties: int
    wrong: int

    @property
    def runs(self) -> int:
        return self.equal + self.near_ties + self.wrong


class TemperatureRecord(Record):
    """All methods at a temperature.

    Attributes:
        near_tie_tolerance: the largest difference of scores, in logits, that rounding explains.
    """

    temperature: Number
    load_average: LoadAverages
    methods: list[MethodRecord]
    near_tie_tolerance: Number = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def title(self) -> str:
        """``temperature 0 (greedy)``."""
        return f"temperature {self.temperature:g}" + (" (greedy)" if self.greedy else "")

    @property
    def measured(self) -> list[MethodRecord]:
        return [method for method in self.methods if method.summary is not None]

    @property
    def unmeasured(self) -> list[MethodRecord]:
        """Left out, or not measured yet."""
        return [method for method in self.methods if method.summary is None]

    def compared(self, method: MethodRecord) -> GreedyComparison:
        """Greedy texts against plain decoding's, run by run. One that differs parts at a near-tie
        if the target scores the two tokens alike, as far as its data type resolves."""
        others = [run.first_difference_gap for run in method.runs if not run.same_as_plain]
        own = method.near_tie_tolerance
        limit = self.near_tie_tolerance if own is None else own
        ties = sum(gap is not None and gap <= limit for gap in others)
        return GreedyComparison(len(method.runs) - len(others), ties, len(others) - ties)


class BenchSettings(Record):
    """What makes two benches the same.

    Attributes:
        methods: names, plain decoding among them.
        tune_tokens: written after each tuning prompt.
        prompts: ``file`` and ``sha256``.
        chat: whether prompts are turns of chats, in the target's chat template.
        until_eos: whether an end of text ends an output; else all are as long.
    """

    target: str
    dtype: str = "auto"
    device: str = "auto"
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = (PLAIN,)
    temperatures: tuple[Number, ...] = (0.0, 1.0)
    max_new_tokens: Count = 128
    num_prompts: Count = 16
    tune_prompts: Count = 4
    tune_tokens: Count = 64
    seed: Count = 0
    batch_size: Count = 1
    prompts: dict[str, str | None] = {}
    chat: Boolean = False
    until_eos: Boolean = False


_NEWER = ("chat", "until_eos")  # settings that files of before do not say


def _with_all_settings(value: Any) -> Any:
    """A file says all of them; defaults are for who writes a new one."""
    if isinstance(value, Mapping):
        for key in BenchSettings.model_fields:
            if key not in value and key not in _NEWER:
                raise HierspecError(f"{key!r} is missing")
    return value


class BenchEnvironment(Record):
    """Where it was measured; ``threads`` and the OpenMP settings are those of this process."""

    commit: str | None = None
    versions: dict[str, Any] = {}
    cpu: str | None = None
    cores: Count | None = None
    threads: Count | None = None
    OMP_WAIT_POLICY: str | None = None
    GOMP_SPINCOUNT: str | None = None
    accelerator: str | None = None
    load_average: list[Number] | None = None


class Roofline(Record):
    """How fast memory lets plain decoding be: ``weight_bytes`` per token at the best bandwidth.

    Attributes:
        samples: of memory's bandwidth, in bytes per second; older files have the best one alone.
    """

    weight_bytes: Tally
    bytes_per_second: Positive
    ms_per_token: Number
    samples: list[Positive] = []

    @property
    def sampled(self) -> str:
        count = len(self.samples)
        if count <= 1:
            return "one sample of memory's bandwidth"
        return f"the best of {count} samples of memory's bandwidth"


class BenchResults(Record):
    """A results file: what was measured so far, or all of it (``finished``)."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["hierspec-bench"] = KIND
    created: str
    finished: Boolean
    environment: BenchEnvironment
    settings: Annotated[BenchSettings, BeforeValidator(_with_all_settings)]
    notes: list[str]
    roofline: Roofline | None = Field(alias="floor")
    cells: list[TemperatureRecord]

    @model_validator(mode="after")
    def _sound(self) -> BenchResults:
        if self.finished and not self.cells:
            raise HierspecError("cells is empty, though the bench is finished")
        for number, cell in enumerate(self.cells):
            _check_runs(cell.methods, self.settings.num_prompts, f"cells[{number}].methods")
        return self

    def at(self, temperature: float) -> TemperatureRecord | None:
        """What was measured at this temperature."""
        return next((cell for cell in self.cells if cell.temperature == temperature), None)

    def conditions(self, cell: TemperatureRecord) -> str:
        """``zoo:large, bfloat16, temperature 0 (greedy), 20 prompts × 200 tokens``."""
        settings = self.settings
        words = [settings.target, "" if settings.dtype == "auto" else settings.dtype, cell.title]
        if settings.batch_size > 1:
            words.append(f"{settings.batch_size} at once")
        most = "up to " if settings.until_eos else ""
        words.append(f"{settings.num_prompts} prompts × {most}{settings.max_new_tokens} tokens")
        return ", ".join(word for word in words if word)


def _check_runs(methods: Sequence[MethodRecord], prompts: int, where: str) -> None:
    """Methods that ran have as many runs as plain decoding, which is among them."""
    plain = next((method for method in methods if method.name == PLAIN), None)
    if plain is None:
        raise HierspecError(f"{where} has no method 'plain', which all are compared with")
    for number, method in enumerate(methods):
        at, found = f"{where}[{number}].runs", method.runs
        if method.summary is not None and not found:
            raise HierspecError(f"{at} is empty, though there is a summary")
        if method.skipped is None and len(found) != len(plain.runs):
            raise HierspecError(f"{at} has {len(found)} runs, plain decoding {len(plain.runs)}")
        if any(run.prompt >= prompts for run in found):
            raise HierspecError(f"{at} has a prompt beyond the {prompts} that were measured")
