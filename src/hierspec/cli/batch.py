"""``hierspec batch``: a file of requests in, a file of answers out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierspec.errors import HierspecError

from . import options

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.server.batch.writer import BatchRun
    from hierspec.server.settings import ServeSettings


def batch(
    ctx: typer.Context,
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
    model: options.ServedModel = None,
    hierarchy: options.ServedHierarchy = None,
    draft: options.DraftsOption = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    max_concurrency: options.MaxConcurrency = 32,
    config: options.ServiceFile = None,
    setting: options.ServiceSettings = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Answer through Ray Data, on this machine or a cluster.")
    ] = False,
    replicas: Annotated[int, options.REPLICAS] = 1,
) -> int:
    """Answer a file of requests, each line exactly once.

    Requests are handled as hierspec serve handles them, in this process and without a network. The
    same command continues where it stopped, however it ended. Lines that are not requests, and
    requests that fail, are answered with their error; then the exit status is 1. Settings are those
    of hierspec serve, of which api_key, request_timeout and store_responses have no effect here;
    with --ray, --max-concurrency is that of each process.

    Examples:

      hierspec batch in.jsonl out.jsonl

      hierspec batch in.jsonl out.jsonl --ray --replicas 2 --model ./Llama-8B
    """
    from hierspec.utils.files import locked

    from .rendering import interruptible, notes
    from .serve import service_settings

    settings = service_settings(ctx.params, config, setting)  # refuses to go on without the extra
    from hierspec.server.batch.lines import read_lines
    from hierspec.server.batch.output import AnswersFile
    from hierspec.server.batch.writer import BatchRun

    settings = dataclasses.replace(  # for one client that waits as long as it takes, without a key
        settings,
        api_key=(),
        max_queue=max(settings.max_queue, max_concurrency * settings.max_choices),
        request_timeout=0.0,
        store_responses=0,
    )
    if input_file.resolve() == output_file.resolve():
        raise HierspecError("requests and answers must be two files")
    next(read_lines(input_file), None)  # one that cannot be read leaves no empty output behind
    console = notes()
    refusal = f"another batch is writing {output_file}: wait for it to end, or name another output"
    with (
        locked(output_file, "answers", refusal),
        AnswersFile(output_file) as output,
        interruptible(console),
    ):
        with _bar(console, f"batch {input_file.name}") as report:
            work = BatchRun(input_file, output, report)
            if work.num_left and ray:
                from hierspec.server.cluster.batch import run

                run(settings, work, max_concurrency, replicas)
            elif work.num_left:
                if replicas != 1:
                    raise HierspecError(
                        "--replicas goes with --ray: one process holds the models once"
                    )
                _answer_in_process(settings, work, max_concurrency, console)
        return _print_summary(work, console)


def _answer_in_process(
    settings: ServeSettings, work: BatchRun, max_concurrency: int, console: Console
) -> None:
    import asyncio

    from hierspec.server.app import create_app
    from hierspec.server.batch.writer import in_process_client, run
    from hierspec.utils.threads import use_threads

    from .rendering import warnings_as_notes

    use_threads(settings.threads)
    with warnings_as_notes(console):
        app = create_app(settings)

    async def answer() -> None:
        async with in_process_client(app) as client:
            await run(client, work, max_concurrency)

    asyncio.run(answer())


@contextmanager
def _bar(console: Console, title: str) -> Iterator[Callable[[BatchRun], None]]:
    from .rendering import progress

    with progress(console, title) as bar:
        last_tenth = -1

        def report(work: BatchRun) -> None:
            nonlocal last_tenth
            left, total, failures = work.num_left, work.total, work.output.num_failures
            tenth = 10 * (total - left) // total
            if console.is_terminal or tenth != last_tenth:  # elsewhere, a line for every tenth
                failed = f", {failures} failed" if failures else ""
                bar(f"{left} of {total} left{failed}", 1 - left / total)
            last_tenth = tenth

        yield report


def _print_summary(work: BatchRun, console: Console) -> int:
    from hierspec.utils.terminal import counted

    from .rendering import say

    output = work.output
    parts = [f"{counted(len(output.ids), 'answer')} in {output.path}"]
    if work.answered:
        parts.append(f"{len(work.answered)} of them were there already")
    if output.num_failures:
        parts.append(f"{output.num_failures} failed, the first: {output.first_failure}")
    say(console, "; ".join(parts))
    return 1 if output.num_failures else 0
