"""``hierspec batch --ray``: the lines go through Ray Data, the answers come back to one writer.

Ray may ask twice, when a process dies with answers on it; the output takes each once, and a run
that is killed goes on like any other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from hierspec.server.batch.inprocess import InProcess
from hierspec.server.batch.lines import Line
from hierspec.server.batch.run import Pending, Writer, outcome
from hierspec.server.settings import ServeSettings

from .ray import connect, ray


class Answering:
    """A process of Ray Data with the models in it."""

    def __init__(self, values: Mapping[str, Any], at_once: int) -> None:
        from hierspec.server.app import create_app
        from hierspec.utils.threads import use_threads

        settings = ServeSettings(**values)
        use_threads(settings.threads)
        self.loop, self.at_once = asyncio.new_event_loop(), at_once
        self.service = self.loop.run_until_complete(InProcess(create_app(settings)).__aenter__())

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        return {"answer": self.loop.run_until_complete(self._all(list(batch["line"])))}

    async def _all(self, lines: list[str]) -> list[str]:
        slots = asyncio.Semaphore(self.at_once)

        async def one(text: str) -> str:
            async with slots:
                return (await outcome(self.service, Line(**json.loads(text)))).decode()

        return list(await asyncio.gather(*map(one, lines)))


def run(
    settings: ServeSettings,
    todo: Pending,
    writer: Writer,
    at_once: int,
    replicas: int,
    address: str | None = None,
) -> None:
    """Send every request that has no answer yet.

    Raises:
        HierspecError: Ray is not installed.
    """
    lines = [json.dumps(dataclasses.asdict(line)) for line in todo.lines()]
    connect(address)
    import ray.data as data  # type: ignore[import-not-found]

    try:
        data.DataContext.get_current().enable_progress_bars = False
        blocks = max(1, min(len(lines), max(2 * replicas, len(lines) // at_once)))
        asked = data.from_items([{"line": line} for line in lines], override_num_blocks=blocks)
        # More than there are would be waited for without end; on a cluster other machines may come.
        cores = settings.threads or 1
        cores = min(cores, os.cpu_count() or 1) if address is None else cores
        answers = asked.map_batches(
            Answering,
            fn_constructor_args=(dataclasses.asdict(settings), at_once),
            compute=data.ActorPoolStrategy(size=replicas),
            batch_size=None,
            num_cpus=cores,
        )
        for row in answers.iter_rows():
            writer.add(row["answer"].encode())
    finally:
        ray().shutdown()
