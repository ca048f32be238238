"""Choosing a method's configuration on prompts that are not measured.

Candidates of one method take turns on every group of prompts, as measured methods do; the one with
the smallest median of milliseconds a token stays. All methods with something to choose get as many
prompts and tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from .turns import Group, Method, Request, Unavailable, turns


def tune(
    candidates: Sequence[Method],
    groups: Sequence[Group],
    request: Request,
    tell: Callable[[float], None] = lambda share: None,
) -> tuple[Method, dict[str, Any]]:
    """The fastest candidate, and the ``tuning`` of its record.

    Args:
        groups: tuning prompts, in groups of one size.
        tell: told the share that is done.

    Raises:
        Unavailable: no candidate can run; with the first one's reason.
    """
    times: list[list[float]] = [[] for _ in candidates]
    reasons: dict[int, str] = {}
    total = len(candidates) * len(groups)
    for done, (_, which, runs) in enumerate(turns(candidates, groups, request), 1):
        if isinstance(runs, Unavailable):
            reasons[which] = str(runs)
        else:
            times[which] += [run.ms_per_token for run in runs]
        tell(min(1.0, done / total))
    trials = []
    for i, candidate in enumerate(candidates):
        trial: dict[str, Any] = {"configuration": candidate.configuration, "ms_per_token": None}
        if i in reasons:
            trial["skipped"] = reasons[i]
        else:
            trial["ms_per_token"] = statistics.median(times[i])
        trials.append(trial)
    able = [i for i in range(len(candidates)) if i not in reasons]
    if not able:
        raise Unavailable(reasons[0])
    best = min(able, key=lambda i: trials[i]["ms_per_token"])
    size = len(groups[0]) if groups else 0
    found = {"prompts": size * len(groups), "batch_size": size, "trials": trials}
    return candidates[best], found


def same(configuration: Any, candidates: Sequence[Method]) -> Method | None:
    """The candidate with a configuration that was read back from a file."""
    return next((one for one in candidates if plain(one.configuration) == configuration), None)


def plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    import json

    return json.loads(json.dumps(value))
