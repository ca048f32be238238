"""``hierspec batch --ray``: Ray Data sends the lines to processes, and one writer gets the answers.

Ray repeats requests when a process dies before its answers are fetched; the output takes each
answer once, and a run that was killed continues like any other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from hierspec.server.batch.lines import Line
from hierspec.server.batch.writer import BatchRun, answer_request, in_process_client
from hierspec.server.settings import ServeSettings

from .ray import connect, ray


class BatchWorker:
    """A process of Ray Data with the models in it."""

    def __init__(self, settings_fields: Mapping[str, Any], max_concurrency: int) -> None:
        from hierspec.server.app import create_app
        from hierspec.utils.threads import use_threads

        settings = ServeSettings(**settings_fields)
        use_threads(settings.threads)
        self.loop, self.max_concurrency = asyncio.new_event_loop(), max_concurrency
        self.context = in_process_client(create_app(settings))
        self.client = self.loop.run_until_complete(self.context.__aenter__())

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        return {"answer": self.loop.run_until_complete(self._answer(batch["line"]))}

    async def _answer(self, lines: Iterable[str]) -> list[str]:
        slots = asyncio.Semaphore(self.max_concurrency)

        async def answer_line(line: str) -> str:
            async with slots:
                return (await answer_request(self.client, Line(**json.loads(line)))).decode()

        return await asyncio.gather(*map(answer_line, lines))


def run(
    settings: ServeSettings,
    batch: BatchRun,
    max_concurrency: int,
    replicas: int,
    address: str | None = None,
) -> None:
    """Send every request of a batch that has no answer yet."""
    lines = [json.dumps(dataclasses.asdict(line)) for line in batch.lines()]
    connect(address)
    import ray.data as data  # type: ignore[import-not-found]

    try:
        data.DataContext.get_current().enable_progress_bars = False
        blocks = max(1, min(len(lines), max(2 * replicas, len(lines) // max_concurrency)))
        requests = data.from_items([{"line": line} for line in lines], override_num_blocks=blocks)
        cores = settings.threads or 1
        if address is None:  # Ray would wait forever for more cores; a cluster may still grow
            cores = min(cores, os.cpu_count() or 1)
        answers = requests.map_batches(
            BatchWorker,
            fn_constructor_args=(dataclasses.asdict(settings), max_concurrency),
            compute=data.ActorPoolStrategy(size=replicas),
            batch_size=None,
            num_cpus=cores,
        )
        for row in answers.iter_rows():
            batch.add(row["answer"].encode())
    finally:
        ray().shutdown()
