"""How a leaf drafts: token by token, left to its model as one request, or looked up.

A draft can be left to the model where nothing else depends on its tokens: no penalty, grammar or
processor reads them, and all sequences read their scores alike. Without a window that reads them
either, tokens, laws and uniforms spent are those of the way token by token. A window that reads
them may be asked about several at once, and then a stop throws uniforms away; where a node could
draft so, it throws them away on both ways, since the way that is taken depends on other sequences.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hierspec.core.distributions import Distributions, OneHotDistributions, concatenate
from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal, States
from hierspec.core.windows import State, Window
from hierspec.engine.metrics import LevelStats
from hierspec.errors import HierspecError
from hierspec.lm.base import Drafted, Query
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.sampling.scores import ScoreRows, unusable
from hierspec.sampling.scores import signals as read

if TYPE_CHECKING:
    from hierspec.engine.sequences import Task

_CHUNK = 4  # tokens a window is asked about at once


def _by_itself(node: Draft) -> bool:
    """Whether the node's model can draft several tokens, and the node lets it."""
    # A check against the protocol itself takes as long as drawing a token.
    if not hasattr(node.model, "draft"):
        return False
    return node.window.signal is None or bool(getattr(node.model, "graphs", None))


def _chunk(node: Draft) -> int:
    """For how many tokens uniforms are taken at once, whatever a window says in between.

    It is a matter of the node alone. So a sequence spends the same uniforms whoever shares its
    batch, and whether or not that lets it draft by itself.
    """
    if not _by_itself(node):
        return 1
    return node.budget if node.window.signal is None else min(node.budget, _CHUNK)


def shared_reading(node: Draft, jobs: Sequence[ScoreRows]) -> Sampler | None:
    """How all jobs read their scores, where the node's model can draft by itself; else ``None``.

    A window that reads the tokens leaves a draft to the model only where asking token by token
    would mean waiting for a device.
    """
    signal = node.window.signal
    if not _by_itself(node):
        return None
    if any(job.params.edits_scores for job in jobs):
        return None
    first = jobs[0].sampler()
    if any(job.sampler() != first for job in jobs[1:]):
        return None
    return replace(first, signal=signal) if signal else first


def ahead(
    node: Draft,
    group: Sequence[Task],
    jobs: Sequence[ScoreRows],
    sampler: Sampler,
    stats: LevelStats,
) -> list[tuple[Proposal, States]]:
    """Each task's draft, up to its own limit, or to where its window stops it.

    A window that reads the tokens is asked about a chunk at a time: what lies beyond the stop is
    thrown away with the uniforms it was drawn from, so that nothing kept depends on it.

    Args:
        node: a leaf whose model is a :class:`~hierspec.lm.base.Drafter`.
        jobs: how each task's first row is read; ``sampler`` is what they share.

    Raises:
        ValueError: scores that are no law.
    """
    requests: list[Any] = [task.request for task in group]
    limits = [min(node.budget, request.limit) for request in requests]
    tokens: list[list[int]] = [[] for _ in group]
    distributions: list[list[Distributions]] = [[] for _ in group]
    signals: list[list[float]] = [[] for _ in group]
    chunk = _chunk(node)
    going = list(range(len(group)))
    while going:
        queries = [_query(node, group[i], jobs[i], tokens[i]) for i in going]
        counts = [min(chunk, limits[i] - len(tokens[i])) for i in going]
        rng = [group[i].sequence.rng for i in going]
        uniforms = [() if sampler.greedy else d.take(n) for d, n in zip(rng, counts, strict=True)]
        found = _drafted(node, queries, counts, chunk, sampler, uniforms, jobs, stats)
        still = []
        for row, i in enumerate(going):
            values = [math.nan] * counts[row] if found.signals is None else found.signals[row]
            state = requests[i].states[node.index]
            n, stopped = _kept(node.window, values, state)
            tokens[i] += found.tokens[row][:n]
            distributions[i].append(
                found.distributions[row].rows(0, n) if stopped else found.distributions[row]
            )
            signals[i] += values[:n]
            if not stopped and len(tokens[i]) < limits[i]:
                still.append(i)
        going = still
    return _handed_up(node, group, tokens, distributions, signals)


def by_steps(
    node: Draft, group: Sequence[Task], step: Callable[..., Any]
) -> list[tuple[Proposal, States]]:
    """Token by token, each sequence until its own window or limit stops it.

    It leaves the dice where :func:`ahead` would.

    Args:
        step: (tasks, drafted so far) → scores [n, V], the n laws, a token drawn from each.
    """
    tokens: list[list[int]] = [[] for _ in group]
    distributions: list[list[Distributions]] = [[] for _ in group]
    signals: list[list[float]] = [[] for _ in group]
    going, chunk = list(range(len(group))), _chunk(node)
    while going:
        scores, rows, picked = step([group[i] for i in going], [tuple(tokens[i]) for i in going])
        if node.window.signal is not None:
            values = read(scores, picked, node.window.signal)
        else:
            values = [math.nan] * len(picked)
        still = []
        for i, law, token, value in zip(going, rows, picked, values, strict=True):
            tokens[i].append(token)
            distributions[i].append(law)
            signals[i].append(value)
            request: Any = group[i].request
            stopped = node.window.stops((value,), request.states[node.index])
            n, limit = len(tokens[i]), min(node.budget, request.limit)
            if n < limit and not stopped:
                still.append(i)
            elif n < limit and not isinstance(law, OneHotDistributions):
                group[i].sequence.rng.take(min(-n % chunk, limit - n))
        going = still
    return _handed_up(node, group, tokens, distributions, signals)


def look_up(node: Draft, task: Task) -> tuple[Proposal, States]:
    """What a look-up finds after a task's context; it may be nothing."""
    request: Any = task.request
    slot: Any = task.sequence.slot(node.model)
    context = task.context(request.pending)
    ids = node.model.propose(context, min(node.budget, request.limit), slot)
    return _handed_up(
        node, [task], [[*ids]], [[OneHotDistributions(ids)]], [[math.nan] * len(ids)]
    )[0]


def _handed_up(
    node: Draft,
    group: Sequence[Task],
    tokens: Sequence[Sequence[int]],
    distributions: Sequence[Sequence[Distributions]],
    signals: Sequence[Sequence[float]],
) -> list[tuple[Proposal, States]]:
    out = []
    for task, ids, rows, values in zip(group, tokens, distributions, signals, strict=True):
        request: Any = task.request
        whose = (node.index,) * len(ids)
        proposal = Proposal(tuple(ids), concatenate(rows), whose, whose, tuple(values))
        out.append((proposal, request.states))
    return out


def _query(node: Draft, task: Task, job: ScoreRows, tokens: list[int]) -> Query:
    context = job.context.plus(tokens) if tokens else job.context
    return Query(task.sequence.slot(node.model), context, len(context))


def _kept(window: Window, signals: Sequence[float], state: State) -> tuple[int, bool]:
    """How many tokens of a chunk are kept, and whether the window stopped after them."""
    if window.signal is not None:
        for n, value in enumerate(signals, start=1):
            if window.stops((value,), state):
                return n, True
    return len(signals), False


def _drafted(
    node: Draft,
    queries: Sequence[Query],
    counts: Sequence[int],
    steps: int,
    sampler: Sampler,
    uniforms: Sequence[Any],
    jobs: Sequence[ScoreRows],
    stats: LevelStats,
) -> Drafted:
    """What the model drafts, its time counted."""
    began = time.perf_counter()
    try:
        found: Drafted = node.model.draft(queries, counts, steps, sampler, uniforms)
    except NoDistributionError as error:
        if error.scores is None:
            text = f"{node.name} produced scores that are no law; try --dtype float32"
            raise HierspecError(text) from None
        raise unusable(jobs[: len(error.scores)], error.scores, error.scores) from None
    stats.forward_seconds += time.perf_counter() - began - found.pick_seconds
    stats.calls += found.calls
    return found
