"""Sums over runs of one method: tokens, calls of the target, and what became of drafts.

Calls of the target are counted in two ways. :func:`target_calls` adds up what every sequence took
part in: tokens over it are the mean acceptance length, P4's block efficiency, and what a sequence
gains does not depend on its company. :func:`target_forwards` counts a call once, whoever shares it:
tokens over that are what a forward of the machine yields, more in a batch. For one sequence at a
time both are the same; follow-up calls of a rule are in both, the prompt's own in neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.runs import Run


def written(runs: Sequence[Run]) -> int:
    """Tokens after the first, which the prompt's own forward gives."""
    return sum(run.num_tokens - 1 for run in runs)


def target_calls(runs: Sequence[Run]) -> int:
    """Calls of the target, each as often as there were sequences in it."""
    return sum(run.target_calls or 0 for run in runs)


def target_forwards(runs: Sequence[Run]) -> float:
    """Calls of the target, each once: runs of a batch hold shares of its counters."""
    return sum(run.target["calls"] for run in runs)


def tokens_per_call(runs: Sequence[Run]) -> float:
    """Mean acceptance length, all prompts together: :func:`written` over :func:`target_calls`."""
    calls = target_calls(runs)
    return written(runs) / calls if calls else 0.0


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Tokens after the first over decoding time, all prompts together."""
    return written(runs) / sum(run.decode_seconds or 0.0 for run in runs)


def drafted(runs: Sequence[Run], level: int = -1) -> float:
    """Tokens that a level handed up; −1: the one right below the target."""
    return sum(run.levels[level]["num_draft_tokens"] for run in runs if run.levels)


def acceptance(runs: Sequence[Run], level: int = -1) -> float | None:
    """The share of a level's tokens that the level above kept; ``None`` where there were none."""
    offered = drafted(runs, level)
    kept = sum(run.levels[level]["num_accepted_tokens"] for run in runs if run.levels)
    return kept / offered if offered else None


def offered_per_call(runs: Sequence[Run]) -> float:
    """Draft tokens that the target verifies in a call."""
    calls = target_calls(runs)
    return drafted(runs) / calls if calls else 0.0
