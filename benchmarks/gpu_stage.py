"""What the stages of ``gpu_once.py`` share: options, deadline, file, and how work is timed."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KIND, SCHEMA_VERSION = "hierspec-gpu", 1
TINY = "tiny"
SECONDS = {"env": 30, "tests": 150, "micro": 100, "family": 240, "summary": 20}  # at most


@dataclass
class Stage:
    """A stage at work: its options, its deadline, and its file, written after every measurement."""

    name: str
    options: argparse.Namespace
    deadline: float
    runs: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    finished: bool = False

    @property
    def cuda(self) -> bool:
        return self.options.device.startswith("cuda")

    @property
    def tiny(self) -> bool:
        return self.options.size == TINY

    def left(self) -> float:
        """Return the seconds until this stage must have ended."""
        return self.deadline - time.monotonic()

    def add(self, **run: Any) -> None:
        """Add a measurement, and write the file."""
        self.runs.append(run)
        self.write()

    def attempt(self, what: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Add what ``measure`` returns, or its error, with which the stage goes on."""
        try:
            found = measure()
        except Exception as error:
            self.add(what=what, error=in_one_line(error))
        else:
            self.add(what=what, **found)

    def write(self) -> None:
        from hierspec_lab.bench.environment import environment

        if not self.environment:
            self.environment = environment()
            self.environment["commit"] = self.options.commit or self.environment["commit"]
        write(
            self.options.output / f"gpu-{self.name}.json",
            {
                "schema_version": SCHEMA_VERSION,
                "kind": KIND,
                "stage": self.name,
                "finished": self.finished,
                "environment": self.environment,
                "settings": {"device": self.options.device, "size": self.options.size}
                | self.settings,
                "runs": self.runs,
            },
        )


def in_one_line(error: Exception) -> str:
    traceback.print_exception(error)  # into the log
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a document whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(temporary, path)


def milliseconds(stage: Stage, work: Callable[[], object], repeats: int, warm_up: int) -> float:
    """Return the median wall time of some work in ms, the device waited for."""
    import torch

    wait = torch.cuda.synchronize if stage.cuda else lambda: None
    times = []
    for turn in range(warm_up + repeats):
        wait()
        began = time.perf_counter()
        work()
        wait()
        if turn >= warm_up:
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def free(stage: Stage) -> None:
    """Give memory back that nothing holds."""
    import gc

    import torch

    gc.collect()
    if stage.cuda:
        torch.cuda.empty_cache()
