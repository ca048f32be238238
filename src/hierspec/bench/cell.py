"""One temperature of a bench: methods are arranged, take turns on the prompts, and are judged."""

from __future__ import annotations

from typing import Any

from . import results
from .catalogue import PLAIN, Entry
from .environment import load_average
from .judging import MEASURING, judge
from .runs import Method, Request, Run, Unavailable
from .tuning import plain as as_json
from .tuning import same, tune
from .turns import grouped, reason, repeated, tuning_groups, turns

_TUNING = 0.3  # of a cell's work: where that stage ends


class Cell:
    """One temperature of a bench."""

    def __init__(self, bench: Any, temperature: float, share: float) -> None:
        self.bench, self.temperature, self.begins = bench, temperature, share
        self.entries = {entry.name: entry for entry in bench.entries}
        self.methods: dict[str, Method] = {}
        cell = results.cell(bench.data, temperature)
        if cell is None:
            load = {"before": load_average(), "after": None}
            cell = {"temperature": temperature, "load_average": load, "methods": []}
            cell["methods"] = [_record(entry) for entry in bench.entries]
            bench.data["cells"].append(cell)
        self.cell: dict[str, Any] = cell
        self.records = {record["name"]: record for record in cell["methods"]}

    def run(self) -> None:
        alive = [r for r in self.records.values() if r["skipped"] is None]
        if all(record["summary"] is not None for record in alive):
            return
        self.arrange()
        self.bench.sample_floor()  # memory is faster when nothing else runs: now, or later
        if self.measure():
            self.bench.sample_floor()
            self.cell["load_average"]["after"] = load_average()
            self.bench.save()
        judge(self)
        self.bench.save()

    def tell(self, stage: str, method: str, share: float) -> None:
        """``share`` of the cell. What stands after the dot changes often."""
        width = 1 / len(self.bench.settings.temperatures)
        at = f"temperature {self.temperature:g}: {stage}"
        self.bench.report(f"{at} · {method}", self.begins + width * share)

    def request(self, tokens: int) -> Request:
        return Request(tokens, self.temperature, self.bench.settings.seed)

    # Arranging: which configuration each method runs with.

    def arrange(self) -> None:
        """Find every method's configuration; what an earlier run has found stays."""
        for number, (name, record) in enumerate(self.records.items()):
            if record["skipped"] is not None:
                continue
            at = _TUNING * number / len(self.records)
            self.tell("tuning", name, at)
            try:
                self.methods[name] = self._arranged(record, at)
            except Exception as error:  # a row with its reason, whatever it is
                self.skip(record, error)
            self.bench.save()

    def _arranged(self, record: dict[str, Any], at: float) -> Method:
        name, bench = record["name"], self.bench
        if bench.models.planning is not None:
            bench.models.planning.report = lambda stage, _: self.tell("profiling", stage, at)
        candidates = self.entries[name].candidates(bench.models, self.temperature)
        if not candidates:
            raise Unavailable("has no configuration for these models")
        if record["configuration"] is not None:
            method = same(record["configuration"], candidates)
            if method is None:
                raise Unavailable("its configuration of before is no longer among its candidates")
            return method
        method = candidates[0]
        if len(candidates) > 1:
            method, record["tuning"] = tune(
                candidates,
                tuning_groups(bench.tuning, bench.settings.batch_size),
                self.request(bench.settings.tune_tokens),
                lambda share: self.tell("tuning", name, at + share * _TUNING / len(self.records)),
            )
            record["tuning"] = as_json(record["tuning"])
        record["configuration"] = as_json(method.configuration)
        return method

    def skip(self, record: dict[str, Any], error: BaseException) -> None:
        """Leave a method out from here on; plain decoding cannot be left out."""
        if record["name"] == PLAIN:
            raise ValueError(f"plain decoding cannot run: {reason(error)}") from error
        record["skipped"], record["runs"] = reason(error), []
        self.methods.pop(record["name"], None)

    # Measuring: every method on every prompt, in turns.

    def measure(self) -> bool:
        """The rounds that are missing; false if none was."""
        bench, size = self.bench, self.bench.settings.batch_size
        groups = grouped(bench.measured, size)
        done = len(self.records[PLAIN]["runs"]) // size
        if done == len(groups):
            return False
        names = [name for name in self.records if name in self.methods]
        request = self.request(bench.settings.max_new_tokens)
        methods = [self.methods[name] for name in names]
        waiting: dict[str, list[dict[str, Any]]] = {}
        warm_up = repeated(bench.tuning, size) if bench.tuning else None
        for group, which, runs in turns(methods, groups, request, done, warm_up):
            name, first = names[which], group * size
            if isinstance(runs, Unavailable):
                self.skip(self.records[name], runs)
            else:
                turn = len(waiting)
                waiting[name] = [_run(first + i, turn, run) for i, run in enumerate(runs)]
                at = (group + len(waiting) / len(self.methods)) / len(groups)
                share = _TUNING + (MEASURING - _TUNING) * min(1.0, at)
                self.tell(f"prompt {first + 1} of {len(bench.measured)}", name, share)
            if waiting and set(waiting) == set(self.methods):
                self._end_of_round(waiting)
        return True

    def _end_of_round(self, waiting: dict[str, list[dict[str, Any]]]) -> None:
        """A round of prompts counts when all methods have had their turn."""
        for name, runs in waiting.items():
            self.records[name]["runs"] += runs
        waiting.clear()
        self.bench.save()


def _record(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "group": entry.group,
        "source": entry.source,
        "lossless": entry.lossless,
        "configuration": None,
        "skipped": None,
        "tuning": None,
        "predicted_ms_per_token": None,
        "parameters": None,
        "runs": [],
        "summary": None,
    }


def _run(prompt: int, turn: int, run: Run) -> dict[str, Any]:
    """A run as the results file has it; checks fill in the rest."""
    return {
        "prompt": prompt,
        "turn": turn,
        "num_tokens": run.num_tokens,
        "seconds": run.seconds,
        "decode_seconds": run.decode_seconds,
        "ms_per_token": run.ms_per_token,
        "decode_ms_per_token": run.decode_ms_per_token,
        "overhead_ms_per_token": run.overhead_ms_per_token,
        "target_calls": run.target_calls,
        "mean_acceptance_length": run.mean_acceptance_length,
        "same_as_plain": None,
        "logprob_per_token": None,
        "token_ids": [int(token) for token in run.token_ids],
        "levels": [dict(part) for part in run.levels],
        "target": dict(run.target),
    }
