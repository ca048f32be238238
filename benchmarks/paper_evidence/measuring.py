"""Run experiments into files that can be resumed, prompt by prompt until all claims are decided.

A file holds settings, prompts (file, line, sha256), commit, machine, versions, and every run, as a
bench's file does. Verdicts are not in it: :mod:`.claims` computes them from the runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hierspec.errors import HierspecError
from hierspec.utils.machine import load_average
from hierspec_lab.bench.environment import environment
from hierspec_lab.bench.methods.base import RunRequest
from hierspec_lab.bench.methods.ours import BenchModels, HierarchyMethod
from hierspec_lab.bench.turns import turn_order
from hierspec_lab.papers.prompts import MAX_PROMPT_TOKENS, Prompt

from . import counting
from .experiments import Experiment
from .files import (
    KIND,
    SCHEMA_VERSION,
    ExperimentFile,
    ExperimentSettings,
    MeasuringEnvironment,
    PromptOrigin,
    read_experiment,
    write_experiment,
)
from .sequential import LOOKS

FIRST_ANSWER_TOKENS = 200  # of a conversation's first turn, written greedily by plain decoding


def settings(experiment: Experiment) -> ExperimentSettings:
    """Return the settings that a file must have to be resumed."""
    return ExperimentSettings(
        target=experiment.family.target,
        dtype=experiment.dtype,
        temperature=experiment.temperature,
        max_new_tokens=experiment.max_new_tokens,
        prompt_tokens=None if experiment.uses_chats else MAX_PROMPT_TOKENS,
        together=experiment.batch_size,
        seed=experiment.seed,
        looks=list(experiment.looks) or [n for n in LOOKS if n <= experiment.max_prompts],
    )


def read_or_create(
    experiment: Experiment, prompt_files: Sequence[dict[str, str]], path: Path
) -> ExperimentFile:
    """Return the content of an experiment's file to resume, or of a new one.

    Raises:
        HierspecError: the existing file is damaged, or was measured with other settings or prompts.
    """
    fresh = ExperimentFile(
        kind=KIND,
        schema_version=SCHEMA_VERSION,
        experiment=experiment.name,
        shows=experiment.items,
        settings=settings(experiment),
        files=list(prompt_files),
        prompts=[],
        environment=[],
        load=[],
        methods={name: spec.to_dict() for name, spec in experiment.methods.items()},
        prices={},
        runs=[],
    )
    if not path.exists():
        return fresh
    file = read_experiment(path)
    if (file.settings, file.files) != (fresh.settings, fresh.files):
        raise HierspecError(
            f"{path.name} was measured with other settings or prompts: remove it to begin anew"
        )
    return file


def measure(
    experiment: Experiment,
    prompts: Sequence[Prompt],
    prompt_files: Sequence[dict[str, str]],
    path: Path,
    is_decided: Callable[[ExperimentFile], bool],
    deadline: float = float("inf"),
    report_progress: Callable[[str], None] = print,
    max_prompts: int | None = None,
) -> bool:
    """Run an experiment, or resume it; return whether it is finished.

    Args:
        is_decided: called at every look: whether these runs decide all claims.
        deadline: by ``time.monotonic``: no group of prompts is begun after it.
        report_progress: called with each line of progress.
        max_prompts: stop at this number of prompts, even if further looks are planned.
    """
    file = read_or_create(experiment, prompt_files, path)
    models = experiment.family.models(experiment.dtype)
    methods = [
        HierarchyMethod(name, models, spec.levels, **spec.top_level)
        for name, spec in experiment.methods.items()
    ]
    looks = file.settings.looks
    num_measured = len(file.prompts)
    if num_measured < looks[-1]:
        machine = MeasuringEnvironment(first_prompt=num_measured, **environment())
        file.environment.append(machine)
    needs_warm_up = experiment.is_timed
    while num_measured < looks[-1]:
        if num_measured in looks and is_decided(file):
            break
        if time.monotonic() > deadline or (max_prompts and num_measured >= max_prompts):
            return False
        if needs_warm_up:  # on the last prompt that may be measured
            needs_warm_up = False
            scratch = file.model_copy(deep=True)
            _add_runs(scratch, experiment, methods, models, prompts[-1:], num_measured)
        batch = prompts[num_measured : num_measured + experiment.batch_size]
        _add_runs(file, experiment, methods, models, batch, num_measured)
        num_measured = len(file.prompts)
        write_experiment(path, file)
        report_progress(f"{experiment.name}: {num_measured} prompts")
    return True


def _add_runs(
    file: ExperimentFile,
    experiment: Experiment,
    methods: Sequence[HierarchyMethod],
    models: BenchModels,
    batch: Sequence[Prompt],
    first: int,
) -> None:
    """Run all methods on a batch, whose first prompt has number ``first``, and add their runs."""
    plain = HierarchyMethod("plain", models, ())

    def answer(ids: list[int]) -> str:
        return plain.hierarchy.generate(ids, max_new_tokens=FIRST_ANSWER_TOKENS).text

    ids = [prompt.token_ids(models.tokenizer, answer) for prompt in batch]
    request = RunRequest(experiment.max_new_tokens, experiment.temperature, experiment.seed + first)
    load_before = load_average()
    for index in turn_order(len(methods), first // experiment.batch_size, experiment.seed):
        method = methods[index]
        file.runs += counting.measure_runs(
            method,
            ids,
            request,
            first,
            compares_kept=experiment.compares_kept,
            with_entropies=method.name in experiment.entropy_methods,
            with_rounds=experiment.keeps_rounds,
        )
        if method.name not in file.prices:
            file.prices[method.name] = counting.call_prices(method)
    file.prompts += [PromptOrigin(**prompt.to_dict()) for prompt in batch]
    file.load.append((load_before, load_average()))
