"""One temperature of a bench: methods are arranged, take turns on the prompts, and are judged.

After all that is timed: outputs are checked, memory is looked at, runs are summed up.

Are the outputs right? Token ids where decoding is greedy, the target's likelihood elsewhere.

Both use one teacher-forced pass of the target over an output: all positions at once, no sampling,
nothing of the method that wrote it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hierspec.bench.methods.catalogue import PLAIN
from hierspec.bench.methods.entry import Entry
from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.base import LanguageModel, Query
from hierspec.utils.machine import load_average

from . import cell as checks
from . import results, summary
from . import roofline as floor
from . import roofline as memory
from .methods import planned
from .summary import deviation
from .tuning import plain as as_json
from .tuning import same, tune
from .turns import (
    Group,
    Guarded,
    Method,
    Request,
    Run,
    Unavailable,
    grouped,
    reason,
    repeated,
    tuning_groups,
    turns,
)

if TYPE_CHECKING:
    pass


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
            raise HierspecError(f"plain decoding cannot run: {reason(error)}") from error
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


MOST_DEVIATION = 3.0  # of the paired differences: 0.3 % of sound methods lie outside
MOST_LAW_DEVIATION = 4.0  # of all tokens against the law itself: 0.006 %
# What rounding may do to a score, in steps of the data type at the size of the largest score: a
# coarse type rounds the score itself, a fine one shows what many layers add up.
_STEPS = {torch.bfloat16: 4.0, torch.float16: 4.0}
_FINE_STEPS = 32.0
_LEAST = 1e-9  # nats: the deviation of a law that leaves nothing to chance, above rounding


@dataclass(frozen=True, slots=True)
class Likelihood:
    """An output under the target's law at a temperature, in nats.

    Attributes:
        logprob: Σ log p(token), n tokens.
        surplus: Σ (log p(token) + H), H the entropy of the law at each position: a sum of
            differences whose expectation given the past is 0 if tokens have the target's law.
        variance: Σ Var(log p) of the same laws: the variance of ``surplus``.
    """

    num_tokens: int
    logprob: float
    surplus: float
    variance: float

    @property
    def per_token(self) -> float:
        return self.logprob / max(1, self.num_tokens)


def scores(model: LanguageModel, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """The target's scores [len(ids), V] for each token of ``ids``, given all before it."""
    slot = model.open()
    try:
        context = Context([*prompt, *ids])
        return model.score([Query(slot, context, len(prompt))])[: len(ids)]
    finally:
        model.close(slot)


def likelihood(
    model: LanguageModel, prompt: Sequence[int], ids: Sequence[int], temperature: float
) -> Likelihood:
    """How an output looks to the target at a temperature > 0."""
    if not ids:
        return Likelihood(0, 0.0, 0.0, 0.0)
    logs = torch.log_softmax(scores(model, prompt, ids).double() / temperature, dim=-1)
    law = logs.exp()
    finite = torch.where(law > 0, logs, torch.zeros_like(logs))
    mean = (law * finite).sum(-1)  # −H
    variance = (law * finite.square()).sum(-1) - mean.square()
    chosen = logs.gather(1, torch.tensor(ids, device=logs.device)[:, None])[:, 0]
    return Likelihood(
        num_tokens=len(ids),
        logprob=float(chosen.sum()),
        surplus=float((chosen - mean).sum()),
        variance=float(variance.clamp_min(0).sum()),
    )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Where two outputs part; ``None`` if they are equal. The end of one counts."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def gap(
    model: LanguageModel, prompt: Sequence[int], plain: Sequence[int], ids: Sequence[int]
) -> float | None:
    """How far the less likely of two outputs' first differing tokens lies below the best score.

    In logits of one teacher-forced pass: near 0 where the two best scores tie, and rounding
    decides. ``None``: the outputs are equal, or one merely ends sooner, or the target's scores say
    that one of the tokens cannot be.
    """
    at = first_difference(plain, ids)
    if at is None or at >= min(len(plain), len(ids)):
        return None
    row = scores(model, prompt, plain[: at + 1])[at].double()
    found = float(row.max() - min(row[plain[at]], row[ids[at]]))
    return found if math.isfinite(found) else None  # a results file holds finite numbers alone


def tolerance(model: LanguageModel, prompt: Sequence[int]) -> float:
    """The largest :func:`gap` that rounding in the model's data type explains, in logits."""
    backend = getattr(getattr(model, "cache_owner", None), "backend", None)
    dtype = getattr(backend, "weight_dtype", None) or getattr(backend, "dtype", torch.float32)
    found = scores(model, prompt[:-1] or prompt, prompt[-1:])
    size = float(found.nan_to_num(0.0, 0.0, 0.0).abs().max())  # ids that a model masks have −∞
    return _STEPS.get(dtype, _FINE_STEPS) * torch.finfo(dtype).eps * max(1.0, size)


def law(
    found: Sequence[Likelihood], plain: Sequence[Likelihood], is_plain: bool = False
) -> dict[str, Any]:
    """``logprob`` of a summary: the outputs of a method against plain sampling's, and the law.

    Two tests. *Paired*: per prompt, the mean log-probability a token, less plain sampling's on the
    same prompt. *Law*: all tokens' surplus over its standard deviation, which takes the conditional
    laws for granted instead of a second sample, so it sees far less noise. Either alone far out of
    what chance allows makes ``within_noise`` false.
    """
    differences = [a.per_token - b.per_token for a, b in zip(found, plain, strict=True)]
    count = len(differences)
    error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else None
    spent = math.sqrt(sum(one.variance for one in found))
    law_z = sum(one.surplus for one in found) / max(spent, _LEAST)
    paired_ok = is_plain or count < 2 or abs(deviation(differences)) <= MOST_DEVIATION
    return {
        "mean": statistics.fmean(one.per_token for one in found),
        "difference_from_plain": statistics.fmean(differences),
        "standard_error": error,
        "law_z": law_z,
        "within_noise": paired_ok and abs(law_z) <= MOST_LAW_DEVIATION,
    }
