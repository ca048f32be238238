"""Methods taking turns on groups of prompts, in a seeded order that favours none.

A method finds caches, clock rates and memory as the one before it has left them. A rotation keeps
the neighbours, so that one of two methods always has the same predecessor; rows of a Williams
design (E. J. Williams, Aust. J. Sci. Res. A 2, 1949, 149–168) do not. A *group* is as many prompts
as run at once: one, or ``--batch-size``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from hierspec.bench.methods.base import Method, Request, Run, Unavailable, reason
from hierspec.errors import HierspecError

Group = Sequence[Sequence[int]]
P = TypeVar("P")
R = TypeVar("R")


def rounds(count: int) -> int:
    """After how many rounds everything is balanced: of as many methods, twice as many if odd."""
    if count < 2:
        return 1
    return 2 * count if count % 2 else count


def order(count: int, number: int, seed: int) -> list[int]:
    """Methods 0 … ``count`` − 1 in the order of round ``number``.

    Of :func:`rounds` rounds from a multiple of it on, every method has every place equally often
    (once; twice if ``count`` is odd), and comes directly after every other equally often
    (likewise). Fewer rounds hold none of these more often. ``seed`` decides which method is
    where in the design, and shuffles its rows; it and ``number`` are all that the order depends
    on.
    """
    cycle, row = divmod(number, rounds(count))
    rng = random.Random(f"{seed} {cycle}")
    labels, rows = list(range(count)), list(range(rounds(count)))
    rng.shuffle(labels)
    rng.shuffle(rows)
    mirrored, shift = divmod(rows[row], max(1, count))
    steps = [*_zigzag(count)]
    return [labels[(step + shift) % count] for step in (reversed(steps) if mirrored else steps)]


def _zigzag(count: int) -> list[int]:
    """0, −1, 1, −2, 2, … modulo ``count``: where that is even, no two steps are alike; where it is
    odd, the reverse has those that are missing."""
    return [((i + 1) // 2) * (-1) ** i % count for i in range(count)]


def interleaved(
    methods: Sequence[Method], prompts: Sequence[Sequence[int]], request: Request
) -> Iterator[tuple[int, int, Run | Unavailable]]:
    """Every method on every prompt, in turns → (prompt, method, its run or why there is none).

    Methods take turns on each prompt in an order of its own (:func:`order`), so that drift of the
    machine and caches that the one before has filled favour nobody. Before anything counts, each
    method runs once on the last prompt, whose turn is furthest off. Prompt i is seeded with
    ``request.seed + i``, warming up with a seed of no counted run. A method that cannot run is
    reported once and left out from then on.
    """
    return _in_turns([method.run for method in methods], prompts, request)


def turns(
    methods: Sequence[Method],
    groups: Sequence[Group],
    request: Request,
    start: int = 0,
    warm_up: Group | None = None,
) -> Iterator[tuple[int, int, list[Run] | Unavailable]]:
    """Every method on every group from number ``start`` on → (group, method, runs or why not).

    As :func:`interleaved`, and whatever a method raises is a reason. The turns are those of
    ``start`` 0 if the same methods are left, so that an interrupted bench goes on as if nothing
    had happened.

    Args:
        warm_up: the group to warm up on; best one that is not measured. Default: the last.
    """

    def attempt(method: Method) -> Callable[[Group, Request], list[Run]]:
        return lambda group, seeded: run_group(method, group, seeded)

    return _in_turns([attempt(method) for method in methods], groups, request, start, warm_up)


def run_group(method: Method, group: Group, request: Request) -> list[Run]:
    """One run per prompt of the group.

    Raises:
        Unavailable: also for what the method did not expect: one line, type and message.
    """
    try:
        if len(group) == 1:
            return [method.run(group[0], request)]
        together = getattr(method, "run_batch", None)
        if together is None:
            raise Unavailable("runs one prompt at a time: measure it with --batch-size 1")
        return together(group, request)
    except Unavailable:
        raise
    except Exception as error:  # other engines raise what they like
        raise Unavailable(reason(error)) from error


def _in_turns(
    attempts: Sequence[Callable[[P, Request], R]],
    prompts: Sequence[P],
    request: Request,
    start: int = 0,
    warm_up: P | None = None,
) -> Iterator[tuple[int, int, R | Unavailable]]:
    alive = list(range(len(attempts)))

    def attempt(which: int, prompt: P, number: int) -> R | Unavailable:
        try:
            return attempts[which](prompt, replace(request, seed=request.seed + number))
        except Unavailable as error:
            alive.remove(which)
            return error

    if start < len(prompts):
        for which in tuple(alive):
            found = attempt(which, prompts[-1] if warm_up is None else warm_up, len(prompts))
            if isinstance(found, Unavailable):
                yield start, which, found
    for i in range(start, len(prompts)):
        for which in [alive[k] for k in order(len(alive), i, request.seed)]:
            yield i, which, attempt(which, prompts[i], i)


def whole_batches(prompts: int, size: int) -> None:
    """Refuse a number of prompts that is no multiple of the batch size.

    Raises:
        HierspecError: a smaller group would be left, whose time a token is that of another batch.
    """
    if prompts % size:
        fewer = prompts // size * size
        near = f"{fewer} or {fewer + size}" if fewer else f"{size}"
        raise HierspecError(
            f"{prompts} prompts do not make full batches of {size}, and all must be of one "
            f"size: --num-prompts {near}, or another --batch-size"
        )


def grouped(prompts: Sequence[Sequence[int]], size: int) -> list[Group]:
    """Prompts in groups of ``size``.

    Raises:
        HierspecError: as :func:`whole_batches`.
    """
    whole_batches(len(prompts), size)
    return [prompts[i : i + size] for i in range(0, len(prompts), size)]


def tuning_groups(prompts: Sequence[Sequence[int]], size: int) -> list[Group]:
    """Whole groups of ``size``; what is left over is left out. One smaller group, if there are
    fewer prompts than that."""
    size = max(1, min(size, len(prompts)))
    return grouped(prompts[: len(prompts) // size * size], size)


def tuning_notes(prompts: int, size: int) -> list[str]:
    """Where tuning is on other batches than what is measured, or not on all prompts: that it is."""
    if 0 < prompts < size:
        return [
            f"tuned on batches of {prompts}, measured on batches of {size}: --tune-prompts {size} "
            "tunes on such as are measured"
        ]
    if prompts % size:
        return [f"{prompts % size} of {prompts} prompts to tune on are in no whole batch of {size}"]
    return []


def repeated(prompts: Sequence[Sequence[int]], size: int) -> Group:
    """A group of ``size``, in which prompts recur where they are fewer: to warm up on."""
    return [prompts[i % len(prompts)] for i in range(size)]
