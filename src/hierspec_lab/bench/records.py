"""What a results file holds, as typed records: settings, environment, and each temperature.

A field's name is its key in the file; ``docs/bench.md`` says what the figures mean. Pydantic checks
the file (:mod:`hierspec.utils.schema`). Keys that an older version did not write have defaults and
stay absent when the file is written again; keys of a later one are kept as they are. Units:
seconds, milliseconds (``ms``), bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from hierspec.errors import HierspecError
from hierspec.utils.records import Record
from hierspec.utils.schema import Boolean, Natural
from hierspec.utils.terminal import counted

from .method_records import (
    PLAIN,
    FiniteNumber,
    MethodRecord,
    Positive,
    PredictionComparison,
    Tally,
)

KIND, SCHEMA_VERSION = "hierspec-bench", 1


class LoadAverages(Record):
    """The machine's load averages of 1, 5 and 15 minutes, before and after a temperature."""

    before: list[FiniteNumber] | None
    after: list[FiniteNumber] | None


@dataclass(frozen=True, slots=True)
class GreedyComparison:
    """How many greedy texts equal plain decoding's, differ from a near-tie on, or are wrong."""

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

    temperature: FiniteNumber
    load_average: LoadAverages
    methods: list[MethodRecord]
    near_tie_tolerance: FiniteNumber = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def title(self) -> str:
        """The temperature in words, as in ``temperature 0 (greedy)``."""
        return f"temperature {self.temperature:g}" + (" (greedy)" if self.greedy else "")

    @property
    def measured(self) -> list[MethodRecord]:
        return [method for method in self.methods if method.summary is not None]

    @property
    def unmeasured(self) -> list[MethodRecord]:
        """Methods left out, or not measured yet."""
        return [method for method in self.methods if method.summary is None]

    @property
    def predictions(self) -> list[tuple[MethodRecord, PredictionComparison]]:
        """Measured methods that were predicted, each with its prediction."""
        found = [(method, method.prediction) for method in self.measured]
        return [(method, prediction) for method, prediction in found if prediction is not None]

    @property
    def errors_over_plain(self) -> list[float]:
        """Errors of predicted times as shares of plain decoding's, one a method.

        They are those of a machine that is as fast in the bench as it was in the profile.
        """
        ratios = {method.name: 1 + prediction.error for method, prediction in self.predictions}
        plain = ratios.pop(PLAIN, None)
        return [] if plain is None else [ratio / plain - 1 for ratio in ratios.values()]

    def compare(self, method: MethodRecord) -> GreedyComparison:
        """Compare greedy texts with plain decoding's, run by run.

        A text that differs does so at a near-tie if the target's scores of the first two tokens
        that differ are equal as far as its data type resolves.
        """
        gaps = [run.first_difference_gap for run in method.runs if not run.same_as_plain]
        own_limit = method.near_tie_tolerance
        limit = self.near_tie_tolerance if own_limit is None else own_limit
        ties = sum(gap is not None and gap <= limit for gap in gaps)
        return GreedyComparison(len(method.runs) - len(gaps), ties, len(gaps) - ties)


class BenchSettings(Record):
    """The settings of a bench; one that continues another must have the same.

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
    temperatures: tuple[FiniteNumber, ...] = (0.0, 1.0)
    max_new_tokens: Natural = 128
    num_prompts: Natural = 16
    tune_prompts: Natural = 4
    tune_tokens: Natural = 64
    seed: Natural = 0
    batch_size: Natural = 1
    prompts: dict[str, str | None] = Field(default_factory=dict)
    chat: Boolean = False
    until_eos: Boolean = False


_OPTIONAL = ("chat", "until_eos")  # settings that older files lack


def _refuse_missing_settings(value: Any) -> Any:
    """Refuse a file that lacks a setting, except later ones: defaults are for new results."""
    if isinstance(value, Mapping):
        for key in BenchSettings.model_fields:
            if key not in value and key not in _OPTIONAL:
                raise HierspecError(f"{key!r} is missing")
    return value


class BenchEnvironment(Record):
    """The machine and software; ``threads`` and the OpenMP settings are those of this process."""

    commit: str | None = None
    versions: dict[str, Any] = Field(default_factory=dict)
    cpu: str | None = None
    cores: Natural | None = None
    threads: Natural | None = None
    OMP_WAIT_POLICY: str | None = None
    GOMP_SPINCOUNT: str | None = None
    accelerator: str | None = None
    load_average: list[FiniteNumber] | None = None


class Roofline(Record):
    """How fast memory lets plain decoding be: ``weight_bytes`` per token at the best bandwidth.

    Attributes:
        samples: of memory's bandwidth, in bytes per second; older files have the best one alone.
    """

    weight_bytes: Tally
    bytes_per_second: Positive
    ms_per_token: FiniteNumber
    samples: list[Positive] = Field(default_factory=list)

    @property
    def samples_text(self) -> str:
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
    settings: Annotated[BenchSettings, BeforeValidator(_refuse_missing_settings)]
    notes: list[str]
    roofline: Roofline | None = Field(alias="floor")
    cells: list[TemperatureRecord]

    @model_validator(mode="after")
    def _validate(self) -> BenchResults:
        if self.finished and not self.cells:
            raise HierspecError("cells is empty, though the bench is finished")
        for number, cell in enumerate(self.cells):
            _validate_runs(cell.methods, self.settings.num_prompts, f"cells[{number}].methods")
        return self

    def cell_at(self, temperature: float) -> TemperatureRecord | None:
        """Return the record of this temperature, if there is one."""
        return next((cell for cell in self.cells if cell.temperature == temperature), None)

    def conditions(self, cell: TemperatureRecord) -> str:
        """Describe a cell: ``zoo:large, temperature 0 (greedy), 20 prompts × 200 tokens``."""
        settings = self.settings
        words = [settings.target, "" if settings.dtype == "auto" else settings.dtype, cell.title]
        if settings.batch_size > 1:
            words.append(f"{settings.batch_size} at once")
        limit = "up to " if settings.until_eos else ""
        words.append(
            f"{counted(settings.num_prompts, 'prompt')} × {limit}{settings.max_new_tokens} tokens"
        )
        return ", ".join(word for word in words if word)


def _validate_runs(methods: Sequence[MethodRecord], num_prompts: int, location: str) -> None:
    """Refuse methods with more or fewer runs than plain decoding, or without plain decoding."""
    plain = next((method for method in methods if method.name == PLAIN), None)
    if plain is None:
        raise HierspecError(f"{location} has no method 'plain', which all are compared with")
    for number, method in enumerate(methods):
        field, runs = f"{location}[{number}].runs", method.runs
        if method.summary is not None and not runs:
            raise HierspecError(f"{field} is empty, though there is a summary")
        if method.skipped is None and len(runs) != len(plain.runs):
            raise HierspecError(f"{field} has {len(runs)} runs, plain decoding {len(plain.runs)}")
        if any(run.prompt >= num_prompts for run in runs):
            raise HierspecError(f"{field} has a prompt beyond the {num_prompts} that were measured")
