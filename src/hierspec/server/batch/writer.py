"""A batch from its input to its output: unanswered requests are sent, several at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from starlette.applications import Starlette

from hierspec.errors import HierspecError

from .lines import Line, answer_line, failure_line, read_lines
from .output import AnswersFile

_BUSY = (429, 503)  # statuses of a full service, after which a request is sent again
_MAX_TRIES = 8
_PAUSE = 0.25  # seconds before the second try; doubled before every further one


class BatchRun:
    """The requests of a file, and their answers in another.

    Args:
        path: of the requests.
        report: called with the batch at its start and after every answer.

    Attributes:
        answered: ids of the lines that had an answer when this run began.
        total: how many lines there are in all.

    Raises:
        HierspecError: there is no request, or the output answers lines that this input lacks.
    """

    def __init__(self, path: Path, output: AnswersFile, report: Callable[[BatchRun], None]) -> None:
        self.path, self.output, self.report = path, output, report
        self.answered, self.total = frozenset(output.ids), 0
        missing = set(output.ids)
        for line in read_lines(path):
            self.total += 1
            missing.discard(line.id)
        if missing:
            raise HierspecError(
                f"{output.path} answers another input than {path} ({min(missing)}): name another "
                "output"
            )
        if not self.total:
            raise HierspecError(f"{path} holds no request")
        report(self)

    @property
    def num_left(self) -> int:
        return self.total - len(self.output.ids)

    def lines(self) -> Iterator[Line]:
        """Yield the lines without an answer, read lazily: inputs may be large."""
        return (line for line in read_lines(self.path) if line.id not in self.answered)

    def add(self, line: bytes) -> None:
        """Add an answer to the output."""
        if self.output.add(line):
            self.report(self)


@asynccontextmanager
async def in_process_client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Start an application, and give a client of it that needs no network and never times out.

    Its handlers run in the caller's task: cancelling a call cancels the request.
    """
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://in-process",
        headers={"Content-Type": "application/json"},
        timeout=None,
        trust_env=False,
    )
    async with app.router.lifespan_context(app), client:
        yield client


async def run(client: httpx.AsyncClient, batch: BatchRun, max_concurrency: int) -> None:
    """Send every request, ``max_concurrency`` at once."""
    lines = batch.lines()

    async def answer_lines() -> None:
        for line in lines:  # shared by all workers
            batch.add(await answer_request(client, line))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max_concurrency, batch.num_left)):
                group.create_task(answer_lines())
    except ExceptionGroup as failures:  # answers cannot be written
        raise failures.exceptions[0] from None


async def answer_request(
    client: httpx.AsyncClient,
    line: Line,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bytes:
    """Send a request, again while the service is full; return its output line."""
    if line.error is not None:
        return failure_line(line, *line.error)
    for attempt in range(_MAX_TRIES):
        try:
            answer = await client.post(line.url, content=json.dumps(line.body))
        except Exception as error:  # one request's bug must not end the batch
            return failure_line(line, "server_error", f"{type(error).__name__}: {error}")
        if answer.status_code not in _BUSY:
            break
        if attempt + 1 < _MAX_TRIES:
            await sleep(_PAUSE * 2**attempt)
    return answer_line(line, answer)
