"""What an experiment's file holds, as typed records, and how it is read and written.

pydantic checks a file where it is read (:mod:`hierspec.utils.schema`). Keys of a later version are
kept as they are.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_serializer, model_validator

from hierspec.errors import HierspecError
from hierspec.utils import schema
from hierspec.utils.files import write_atomically
from hierspec.utils.records import Record
from hierspec.utils.schema import Natural
from hierspec_lab.bench.method_records import FiniteNumber
from hierspec_lab.bench.records import BenchEnvironment

from .methods import MULTI_DRAFT_RULES

KIND, SCHEMA_VERSION = "hierspec-evidence", 1
COMPRESSED = ".gz"
# Rules that sums over drafts have keys for. ``ideal`` is min(1, R) [P4 Theorem 7]; ``one``, of
# several drafts of a prefix, is block on the first alone.
RULES = ("tokenwise", "block", "ideal", *MULTI_DRAFT_RULES, "one")


class RoundCounts(NamedTuple):
    """How many tokens the target was offered in a round, and how many of them it kept."""

    offered: Natural
    kept: Natural


class EntropyVerdict(NamedTuple):
    """The drafter's entropy at a token, in nats, and whether the target kept it (1) or not (0)."""

    entropy: FiniteNumber
    kept: Natural


class LevelCounts(Record):
    """What a level did for one sequence: its calls, tokens handed up, and those of them kept."""

    name: str
    calls: Natural
    drafted: Natural
    accepted: Natural


class SumsByRule(Record):
    """Sums over drafts; a file has the keys of ``by_rule`` among the others."""

    @model_validator(mode="before")
    @classmethod
    def _gather_rules(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or "by_rule" in fields:
            return fields
        others = {key: value for key, value in fields.items() if key not in RULES}
        return {**others, "by_rule": {rule: fields[rule] for rule in RULES if rule in fields}}

    @model_serializer(mode="wrap")
    def _spread_rules(self, write: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        spread: dict[str, Any] = {}
        for key, value in write(self).items():
            spread |= value if key == "by_rule" else {key: value}
        return spread


class PositionSums(SumsByRule):
    """Sums over the longest drafts of the chance that their first m tokens are all kept.

    Attributes:
        by_rule: a sum for each m = 1 … n.
    """

    drafts: Natural
    by_rule: dict[str, list[FiniteNumber]]


class KeptSums(SumsByRule):
    """How many tokens the target kept of its drafts, beside what rules are expected to keep.

    Attributes:
        kept: tokens that were kept.
        expected, variance: of that number under the rule that verified; ``None`` for several drafts
            of a prefix.
        by_rule: expected number of tokens that other rules keep.
        powers: by power of q, the chance that a draft's first token is kept.
    """

    drafts: Natural
    kept: Natural
    expected: FiniteNumber | None = None
    variance: FiniteNumber | None = None
    by_rule: dict[str, FiniteNumber]
    positions: PositionSums | None = None
    powers: dict[str, FiniteNumber] = Field(default_factory=dict)


class ExperimentRun(Record):
    """A method's run on a prompt.

    Attributes:
        prompt: its index.
        text: a digest of the token ids.
        target_calls: those after the prompt's.
        levels: smallest first, target last.
        rounds: the target's, without those that had no draft.
        level_seconds, verify_seconds: where prompts were run one at a time.
        kept_sums: where the numbers kept were compared with their distributions.
        entropies: of every token that the target verified, where they were recorded.
    """

    method: str
    prompt: Natural
    num_tokens: Natural = Field(alias="tokens")
    text: str
    target_calls: Natural
    seconds: FiniteNumber
    decode_seconds: FiniteNumber
    levels: list[LevelCounts]
    rounds: list[RoundCounts]
    level_seconds: list[FiniteNumber] = Field(default_factory=list)
    verify_seconds: FiniteNumber | None = None
    kept_sums: KeptSums | None = Field(default=None, alias="exact")
    entropies: list[EntropyVerdict] = Field(default_factory=list)

    @property
    def tokens_after_first(self) -> int:
        return self.num_tokens - 1


class PromptOrigin(Record):
    """Where a prompt is from; reproductions record only the file."""

    file: str
    line: Natural | None = None
    domain: str = ""
    turn: Natural = 1


class ExperimentSettings(Record):
    """The settings that a file must have to be resumed.

    Attributes:
        prompt_tokens: last ones of a prompt that are used; ``None``: all.
        batch_size: prompts in a batch; 1 where time is measured.
        looks: numbers of prompts at which measuring may stop.
    """

    target: str
    dtype: str
    temperature: FiniteNumber
    max_new_tokens: Natural
    prompt_tokens: Natural | None
    batch_size: Natural = Field(alias="together")
    seed: Natural
    looks: list[Natural]

    @property
    def is_timed(self) -> bool:
        return self.batch_size == 1


class MeasuringEnvironment(BenchEnvironment):
    """The machine and software that measured the prompts from ``first_prompt`` on."""

    first_prompt: Natural = 0


class ExperimentFile(Record):
    """An experiment's settings and prompts, and every run so far.

    Attributes:
        experiment: its name.
        shows: the papers' tables and figures it is about.
        files: name and ``sha256`` of the files of prompts.
        load: the machine's load averages before and after each batch.
        methods: by name, a hierarchy file's content without the target.
        prices: by method, each level's cost of a call in calls of the target; ``None``: unknown.
    """

    kind: Literal["hierspec-evidence"] = KIND
    schema_version: Literal[1] = SCHEMA_VERSION
    experiment: str
    shows: str
    settings: ExperimentSettings
    files: list[dict[str, str]]
    prompts: list[PromptOrigin]
    environment: list[MeasuringEnvironment]
    load: list[tuple[list[FiniteNumber] | None, list[FiniteNumber] | None]]
    methods: dict[str, dict[str, Any]]
    prices: dict[str, dict[str, FiniteNumber] | None]
    runs: list[ExperimentRun]

    @model_validator(mode="after")
    def _check_prompts(self) -> ExperimentFile:
        for number, run in enumerate(self.runs):
            if run.prompt >= len(self.prompts):
                raise HierspecError(
                    f"runs[{number}].prompt is {run.prompt}, beyond the {len(self.prompts)} prompts"
                )
        return self

    @property
    def domains(self) -> list[str]:
        """The domain of each prompt."""
        return [prompt.domain for prompt in self.prompts]

    def runs_of(self, method: str) -> list[ExperimentRun]:
        """Return a method's runs, in the order of the file."""
        return [run for run in self.runs if run.method == method]


def read_experiment(path: Path) -> ExperimentFile:
    """Read an experiment's file, compressed where its name ends in ``.gz``.

    Raises:
        HierspecError: it is not JSON, or damaged; names the file and the place.
    """
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if path.suffix == COMPRESSED else content
    except (OSError, EOFError, zlib.error) as error:
        raise HierspecError(f"{path} is damaged: {error}; measure again") from None
    data = schema.parse_json(content, str(path))
    try:
        return schema.validate(ExperimentFile, data, "")
    except HierspecError as error:
        raise HierspecError(f"{path} is damaged: {error}; measure again") from None


def write_experiment(path: Path, file: ExperimentFile) -> None:
    """Write an experiment's file, each run on a line; compressed as :func:`read_experiment`."""
    header = file.to_dict()
    runs = header.pop("runs")
    lines = ",\n  ".join(json.dumps(run, separators=(",", ":")) for run in runs)
    text = json.dumps(header, indent=1)[:-2] + f',\n "runs": [\n  {lines}\n ]\n}}\n'
    compressed = path.suffix == COMPRESSED  # the same bytes whenever it is written
    content = gzip.compress(text.encode(), mtime=0) if compressed else text
    write_atomically(path, content, "evidence")
