"""A whole bench: tune, measure in turns, check; saved after every round of prompts.

A :class:`MethodCell` measures at one temperature. Each method is first configured, tuned where
there is a choice; then all of them take turns on every prompt; then their outputs are checked and
summed up, untimed. Every stage is saved in the file, so that the same command continues an
interrupted one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hierspec.errors import HierspecError
from hierspec.profiling.settings import ReportProgress
from hierspec.utils.machine import load_average
from hierspec_lab.bench.methods.base import (
    Method,
    OtherDtypeMethod,
    Run,
    RunRequest,
    Unavailable,
    reason,
)
from hierspec_lab.bench.methods.entry import MethodEntry
from hierspec_lab.bench.methods.ours import BenchModels

from . import correctness, memory, results, summary
from .correctness import Likelihood
from .method_records import PLAIN, CategorySpeedup, MethodRecord, RunRecord
from .methods import planned
from .records import BenchResults, BenchSettings, LoadAverages, TemperatureRecord
from .roofline import roofline
from .tuning import as_json, tune, with_configuration
from .turns import (
    grouped,
    refuse_partial_batches,
    repeated,
    run_group,
    run_in_turns,
    tuning_groups,
    tuning_notes,
)

_TUNED, _MEASURED = 0.3, 0.9  # shares of a cell's work that are done when these stages end


@dataclass(slots=True, eq=False)
class Bench:
    """Models, prompts and the results so far.

    Attributes:
        entries: methods, plain decoding among them.
        measured: prompts to measure on, as token ids.
        tuning: other prompts, to tune on.
        data: the results, new or of an interrupted run; completed as the bench goes on.
        categories: of the measured prompts, where they have some.
        path: the results file, if there is one.
        seconds: time limit after which no prompt is begun, split evenly among the temperatures;
            ``None``: all prompts are measured.
        report: called with the current stage, and the share of all work that is done.
    """

    models: BenchModels
    settings: BenchSettings
    entries: Sequence[MethodEntry]
    measured: Sequence[Sequence[int]]
    tuning: Sequence[Sequence[int]]
    data: BenchResults
    categories: Sequence[str] = ()
    path: Path | None = None
    seconds: float | None = None
    report: ReportProgress = lambda stage, share: None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text; none where all outputs are to be equally long."""
        plain = self.models.plain
        return plain.eos_token_ids() if self.settings.until_eos else frozenset()

    def run(self) -> BenchResults:
        """Measure all temperatures and return the results.

        Raises:
            HierspecError: plain decoding itself cannot run, the prompts do not make full batches,
                or the file cannot be written.
        """
        refuse_partial_batches(len(self.measured), self.settings.batch_size)
        for note in tuning_notes(len(self.tuning), self.settings.batch_size):
            if note not in self.data.notes:
                self.data.notes.append(note)
        self.report("reading memory for the roofline of plain decoding", 0.0)
        self.sample_bandwidth()
        count, began = len(self.settings.temperatures), time.monotonic()
        for i, temperature in enumerate(self.settings.temperatures):
            limit = math.inf if self.seconds is None else self.seconds * (i + 1) / count
            MethodCell(self, temperature, i / count, began + limit).run()
        self.data.finished = True
        self.save()
        self.report("done", 1.0)
        return self.data

    def sample_bandwidth(self) -> None:
        """Measure memory's bandwidth once more; never between runs that are timed."""
        batch_size = self.settings.batch_size
        self.data.roofline = roofline(self.models, batch_size, self.data.roofline)

    def save(self) -> None:
        if self.path is not None:
            results.write(self.path, self.data)


class MethodCell:
    """The methods of a bench at one temperature.

    Args:
        share_before: the share of the bench's work that is done before.
        deadline: time of the monotonic clock after which no prompt but the first is begun.
    """

    def __init__(
        self, bench: Bench, temperature: float, share_before: float, deadline: float = math.inf
    ) -> None:
        self.bench, self.temperature = bench, temperature
        self.share_before, self.deadline = share_before, deadline
        self.entries = {entry.name: entry for entry in bench.entries}
        self.methods: dict[str, Method] = {}
        cell = bench.data.cell_at(temperature)
        if cell is None:
            cell = TemperatureRecord(
                temperature=temperature,
                load_average=LoadAverages(before=load_average(), after=None),
                methods=[entry.record() for entry in bench.entries],
            )
            bench.data.cells.append(cell)
        self.cell = cell
        self.records = {record.name: record for record in cell.methods}

    def run(self) -> None:
        if all(record.summary or record.skipped is not None for record in self.cell.methods):
            return
        self.configure()
        self.bench.sample_bandwidth()  # memory is faster when nothing else runs: now, or later
        if self.measure():
            self.bench.sample_bandwidth()
            self.cell.load_average.after = load_average()
            self.bench.save()
        self.judge()
        self.bench.save()

    def report(self, stage: str, share: float) -> None:
        """Report a stage of this cell, of which ``share`` is done."""
        total = self.share_before + share / len(self.bench.settings.temperatures)
        self.bench.report(f"temperature {self.temperature:g}: {stage}", total)

    def request(self, tokens: int) -> RunRequest:
        return RunRequest(
            tokens, self.temperature, self.bench.settings.seed, self.bench.eos_token_ids
        )

    def skip(self, record: MethodRecord, error: BaseException) -> None:
        """Leave a method out from here on; plain decoding cannot be left out."""
        if record.name == PLAIN:
            raise HierspecError(f"plain decoding cannot run: {reason(error)}") from error
        record.skipped, record.runs = reason(error), []
        self.methods.pop(record.name, None)

    def configure(self) -> None:
        """Choose every method's configuration; those of an earlier run are kept."""
        for i, record in enumerate(self.cell.methods):
            if record.skipped is not None:
                continue
            share = _TUNED * i / len(self.records)
            self.report(f"tuning {record.name}", share)
            try:
                self.methods[record.name] = self._configure(record, share)
            except Exception as error:  # is shown as the reason in the method's row
                self.skip(record, error)
            self.bench.save()

    def _configure(self, record: MethodRecord, start: float) -> Method:
        """Choose a method's configuration; ``start``: the share of the cell that is done."""
        bench, name = self.bench, record.name
        if (planning := bench.models.planning) is not None:
            planning.report = lambda stage, _: self.report(f"profiling, {stage}", start)
        candidates = self.entries[name].candidates(bench.models, self.temperature)
        if not candidates:
            raise Unavailable("has no configuration for these models")
        if record.configuration is not None:
            method = with_configuration(record.configuration, candidates)
            if method is None:
                raise Unavailable("the configuration in the results file is no longer a candidate")
            return method
        method, part = candidates[0], _TUNED / len(self.records)
        if len(candidates) > 1:
            method, record.tuning = tune(
                candidates,
                tuning_groups(bench.tuning, bench.settings.batch_size),
                self.request(bench.settings.tune_tokens),
                lambda share: self.report(f"tuning {name}", start + share * part),
            )
        record.configuration = as_json(method.configuration)
        return method

    def measure(self) -> bool:
        """Measure the missing rounds; return whether there were any.

        A round counts when all methods have had their turn.
        """
        bench, size = self.bench, self.bench.settings.batch_size
        groups = grouped(bench.measured, size)
        start = len(self.records[PLAIN].runs) // size
        if start == len(groups):
            return False
        if start and self.is_late:
            self._note_stop(start * size)
            return True
        names = [name for name in self.records if name in self.methods]
        request = self.request(bench.settings.max_new_tokens)
        warm_up = repeated(bench.tuning, size) if bench.tuning else None
        methods = [self.methods[name] for name in names]
        round_runs: dict[str, list[RunRecord]] = {}
        for group, i, runs in run_in_turns(methods, groups, request, start, warm_up):
            name, first, turn = names[i], group * size, len(round_runs)
            if name not in self.methods:
                continue
            try:
                if isinstance(runs, Unavailable):
                    raise runs
                round_runs[name] = [_run_record(j, turn, run) for j, run in enumerate(runs, first)]
            except (Unavailable, ValidationError) as error:  # or a run that no file can hold
                self.skip(self.records[name], error)
            else:
                measured = min(1.0, (group + len(round_runs) / len(self.methods)) / len(groups))
                share = _TUNED + (_MEASURED - _TUNED) * measured
                self.report(f"prompt {first + 1} of {len(bench.measured)} · {name}", share)
            if round_runs and round_runs.keys() == self.methods.keys():
                for name, new_runs in round_runs.items():
                    self.records[name].runs += new_runs
                round_runs.clear()
                bench.save()
                if group + 1 < len(groups) and self.is_late:
                    self._note_stop((group + 1) * size)
                    break
        return True

    @property
    def is_late(self) -> bool:
        """Whether the time limit has passed, so that no further prompt is begun."""
        return time.monotonic() >= self.deadline

    def _note_stop(self, measured: int) -> None:
        note = (
            f"temperature {self.temperature:g}: stopped after {measured} of "
            f"{len(self.bench.measured)} prompts, when its time was over"
        )
        if note not in self.bench.data.notes:  # summing up may have been interrupted
            self.bench.data.notes.append(note)

    def judge(self) -> None:
        """Check the outputs of a measured cell; fill in predictions and summaries."""
        if self.cell.greedy:
            limit = correctness.tolerance(self.target, self.bench.measured[0])
            self.cell.near_tie_tolerance = limit
        plain_likelihoods: list[Likelihood] = []  # plain decoding is judged first
        for i, (name, method) in enumerate([*self.methods.items()]):
            share = _MEASURED + (1 - _MEASURED) * i / len(self.records)
            self.report(f"checking {name}", share)
            try:
                self._judge_method(self.records[name], method, plain_likelihoods)
            except Exception as error:  # another engine's output may be no tokens of the target's
                self.skip(self.records[name], error)
        self._compare_with_transformers()

    @property
    def target(self) -> Any:
        return self.bench.models.plain.root.model

    def _judge_method(
        self, record: MethodRecord, method: Method, plain_likelihoods: list[Likelihood]
    ) -> None:
        plain_runs, likelihoods = self.records[PLAIN].runs, []
        for run, plain_run in zip(record.runs, plain_runs, strict=True):
            if self.cell.greedy:
                self._compare(run, plain_run.token_ids)
            else:
                likelihoods.append(self._likelihood(run))
        record.predicted_ms_per_token = self._predict(method)
        if self.cell.greedy and isinstance(method, OtherDtypeMethod):
            prompt = self.bench.measured[0]
            record.near_tie_tolerance = correctness.tolerance(self.target, prompt, method.dtype)
        record.parameters = memory.level_parameters(method)
        # Sequences of a batch share calls, whose prices are those of a call for one sequence.
        prices = record.parameters if self.bench.settings.batch_size == 1 else None
        method_summary = summary.summary(record.runs, plain_runs, prices, self.cell.greedy)
        method_summary.peak_memory_bytes = self._peak_memory(method)
        if self.bench.categories:
            method_summary.by_category = self._category_speedups(record.runs)
        if not self.cell.greedy:
            is_plain = record.name == PLAIN
            plain_likelihoods += likelihoods if is_plain else []
            method_summary.logprob = correctness.law_test(likelihoods, plain_likelihoods, is_plain)
        record.summary = method_summary

    def _compare(self, run: RunRecord, plain: Sequence[int]) -> None:
        run.same_as_plain = run.token_ids == plain
        if not run.same_as_plain:
            prompt = self.bench.measured[run.prompt]
            run.first_difference_gap = correctness.gap(self.target, prompt, plain, run.token_ids)

    def _likelihood(self, run: RunRecord) -> Likelihood:
        prompt = self.bench.measured[run.prompt]
        likelihood = correctness.likelihood(self.target, prompt, run.token_ids, self.temperature)
        if not math.isfinite(likelihood.logprob):
            raise Unavailable(
                f"prompt {run.prompt + 1}: the target gives a token of the output probability "
                "0, or scores that are no numbers"
            )
        run.logprob_per_token = likelihood.per_token
        return likelihood

    def _predict(self, method: Method) -> float | None:
        bench = self.bench
        if bench.settings.batch_size > 1:  # the profile is of one sequence at a time
            return None
        prompt = sum(map(len, bench.measured)) / len(bench.measured)
        context = prompt + bench.settings.max_new_tokens / 2
        configuration = as_json(method.configuration)
        return planned.predicted_ms(bench.models, configuration, self.temperature, context)

    def _peak_memory(self, method: Method) -> int | None:
        """Return the bytes of a method's weights and of what one run adds, together."""
        weights = memory.weight_bytes(method)
        if weights is None:
            return None
        group = self.bench.measured[: self.bench.settings.batch_size]
        request = self.request(self.bench.settings.max_new_tokens)
        try:
            rise = memory.peak_rise(lambda: run_group(method, group, request), self.target.device)
        except Unavailable:
            return None
        return None if rise is None else weights + rise

    def _category_speedups(self, runs: Sequence[RunRecord]) -> dict[str, CategorySpeedup]:
        names, out = self.bench.categories, {}
        for category in dict.fromkeys(names[: len(self.bench.measured)]):
            own = [run for run in runs if names[run.prompt] == category]
            if ratio := summary.paired_speedup(self.records[PLAIN].runs, own):
                ms = statistics.median(run.ms_per_token for run in own)
                out[category] = CategorySpeedup(speedup=ratio.median, n=ratio.n, ms_per_token=ms)
        return out

    def _compare_with_transformers(self) -> None:
        """Fill in paired ratios to the fastest method of transformers, if one ran."""
        measured = self.cell.measured
        peers = [record for record in measured if _is_transformers(record)]
        if peers:
            best = min(peers, key=lambda record: record.final_summary.ms_per_token.median)
            for record in measured:
                record.final_summary.speedup_over_best_transformers = summary.paired_speedup(
                    best.runs, record.runs
                )


def _run_record(prompt: int, turn: int, run: Run) -> RunRecord:
    """Make a run's record for the results file, without what :meth:`MethodCell.judge` adds."""
    return RunRecord(
        prompt=prompt,
        turn=turn,
        num_tokens=run.num_tokens,
        seconds=run.seconds,
        decode_seconds=run.decode_seconds,
        ms_per_token=run.ms_per_token,
        decode_ms_per_token=run.decode_ms_per_token,
        overhead_ms_per_token=run.overhead_ms_per_token,
        target_calls=run.target_calls,
        mean_acceptance_length=run.mean_acceptance_length,
        same_as_plain=None,
        logprob_per_token=None,
        token_ids=[int(token) for token in run.token_ids],
        levels=list(run.levels),
        target=run.target,
    )


def _is_transformers(record: MethodRecord) -> bool:
    words = (record.name, record.title.lower())
    return record.group == "peer" and any(word.startswith("transformers") for word in words)
