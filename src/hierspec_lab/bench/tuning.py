"""Chooses a method's configuration on prompts that are not measured.

Candidates of one method take turns on every group of prompts, as measured methods do; the one with
the smallest median of milliseconds a token is chosen. All methods are tuned on equally many prompts
and tokens.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from hierspec_lab.bench.methods.base import Method, RunRequest, Unavailable

from .method_records import TuningRecord, TuningTrial
from .turns import PromptGroup, run_in_turns


def tune(
    candidates: Sequence[Method],
    groups: Sequence[PromptGroup],
    request: RunRequest,
    report: Callable[[float], None] = lambda share: None,
) -> tuple[Method, TuningRecord]:
    """Return the fastest candidate, and the record of all that were tried.

    Args:
        groups: tuning prompts, in groups of equal size.
        report: called with the share that is done.

    Raises:
        Unavailable: no candidate can run; with the first one's reason.
    """
    times: list[list[float]] = [[] for _ in candidates]
    reasons: dict[int, str] = {}
    total = len(candidates) * len(groups)
    for count, (_, i, runs) in enumerate(run_in_turns(candidates, groups, request), 1):
        if isinstance(runs, Unavailable):
            reasons[i] = str(runs)
        else:
            times[i] += [run.ms_per_token for run in runs]
        report(min(1.0, count / total))
    runnable = [i for i in range(len(candidates)) if i not in reasons]
    if not runnable:
        raise Unavailable(reasons[0])
    medians = {i: statistics.median(times[i]) for i in runnable}
    trials = []
    for i, candidate in enumerate(candidates):
        trial = TuningTrial(
            configuration=as_json(candidate.configuration), ms_per_token=medians.get(i)
        )
        if i in reasons:
            trial.skipped = reasons[i]
        trials.append(trial)
    size = len(groups[0]) if groups else 0
    record = TuningRecord(prompts=size * len(groups), batch_size=size, trials=trials)
    return candidates[min(runnable, key=lambda i: medians[i])], record


def with_configuration(
    configuration: dict[str, Any], candidates: Sequence[Method]
) -> Method | None:
    """Find the candidate with a configuration that was read from a file."""
    return next((c for c in candidates if as_json(c.configuration) == configuration), None)


def as_json(configuration: dict[str, Any]) -> dict[str, Any]:
    """Convert a configuration to what reading its JSON returns, with lists for tuples."""
    return json.loads(json.dumps(configuration))
