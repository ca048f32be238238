"""A batch from its input to its output: unanswered requests are sent, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hierspec.errors import HierspecError

from .lines import Answer, Line, answer_line, failure_line, read_lines
from .output import AnswersFile

_BUSY = (429, 503)  # statuses of a full service, after which a request is sent again
_MAX_TRIES = 8
_PAUSE = 0.25  # seconds before the second try; doubled before every further one


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
    def num_left(self) -> int:
        return self.total - len(self.answered)

    def lines(self) -> Iterator[Line]:
        """Yield the lines without an answer, read lazily: inputs may be large."""
        return (line for line in read_lines(self.path) if line.id not in self.answered)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a batch."""

    num_answered: int
    total: int
    num_failures: int


def find_pending(path: Path, output: AnswersFile) -> Pending:
    """Return the requests of the input that the output does not answer yet.

    Raises:
        HierspecError: the output answers lines that this input does not have.
    """
    total, missing = 0, set(output.ids)
    for line in read_lines(path):
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

    def __init__(
        self, output: AnswersFile, pending: Pending, report: Callable[[BatchProgress], None]
    ) -> None:
        self.output, self.total, self.report = output, pending.total, report
        self._report_progress()

    def add(self, line: bytes) -> None:
        if self.output.add(line):
            self._report_progress()

    def _report_progress(self) -> None:
        self.report(BatchProgress(len(self.output.ids), self.total, self.output.num_failures))


async def run(
    service: AnsweringService, pending: Pending, writer: Writer, max_concurrency: int
) -> None:
    """Send every request to a service, ``max_concurrency`` at once."""
    lines = pending.lines()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(max_concurrency, pending.num_left)):
            group.create_task(_answer_lines(service, lines, writer))


async def _answer_lines(service: AnsweringService, lines: Iterator[Line], writer: Writer) -> None:
    for line in lines:  # shared by all workers
        writer.add(await answer_request(service, line))


async def answer_request(
    service: AnsweringService, line: Line, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> bytes:
    """Send a request, again while the service is full; return its output line."""
    if line.error is not None:
        return failure_line(line, *line.error)
    assert line.body is not None
    for attempt in range(_MAX_TRIES):
        try:
            answer = await service.post(line.url, line.body)
        except Exception as error:  # one request's bug must not end the batch
            return failure_line(line, "server_error", f"{type(error).__name__}: {error}")
        if answer.status not in _BUSY:
            break
        if attempt + 1 < _MAX_TRIES:
            await sleep(_PAUSE * 2**attempt)
    return answer_line(line, answer)
