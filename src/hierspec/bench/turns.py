"""Methods taking turns on groups of prompts, whatever a method throws.

A *group* is as many prompts as run at once: one, or ``--batch-size``. It stands where
:func:`hierspec.bench.runs.interleaved` has a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .runs import Method, Request, Run, Unavailable, interleaved

Group = Sequence[Sequence[int]]


def whole_batches(prompts: int, size: int) -> None:
    """Refuse a number of prompts that is no whole number of groups.

    Raises:
        ValueError: a smaller group would be left, whose time a token is that of another batch.
    """
    if prompts % size:
        fewer = prompts // size * size
        near = f"{fewer} or {fewer + size}" if fewer else f"{size}"
        raise ValueError(
            f"{prompts} prompts are no whole number of batches of {size}, and all must be of one "
            f"size: --num-prompts {near}, or another --batch-size"
        )


def grouped(prompts: Sequence[Sequence[int]], size: int) -> list[Group]:
    """Prompts in groups of ``size``.

    Raises:
        ValueError: as :func:`whole_batches`.
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


def turns(
    methods: Sequence[Method],
    groups: Sequence[Group],
    request: Request,
    start: int = 0,
    warm_up: Group | None = None,
) -> Iterator[tuple[int, int, list[Run] | Unavailable]]:
    """Every method on every group from number ``start`` on → (group, method, runs or why not).

    Order, seeds and warming up are those of :func:`interleaved`: they depend on the request's seed
    and the group's number, so that an interrupted bench goes on as if nothing had happened.
    """
    guarded: Any = [Guarded(method) for method in methods]
    prompts: Any = groups
    first: Any = warm_up
    found: Any = interleaved(guarded, prompts, request, warm_up=first, start=start)
    return found


class Guarded:
    """A method on groups, of which every failure is a reason."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.name = method.name
        self.configuration = method.configuration

    def run(self, group: Group, request: Request) -> list[Run]:
        """One run per prompt of the group.

        Raises:
            Unavailable: also for what the method did not expect: one line, type and message.
        """
        try:
            if len(group) == 1:
                return [self.method.run(group[0], request)]
            together = getattr(self.method, "run_batch", None)
            if together is None:
                raise Unavailable("runs one prompt at a time: measure it with --batch-size 1")
            return together(group, request)
        except Unavailable:
            raise
        except Exception as error:  # other engines raise what they like
            raise Unavailable(reason(error)) from error


def reason(error: BaseException) -> str:
    """An exception in one line."""
    if isinstance(error, Unavailable):
        return " ".join(str(error).split())
    text = " ".join(str(error).split())
    shown = text if len(text) <= 300 else f"{text[:297]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
