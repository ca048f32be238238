"""``hierspec batch``: a file of requests in, a file of answers out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierspec.errors import HierspecError

from .options import (
    REPLICAS,
    Device,
    DraftsOption,
    Dtype,
    HierarchyOption,
    MaxConcurrency,
    ServedModel,
    ServiceFile,
    ServiceSettings,
    Threads,
    split_values,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.server.batch.output import AnswersFile
    from hierspec.server.batch.writer import BatchProgress, Pending, Writer
    from hierspec.server.settings import ServeSettings


def batch(
    input_file: Annotated[
        Path,
        typer.Argument(help="Requests in OpenAI's batch format, one a line.", metavar="IN.jsonl"),
    ],
    output_file: Annotated[
        Path,
        typer.Argument(
            help="Answers, one a line. Requests that it answers already are skipped.",
            metavar="OUT.jsonl",
        ),
    ],
    model: ServedModel = None,
    hierarchy: HierarchyOption = None,
    draft: DraftsOption = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    max_concurrency: MaxConcurrency = 32,
    config: ServiceFile = None,
    setting: ServiceSettings = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Answer through Ray Data, on this machine or a cluster.")
    ] = False,
    replicas: Annotated[int, REPLICAS] = 1,
) -> int:
    """Answer a file of requests, each line exactly once.

    Requests are handled as hierspec serve handles them, in this process and without a network. The
    same command continues where it stopped, however it ended. Lines that are not requests, and
    requests that fail, are answered with their error; then the exit status is 1. Settings are those
    of hierspec serve; with --ray, --max-concurrency is that of each process.

    Examples:

      hierspec batch in.jsonl out.jsonl

      hierspec batch in.jsonl out.jsonl --ray --replicas 2 --model ./Llama-8B
    """
    from hierspec.server.batch.output import AnswersFile
    from hierspec.server.batch.writer import Writer, find_pending
    from hierspec.utils.files import locked

    from .rendering import interruptible, notes
    from .serve import service_settings

    options = {
        "model": model,
        "hierarchy": hierarchy,
        "draft": draft and split_values(draft),
        "dtype": dtype,
    }
    settings = _settings_for_one_client(
        service_settings(config, {**options, "device": device, "threads": threads}, setting or []),
        max_concurrency,
    )
    if input_file.resolve() == output_file.resolve():
        raise HierspecError("requests and answers must be two files")
    console = notes()
    refusal = f"another batch is writing {output_file}: wait for it to end, or name another output"
    with (
        locked(output_file, "answers", refusal),
        AnswersFile(output_file) as output,
        interruptible(console),
    ):
        pending = find_pending(input_file, output)
        with _bar(console, f"batch {input_file.name}") as report:
            writer = Writer(output, pending, report)
            if pending.num_left:
                answer = _answer_with_ray if ray else _answer_in_process
                answer(settings, pending, writer, max_concurrency, replicas)
        return _print_summary(output, pending, console)


def _settings_for_one_client(settings: ServeSettings, max_concurrency: int) -> ServeSettings:
    """Return a service's settings for one client that waits as long as it takes, without a key."""
    return dataclasses.replace(
        settings,
        api_key=(),
        max_queue=max(settings.max_queue, max_concurrency),
        request_timeout=0.0,
        store_responses=0,
    )


def _answer_in_process(
    settings: ServeSettings, pending: Pending, writer: Writer, max_concurrency: int, replicas: int
) -> None:
    if replicas != 1:
        raise HierspecError("--replicas goes with --ray: one process holds the models once")
    import asyncio

    from hierspec.server.app import create_app
    from hierspec.server.batch.inprocess import InProcess
    from hierspec.server.batch.writer import run
    from hierspec.utils.threads import use_threads

    use_threads(settings.threads)

    async def work() -> None:
        async with InProcess(create_app(settings)) as service:
            await run(service, pending, writer, max_concurrency)

    asyncio.run(work())


def _answer_with_ray(
    settings: ServeSettings, pending: Pending, writer: Writer, max_concurrency: int, replicas: int
) -> None:
    from hierspec.server.cluster.batch import run

    run(settings, pending, writer, max_concurrency, replicas)


@contextmanager
def _bar(console: Console, title: str) -> Iterator[Callable[[BatchProgress], None]]:
    from .rendering import progress

    with progress(console, title) as bar:
        last_tenth = -1

        def report(batch: BatchProgress) -> None:
            nonlocal last_tenth
            tenth = 10 * batch.num_answered // batch.total
            if console.is_terminal or tenth != last_tenth:  # elsewhere, a line for every tenth
                bar(_describe(batch), batch.num_answered / batch.total)
            last_tenth = tenth

        yield report


def _describe(batch: BatchProgress) -> str:
    parts = [f"{batch.total - batch.num_answered} of {batch.total} left"]
    if batch.num_failures:
        parts.append(f"{batch.num_failures} failed")
    return ", ".join(parts)


def _print_summary(output: AnswersFile, pending: Pending, console: Console) -> int:
    from hierspec.utils.terminal import counted

    from .rendering import say

    parts = [f"{counted(len(output.ids), 'answer')} in {output.path}"]
    if pending.answered:
        parts.append(f"{len(pending.answered)} of them were there already")
    if output.num_failures:
        parts.append(f"{output.num_failures} failed, the first: {output.first_failure}")
    say(console, "; ".join(parts))
    return 1 if output.num_failures else 0
