"""After all that is timed: outputs are checked, memory is looked at, runs are summed up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import checks, floor, memory, planned, summary
from .catalogue import PLAIN
from .runs import Method, Unavailable
from .turns import Group, Guarded

if TYPE_CHECKING:
    from .cell import Cell

MEASURING = 0.9  # of a cell's work: where this stage begins


def judge(cell: Cell) -> None:
    """Fill in what runs, predictions and summaries of a measured cell lack."""
    _Judge(cell).run()


class _Judge:
    def __init__(self, cell: Cell) -> None:
        self.cell, self.bench = cell, cell.bench
        self.target = cell.bench.models.plain.root.model
        self.plain = cell.records[PLAIN]["runs"]
        self.likely: list[checks.Likelihood] = []  # of plain decoding, which is judged first

    def run(self) -> None:
        cell = self.cell
        if cell.temperature == 0:
            limit = checks.tolerance(self.target, self.bench.measured[0])
            cell.cell["near_tie_tolerance"] = limit
        for number, (name, method) in enumerate([*cell.methods.items()]):
            share = MEASURING + (1 - MEASURING) * number / len(cell.records)
            cell.tell("checking", name, share)
            try:
                self._one(cell.records[name], method)
            except Exception as error:  # another engine's output may be no tokens of the target's
                cell.skip(cell.records[name], error)
        self._over_transformers()

    def _one(self, record: dict[str, Any], method: Method) -> None:
        greedy = self.cell.temperature == 0
        found = []
        for run, other in zip(record["runs"], self.plain, strict=True):
            if greedy:
                self._compare(run, other["token_ids"])
            else:
                found.append(self._likelihood(run))
        record["predicted_ms_per_token"] = self._predicted(record["configuration"])
        out = self._summed(record, method)
        if not greedy:
            is_plain = record["name"] == PLAIN
            self.likely = found if is_plain else self.likely
            out["logprob"] = checks.law(found, self.likely, is_plain)
        record["summary"] = out

    def _compare(self, run: dict[str, Any], plain: Sequence[int]) -> None:
        prompt, ids = self.bench.measured[run["prompt"]], run["token_ids"]
        run["same_as_plain"] = ids == plain
        if not run["same_as_plain"]:
            run["first_difference_gap"] = checks.gap(self.target, prompt, plain, ids)

    def _likelihood(self, run: dict[str, Any]) -> checks.Likelihood:
        prompt = self.bench.measured[run["prompt"]]
        found = checks.likelihood(self.target, prompt, run["token_ids"], self.cell.temperature)
        if not math.isfinite(found.logprob):
            raise Unavailable(
                f"prompt {run['prompt'] + 1}: the target gives a token of the output probability "
                "0, or scores that are no numbers"
            )
        run["logprob_per_token"] = found.per_token
        return found

    def _summed(self, record: dict[str, Any], method: Method) -> dict[str, Any]:
        record["parameters"] = floor.level_parameters(method)
        # Sequences of a batch share calls, and the prices are those of a call for one.
        prices = record["parameters"] if self.bench.settings.batch_size == 1 else None
        out = summary.summary(record["runs"], self.plain, None, prices, self.cell.temperature == 0)
        out["peak_memory_bytes"] = self._memory(method)
        if self.bench.categories:
            out["by_category"] = self._by_category(record["runs"])
        return out

    def _by_category(self, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = self.bench.categories
        out = {}
        for category in dict.fromkeys(names[: len(self.bench.measured)]):
            mine = [run for run in runs if names[run["prompt"]] == category]
            if found := summary.paired(self.plain, mine):
                out[category] = {"speedup": found["median"], "n": found["n"]}
        return out

    def _predicted(self, configuration: dict[str, Any]) -> float | None:
        bench = self.bench
        if bench.settings.batch_size > 1:  # the profile is of one sequence at a time
            return None
        prompt = sum(map(len, bench.measured)) / len(bench.measured)
        context = prompt + bench.settings.max_new_tokens / 2
        return planned.predicted_ms(bench.models, configuration, self.cell.temperature, context)

    def _memory(self, method: Method) -> int | None:
        """Of the weights it needs, and of one run more."""
        weights = floor.weight_bytes(method)
        if weights is None:
            return None
        group: Group = self.bench.measured[: self.bench.settings.batch_size]
        request = self.cell.request(self.bench.settings.max_new_tokens)
        device = self.target.device.type
        try:
            rise = memory.rise(lambda: Guarded(method).run(group, request), device)
        except Unavailable:
            return None
        return None if rise is None else weights + rise

    def _over_transformers(self) -> None:
        """Paired ratios to the fastest method of transformers, if one ran."""
        theirs = [r for r in self.cell.records.values() if r["summary"] and _is_transformers(r)]
        if not theirs:
            return
        best = min(theirs, key=lambda record: record["summary"]["ms_per_token"]["median"])
        for record in self.cell.records.values():
            if record["summary"] is not None:
                record["summary"]["speedup_over_best_transformers"] = summary.paired(
                    best["runs"], record["runs"]
                )


def _is_transformers(record: dict[str, Any]) -> bool:
    words = (record["name"], record["title"].lower())
    return record["group"] == "peer" and any(word.startswith("transformers") for word in words)
