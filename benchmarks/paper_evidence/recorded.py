"""Results of ``hierspec reproduce``, read as experiments' files.

They hold every run, so they can decide a claim as well as an experiment planned for it does. Their
number of prompts was fixed beforehand, so an effect has the usual interval (:mod:`.sequential`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from hierspec.errors import HierspecError
from hierspec.utils import schema
from hierspec.utils.records import Record
from hierspec.utils.schema import Natural
from hierspec_lab.bench.methods.base import Run

from .experiments import RECORDED, Experiment
from .files import (
    ExperimentFile,
    ExperimentRun,
    ExperimentSettings,
    MeasuringEnvironment,
    PromptOrigin,
)


class PromptsRecord(Record):
    """The file or folder of a result's prompts, and how many of them were used."""

    file: str
    count: Natural
    files: list[dict[str, str]] = Field(default_factory=list)


class MeasuredOn(Record):
    """How a result was measured, as :meth:`hierspec_lab.papers.lab.Lab.to_dict` says it."""

    target: str
    dtype: str
    prompts: PromptsRecord
    max_new_tokens: Natural
    seed: Natural
    environment: MeasuringEnvironment


class ReproductionResult(Record):
    """A result file of ``hierspec reproduce``; ``record`` holds every run, by what was run."""

    measured_on: MeasuredOn
    record: dict[str, Any]


def read_recorded(folder: Path) -> dict[str, ExperimentFile]:
    """Read the recorded experiments whose files are in ``folder``, and return them by name.

    Raises:
        HierspecError: a file is not JSON, damaged, or has no runs at an experiment's temperature.
    """
    return {
        name: read_as_experiment(path, experiment)
        for name, experiment in RECORDED.items()
        if (path := folder / experiment.file).exists()
    }


def read_as_experiment(path: Path, experiment: Experiment) -> ExperimentFile:
    """Return a result's runs at the experiment's temperature in the form of an experiment's file.

    Raises:
        HierspecError: as :func:`read_recorded`.
    """
    data = schema.parse_json(path.read_bytes(), str(path))
    result = schema.validate(ReproductionResult, data, str(path))
    ending = f"runs at temperature {experiment.temperature:g}"
    titles = [title for title in result.record if title.endswith(ending)]
    if len(titles) != 1:
        raise HierspecError(f"{path} records no {ending}")
    runs_by_method = schema.validate(
        dict[str, list[Run]], result.record[titles[0]], f"{path}: {titles[0]}"
    )
    measured_on = result.measured_on
    return ExperimentFile(
        experiment=experiment.name,
        shows=experiment.items,
        settings=ExperimentSettings(
            target=measured_on.target,
            dtype=measured_on.dtype,
            temperature=experiment.temperature,
            max_new_tokens=measured_on.max_new_tokens,
            prompt_tokens=None,
            together=1,  # prompts in a batch
            seed=measured_on.seed,
            looks=[measured_on.prompts.count],  # numbers of prompts at which it could stop
        ),
        files=measured_on.prompts.files,
        prompts=[PromptOrigin(file=measured_on.prompts.file)] * measured_on.prompts.count,
        environment=[measured_on.environment],
        load=[],
        methods={},
        prices={},
        runs=[
            ExperimentRun(
                method=method,
                prompt=number,
                tokens=run.num_tokens,
                text="",
                target_calls=run.target_calls or 0,
                seconds=run.seconds,
                decode_seconds=run.decode_seconds or 0.0,
                levels=[],
                rounds=[],
            )
            for method, runs in runs_by_method.items()
            for number, run in enumerate(runs)
        ],
    )
