"""Methods take turns on groups of prompts, in a seeded order that favours none.

A method finds caches, clock rates and memory as the one before it has left them. In a rotation each
method would always have the same predecessor; in the rows of a Williams design (E. J. Williams,
Aust. J. Sci. Res. A 2, 1949, 149–168) it does not. A *group* is the prompts that run at once: one,
or ``--batch-size``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hierspec.errors import HierspecError
from hierspec_lab.bench.methods.base import (
    BatchMethod,
    Method,
    Run,
    RunRequest,
    Unavailable,
    reason,
)

PromptGroup = Sequence[Sequence[int]]
P = TypeVar("P")
R = TypeVar("R")


def balanced_rounds(count: int) -> int:
    """Return the number of rounds that balance ``count`` methods: as many, twice that if odd."""
    if count < 2:
        return 1
    return 2 * count if count % 2 else count


def turn_order(count: int, number: int, seed: int) -> list[int]:
    """Return methods 0 … ``count`` − 1 in the order of round ``number``.

    In every cycle of :func:`balanced_rounds` each method has each place equally often (once; twice
    if ``count`` is odd), and comes directly after each other method equally often (likewise).
    Fewer rounds hold none of these more often. ``seed`` assigns the methods to the design and
    shuffles its rows; the order depends on it and ``number`` alone.
    """
    cycle, row = divmod(number, balanced_rounds(count))
    rng = random.Random(f"{seed} {cycle}")
    labels, rows = list(range(count)), list(range(balanced_rounds(count)))
    rng.shuffle(labels)
    rng.shuffle(rows)
    mirrored, shift = divmod(rows[row], max(1, count))
    steps = [*_zigzag(count)]
    return [labels[(step + shift) % count] for step in (reversed(steps) if mirrored else steps)]


def _zigzag(count: int) -> list[int]:
    """Return 0, −1, 1, −2, 2, … modulo ``count``.

    No two steps are equal if it is even; if odd, the reversed list has the missing steps.
    """
    return [((i + 1) // 2) * (-1) ** i % count for i in range(count)]


def run_interleaved(
    methods: Sequence[Method], prompts: Sequence[Sequence[int]], request: RunRequest
) -> Iterator[tuple[int, int, Run | Unavailable]]:
    """Run every method on every prompt; yield indices of prompt and method, and the run.

    Instead of a run, the reason where there is none.
    Methods take turns on each prompt in an order of its own (:func:`turn_order`), so that drift of
    the machine and caches filled by the one before favour none. Before anything counts, each method
    runs once on the last prompt, whose turn is furthest off. Prompt i is seeded with
    ``request.seed + i``, and warming up with another seed. A method that cannot run is reported
    once and left out from then on.
    """
    return _in_turns([method.run for method in methods], prompts, request)


def run_in_turns(
    methods: Sequence[Method],
    groups: Sequence[PromptGroup],
    request: RunRequest,
    start: int = 0,
    warm_up: PromptGroup | None = None,
) -> Iterator[tuple[int, int, list[Run] | Unavailable]]:
    """Run every method on every group from ``start`` on; yield indices, and the runs or a reason.

    As :func:`run_interleaved`, but any exception of a method is a reason. If the same methods
    are left, turns are those of ``start`` 0: an interrupted bench continues as if it had not been.

    Args:
        warm_up: the group to warm up on, preferably one not measured. Default: the last.
    """

    runners = [partial(run_group, method) for method in methods]
    return _in_turns(runners, groups, request, start, warm_up)


def run_group(method: Method, group: PromptGroup, request: RunRequest) -> list[Run]:
    """Run the method on a group; return a run per prompt.

    Raises:
        Unavailable: for every exception of the method, in one line with type and message.
    """
    try:
        if len(group) == 1:
            return [method.run(group[0], request)]
        if not isinstance(method, BatchMethod):
            raise Unavailable("runs one prompt at a time: measure it with --batch-size 1")
        return method.run_batch(group, request)
    except Unavailable:
        raise
    except Exception as error:  # other engines raise what they like
        raise Unavailable(reason(error)) from error


def _in_turns(
    runners: Sequence[Callable[[P, RunRequest], R]],
    prompts: Sequence[P],
    request: RunRequest,
    start: int = 0,
    warm_up: P | None = None,
) -> Iterator[tuple[int, int, R | Unavailable]]:
    alive = list(range(len(runners)))

    def attempt(method: int, prompt: P, number: int) -> R | Unavailable:
        try:
            return runners[method](prompt, replace(request, seed=request.seed + number))
        except Unavailable as error:
            alive.remove(method)
            return error

    if start < len(prompts):
        for method in tuple(alive):
            result = attempt(method, prompts[-1] if warm_up is None else warm_up, len(prompts))
            if isinstance(result, Unavailable):
                yield start, method, result
    for i in range(start, len(prompts)):
        for method in [alive[k] for k in turn_order(len(alive), i, request.seed)]:
            yield i, method, attempt(method, prompts[i], i)


def refuse_partial_batches(prompts: int, size: int) -> None:
    """Refuse a number of prompts that is no multiple of the batch size.

    Raises:
        HierspecError: a smaller group would remain, whose time a token does not compare.
    """
    if prompts % size:
        below = prompts // size * size
        choices = f"{below} or {below + size}" if below else f"{size}"
        raise HierspecError(
            f"{prompts} prompts do not make full batches of {size}, and all must be of one "
            f"size: --num-prompts {choices}, or another --batch-size"
        )


def grouped(prompts: Sequence[Sequence[int]], size: int) -> list[PromptGroup]:
    """Split prompts into groups of ``size``.

    Raises:
        HierspecError: as :func:`refuse_partial_batches`.
    """
    refuse_partial_batches(len(prompts), size)
    return [prompts[i : i + size] for i in range(0, len(prompts), size)]


def tuning_groups(prompts: Sequence[Sequence[int]], size: int) -> list[PromptGroup]:
    """Split prompts into whole groups of ``size``, or one smaller group; leave a remainder out."""
    size = max(1, min(size, len(prompts)))
    return grouped(prompts[: len(prompts) // size * size], size)


def tuning_notes(prompts: int, size: int) -> list[str]:
    """Return a note where tuning uses smaller batches than measuring, or leaves prompts out."""
    if 0 < prompts < size:
        return [
            f"tuned on batches of {prompts}, measured on batches of {size}: --tune-prompts {size} "
            "tunes on equal batches"
        ]
    if prompts % size:
        return [f"{prompts % size} of {prompts} prompts to tune on are in no whole batch of {size}"]
    return []


def repeated(prompts: Sequence[Sequence[int]], size: int) -> PromptGroup:
    """Return a group of ``size`` to warm up on; prompts repeat where they are fewer."""
    return [prompts[i % len(prompts)] for i in range(size)]
