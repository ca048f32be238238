"""The whole bench: tune, measure in turns, check; saved after every round of prompts.

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

from hierspec.bench import correctness, memory, results, summary
from hierspec.bench.correctness import Likelihood
from hierspec.bench.method_records import (
    PLAIN,
    CategorySpeedup,
    LevelCounters,
    MethodRecord,
    RunRecord,
)
from hierspec.bench.methods import planned
from hierspec.bench.methods.base import Method, Request, Run, Unavailable, reason
from hierspec.bench.methods.entry import MethodEntry
from hierspec.bench.methods.ours import BenchModels
from hierspec.bench.records import BenchResults, BenchSettings, LoadAverages, TemperatureRecord
from hierspec.bench.roofline import roofline
from hierspec.bench.tuning import as_json, tune, with_configuration
from hierspec.bench.turns import (
    grouped,
    refuse_partial_batches,
    repeated,
    run_group,
    tuning_groups,
    tuning_notes,
    turns,
)
from hierspec.errors import HierspecError
from hierspec.profiling.settings import Report
from hierspec.utils.machine import load_average

_TUNED, _MEASURED = 0.3, 0.9  # of a cell's work: where these stages end


@dataclass(slots=True, eq=False)
class Bench:
    """Models, prompts and the results so far.

    Attributes:
        entries: methods, plain decoding among them.
        measured: prompts to measure on, as token ids.
        tuning: other prompts, to tune on.
        data: the results, new or of an interrupted run; filled in as the bench goes on.
        categories: of the measured prompts, where they have some.
        path: file that results are written to; ``None``: none.
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
    report: Report = lambda stage, share: None

    @property
    def end(self) -> frozenset[int]:
        """Tokens that end a text here."""
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
        for number, temperature in enumerate(self.settings.temperatures):
            limit = math.inf if self.seconds is None else self.seconds * (number + 1) / count
            MethodCell(self, temperature, number / count, began + limit).run()
        self.data.finished = True
        self.save()
        self.report("done", 1.0)
        return self.data

    def sample_bandwidth(self) -> None:
        """Read memory once more; never between runs that are timed."""
        batch_size = self.settings.batch_size
        self.data.roofline = roofline(self.models, batch_size, self.data.roofline)

    def save(self) -> None:
        if self.path is not None:
            results.write(self.path, self.data)


class MethodCell:
    """The methods of a bench at one temperature.

    Args:
        share_before: the share of the bench's work that is done before.
        deadline: time of the monotonic clock after which no prompt is begun but a first one.
    """

    def __init__(
        self, bench: Bench, temperature: float, share_before: float, deadline: float = math.inf
    ) -> None:
        self.bench, self.temperature = bench, temperature
        self.share_before, self.deadline = share_before, deadline
        self.entries = {entry.name: entry for entry in bench.entries}
        self.methods: dict[str, Method] = {}
        cell = bench.data.at(temperature)
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
        alive = [record for record in self.cell.methods if record.skipped is None]
        if all(record.summary is not None for record in alive):
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
        done = self.share_before + share / len(self.bench.settings.temperatures)
        self.bench.report(f"temperature {self.temperature:g}: {stage}", done)

    def request(self, tokens: int) -> Request:
        return Request(tokens, self.temperature, self.bench.settings.seed, self.bench.end)

    def skip(self, record: MethodRecord, error: BaseException) -> None:
        """Leave a method out from here on; plain decoding cannot be left out."""
        if record.name == PLAIN:
            raise HierspecError(f"plain decoding cannot run: {reason(error)}") from error
        record.skipped, record.runs = reason(error), []
        self.methods.pop(record.name, None)

    # Configuring: which configuration each method runs with.

    def configure(self) -> None:
        """Choose every method's configuration; those of an earlier run are kept."""
        for number, record in enumerate(self.cell.methods):
            if record.skipped is not None:
                continue
            at = _TUNED * number / len(self.records)
            self.report(f"tuning {record.name}", at)
            try:
                self.methods[record.name] = self._configured(record, at)
            except Exception as error:  # is shown as the reason in the method's row
                self.skip(record, error)
            self.bench.save()

    def _configured(self, record: MethodRecord, at: float) -> Method:
        bench, name = self.bench, record.name
        if bench.models.planning is not None:
            bench.models.planning.report = lambda stage, _: self.report(f"profiling, {stage}", at)
        candidates = self.entries[name].candidates(bench.models, self.temperature)
        if not candidates:
            raise Unavailable("has no configuration for these models")
        if record.configuration is not None:
            method = with_configuration(record.configuration, candidates)
            if method is None:
                raise Unavailable("its configuration of before is no longer among its candidates")
            return method
        method, width = candidates[0], _TUNED / len(self.records)
        if len(candidates) > 1:
            method, record.tuning = tune(
                candidates,
                tuning_groups(bench.tuning, bench.settings.batch_size),
                self.request(bench.settings.tune_tokens),
                lambda share: self.report(f"tuning {name}", at + share * width),
            )
        record.configuration = as_json(method.configuration)
        return method

    # Measuring: every method on every prompt, in turns.

    def measure(self) -> bool:
        """Measure the missing rounds; return whether there were any.

        A round counts when all methods have had their turn.
        """
        bench, size = self.bench, self.bench.settings.batch_size
        groups = grouped(bench.measured, size)
        done = len(self.records[PLAIN].runs) // size
        if done == len(groups):
            return False
        if done and self.is_late:
            self._note_stop(done * size)
            return True
        names = [name for name in self.records if name in self.methods]
        request = self.request(bench.settings.max_new_tokens)
        warm_up = repeated(bench.tuning, size) if bench.tuning else None
        methods = [self.methods[name] for name in names]
        waiting: dict[str, list[RunRecord]] = {}
        for group, which, runs in turns(methods, groups, request, done, warm_up):
            name, first, turn = names[which], group * size, len(waiting)
            if name not in self.methods:
                continue
            try:
                if isinstance(runs, Unavailable):
                    raise runs
                waiting[name] = [_recorded(first + i, turn, run) for i, run in enumerate(runs)]
            except ValueError as error:  # a run that no file can hold, too
                self.skip(self.records[name], error)
            else:
                at = min(1.0, (group + len(waiting) / len(self.methods)) / len(groups))
                share = _TUNED + (_MEASURED - _TUNED) * at
                self.report(f"prompt {first + 1} of {len(bench.measured)} · {name}", share)
            if waiting and set(waiting) == set(self.methods):
                for finished, found in waiting.items():
                    self.records[finished].runs += found
                waiting.clear()
                bench.save()
                if group + 1 < len(groups) and self.is_late:
                    self._note_stop((group + 1) * size)
                    break
        return True

    @property
    def is_late(self) -> bool:
        """Whether the time limit has passed, so that no further prompt is begun."""
        return time.monotonic() >= self.deadline

    def _note_stop(self, done: int) -> None:
        stopped = (
            f"stopped after {done} of {len(self.bench.measured)} prompts, when its time was over"
        )
        note = f"temperature {self.temperature:g}: {stopped}"
        if note not in self.bench.data.notes:  # summing up may have been interrupted
            self.bench.data.notes.append(note)

    # Judging: whether outputs are correct, and the runs' summary.

    def judge(self) -> None:
        """Check the outputs of a measured cell; fill in predictions and summaries."""
        if self.cell.greedy:
            limit = correctness.tolerance(self.target, self.bench.measured[0])
            self.cell.near_tie_tolerance = limit
        plain_likelihoods: list[Likelihood] = []  # plain decoding is judged first
        for number, (name, method) in enumerate([*self.methods.items()]):
            share = _MEASURED + (1 - _MEASURED) * number / len(self.records)
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
        plain, found = self.records[PLAIN].runs, []
        for run, other in zip(record.runs, plain, strict=True):
            if self.cell.greedy:
                self._compare(run, other.token_ids)
            else:
                found.append(self._likelihood(run))
        record.predicted_ms_per_token = self._predicted(method)
        dtype = getattr(method, "dtype", None)
        if self.cell.greedy and dtype is not None:
            prompt = self.bench.measured[0]
            record.near_tie_tolerance = correctness.tolerance(self.target, prompt, dtype)
        record.parameters = memory.level_parameters(method)
        # Sequences of a batch share calls, and the prices are those of a call for one.
        prices = record.parameters if self.bench.settings.batch_size == 1 else None
        out = summary.summary(record.runs, plain, prices, self.cell.greedy)
        out.peak_memory_bytes = self._peak_memory(method)
        if self.bench.categories:
            out.by_category = self._by_category(record.runs)
        if not self.cell.greedy:
            is_plain = record.name == PLAIN
            plain_likelihoods += found if is_plain else []
            out.logprob = correctness.law_test(found, plain_likelihoods, is_plain)
        record.summary = out

    def _compare(self, run: RunRecord, plain: Sequence[int]) -> None:
        run.same_as_plain = run.token_ids == plain
        if not run.same_as_plain:
            prompt = self.bench.measured[run.prompt]
            run.first_difference_gap = correctness.gap(self.target, prompt, plain, run.token_ids)

    def _likelihood(self, run: RunRecord) -> Likelihood:
        prompt = self.bench.measured[run.prompt]
        found = correctness.likelihood(self.target, prompt, run.token_ids, self.temperature)
        if not math.isfinite(found.logprob):
            raise Unavailable(
                f"prompt {run.prompt + 1}: the target gives a token of the output probability "
                "0, or scores that are no numbers"
            )
        run.logprob_per_token = found.per_token
        return found

    def _predicted(self, method: Method) -> float | None:
        bench = self.bench
        if bench.settings.batch_size > 1:  # the profile is of one sequence at a time
            return None
        prompt = sum(map(len, bench.measured)) / len(bench.measured)
        context = prompt + bench.settings.max_new_tokens / 2
        configuration = as_json(method.configuration)
        return planned.predicted_ms(bench.models, configuration, self.temperature, context)

    def _peak_memory(self, method: Method) -> int | None:
        """Return the bytes of the weights that a method needs, and that one run adds."""
        weights = memory.weight_bytes(method)
        if weights is None:
            return None
        group = self.bench.measured[: self.bench.settings.batch_size]
        request = self.request(self.bench.settings.max_new_tokens)
        try:
            run = memory.peak_rise(
                lambda: run_group(method, group, request), self.target.device.type
            )
        except Unavailable:
            return None
        return None if run is None else weights + run

    def _by_category(self, runs: Sequence[RunRecord]) -> dict[str, CategorySpeedup]:
        names, out = self.bench.categories, {}
        for category in dict.fromkeys(names[: len(self.bench.measured)]):
            mine = [run for run in runs if names[run.prompt] == category]
            if found := summary.paired(self.records[PLAIN].runs, mine):
                ms = statistics.median(run.ms_per_token for run in mine)
                out[category] = CategorySpeedup(speedup=found.median, n=found.n, ms_per_token=ms)
        return out

    def _compare_with_transformers(self) -> None:
        """Fill in paired ratios to the fastest method of transformers, if one ran."""
        measured = self.cell.measured
        theirs = [record for record in measured if _is_transformers(record)]
        if theirs:
            best = min(theirs, key=lambda record: record.summed.ms_per_token.median)
            for record in measured:
                record.summed.speedup_over_best_transformers = summary.paired(
                    best.runs, record.runs
                )


def _recorded(prompt: int, turn: int, run: Run) -> RunRecord:
    """Make a run's record for the results file; judging fills in the rest."""
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
        levels=[LevelCounters(**part) for part in run.levels],
        target=LevelCounters(**run.target) if run.target else None,
    )


def _is_transformers(record: MethodRecord) -> bool:
    words = (record.name, record.title.lower())
    return record.group == "peer" and any(word.startswith("transformers") for word in words)
