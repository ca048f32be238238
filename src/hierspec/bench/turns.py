"""Methods taking turns on groups of prompts, whatever a method throws.

A *group* is as many prompts as run at once: one, or ``--batch-size``. It stands where
:func:`hierspec.bench.runs.interleaved` has a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .runs import Method, Request, Run, Unavailable, interleaved

Group = Sequence[Sequence[int]]


def grouped(prompts: Sequence[Sequence[int]], size: int) -> list[Group]:
    """Prompts in runs of ``size``; the last group may be smaller."""
    return [prompts[i : i + size] for i in range(0, len(prompts), size)]


def turns(
    methods: Sequence[Method], groups: Sequence[Group], request: Request, start: int = 0
) -> Iterator[tuple[int, int, list[Run] | Unavailable]]:
    """Every method on every group from number ``start`` on → (group, method, runs or why not).

    The order is that of :func:`interleaved`: group g begins with method g mod m, and is seeded with
    ``request.seed + g``. A later start takes the same turns, so that an interrupted bench goes on
    as if nothing had happened. Each method first runs its first group once, uncounted.
    """
    count = max(1, len(methods))
    order = [(i + start) % count for i in range(len(methods))]
    later = Request(request.max_new_tokens, request.temperature, request.seed + start)
    guarded: Any = [Guarded(methods[i]) for i in order]
    rest: Any = groups[start:]
    found: Any = interleaved(guarded, rest, later)
    for group, which, runs in found:
        yield group + start, order[which], runs


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
