"""A batch from its input to its output: unanswered requests are sent, several at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hierspec.errors import HierspecError

from .lines import Answer, Line, answered, failed, read
from .output import AnswersFile

_BUSY = (429, 503)  # a service that is full asks to come again
_TRIES = 8
_PAUSE = 0.25  # seconds before the second try; doubled for every further one


class AnsweringService(Protocol):
    """Something that answers requests of OpenAI's API."""

    async def post(self, url: str, body: Mapping[str, Any]) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Pending:
    """The requests of a batch that have no answer yet.

    Attributes:
        answered: ids of the lines that had an answer when this run began.
        total: how many lines there are in all.
    """

    path: Path
    answered: frozenset[str]
    total: int

    @property
    def left(self) -> int:
        return self.total - len(self.answered)

    def lines(self) -> Iterator[Line]:
        """Yield the lines without an answer, read lazily: inputs may be large."""
        return (line for line in read(self.path) if line.id not in self.answered)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a batch.

    Attributes:
        failures: errors, and answers with a status other than 200.
        seconds_left: at the pace of this run so far; ``None`` at its start.
    """

    done: int
    total: int
    failures: int
    seconds_left: float | None


Report = Callable[[BatchProgress], None]


def pending(path: Path, output: AnswersFile) -> Pending:
    """Return the requests of the input that the output does not answer yet.

    Raises:
        HierspecError: the output answers lines that this input does not have.
    """
    total, missing = 0, set(output.ids)
    for line in read(path):
        total += 1
        missing.discard(line.id)
    if missing:
        raise HierspecError(
            f"{output.path} answers another input than {path} ({min(missing)}): name another output"
        )
    if not total:
        raise HierspecError(f"{path} holds no request")
    return Pending(path, frozenset(output.ids), total)


class Writer:
    """Adds answers to the output and reports the batch's progress."""

    def __init__(self, output: AnswersFile, todo: Pending, report: Report) -> None:
        self.output, self.total, self.report = output, todo.total, report
        self.first = 0.0  # when the first answer of this run came: models take a while to load
        self.before = 0
        self._tell()

    def add(self, line: bytes) -> None:
        if self.output.add(line):
            if not self.first:
                self.first, self.before = time.monotonic(), len(self.output.ids)
            self._tell()

    def _tell(self) -> None:
        done = len(self.output.ids)
        since, spent = done - self.before, time.monotonic() - self.first
        left = spent / since * (self.total - done) if self.first and since else None
        self.report(BatchProgress(done, self.total, self.output.failures, left))


async def run(
    service: AnsweringService, todo: Pending, writer: Writer, max_concurrency: int
) -> None:
    """Send every request to a service, ``max_concurrency`` at once."""
    lines = todo.lines()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(max_concurrency, todo.left)):
            group.create_task(_work(service, lines, writer))


async def _work(service: AnsweringService, lines: Iterator[Line], writer: Writer) -> None:
    for line in lines:  # shared: every worker takes the next
        writer.add(await outcome(service, line))


async def outcome(
    service: AnsweringService, line: Line, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> bytes:
    """Return the output line of a request, retrying while the service is full."""
    if line.error is not None:
        return failed(line, *line.error)
    assert line.body is not None
    for attempt in range(_TRIES):
        try:
            answer = await service.post(line.url, line.body)
        except Exception as error:  # one request's bug must not end the batch
            return failed(line, "server_error", f"{type(error).__name__}: {error}")
        if answer.status not in _BUSY:
            break
        if attempt + 1 < _TRIES:
            await sleep(_PAUSE * 2**attempt)
    return answered(line, answer)
