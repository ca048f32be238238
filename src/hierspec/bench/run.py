"""One bench at a time on a results file.

The whole bench: tune, measure in turns, check; written down after every round of prompts.

A *cell* is what is measured at one temperature. Its methods are first arranged (configurations
found, tuned where there is a choice), then all of them take turns on every prompt, then their
outputs are checked and summed up, which nobody times. Each stage leaves its mark in the file, so
that the same command goes on where an interrupted one was.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hierspec.bench.methods.catalogue import PLAIN
from hierspec.bench.methods.entry import Entry
from hierspec.bench.methods.ours import Models
from hierspec.errors import HierspecError
from hierspec.profiling.settings import Report
from hierspec.utils.files import probe

from . import results
from . import roofline as floor
from .cell import Cell
from .tuning import plain as as_json
from .turns import tuning_notes, whole_batches


@contextlib.contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Keep other benches off a results file, by a lock on ``.NAME.lock`` beside it.

    The system frees the lock of a process that ends, however it ends: the empty file that a killed
    one leaves behind keeps nobody off. What is no file (``/dev/null``, a pipe) is not locked.

    Raises:
        ValueError: another process holds it, or the folder cannot be written to.
    """
    if path is None or (path.exists() and not path.is_file()):
        yield
        return
    probe(path, "results")
    real = path.resolve()
    lock = FileLock(real.with_name(f".{real.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise HierspecError(
            f"another bench is writing {path}: wait for it to end, or choose another -o"
        ) from None
    except OSError as error:
        raise HierspecError(f"cannot lock {path}: {error.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # some systems keep files that are open
            Path(lock.lock_file).unlink()  # while held: who has just opened it tries again
        lock.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What makes two benches the same; ``settings`` of the results file.

    Attributes:
        methods: names, plain decoding among them.
        tune_tokens: written after each tuning prompt.
        prompts: ``file`` and ``sha256``.
    """

    target: str
    dtype: str = "auto"
    device: str = "auto"
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = (PLAIN,)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 128
    num_prompts: int = 16
    tune_prompts: int = 4
    tune_tokens: int = 64
    seed: int = 0
    batch_size: int = 1
    prompts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return as_json(dataclasses.asdict(self))


@dataclass(slots=True, eq=False)
class Bench:
    """Models, prompts and the results so far.

    Attributes:
        entries: methods, plain decoding among them.
        measured: prompts that count, as token ids, and ``tuning``: others.
        categories: of the measured prompts, where they have some.
        data: the results object, new or of an interrupted run; changed as the bench goes on.
        path: where it is written; ``None``: nowhere.
        report: told what is being done, and the share of all work that is done.
    """

    models: Models
    settings: Settings
    entries: Sequence[Entry]
    measured: Sequence[Sequence[int]]
    tuning: Sequence[Sequence[int]]
    data: dict[str, Any]
    categories: Sequence[str] = ()
    path: Path | None = None
    report: Report = lambda stage, share: None

    def run(self) -> dict[str, Any]:
        """Measure all cells and return the results object.

        Raises:
            ValueError: plain decoding itself cannot run, the prompts are no whole number of
                batches, or the file cannot be written.
        """
        whole_batches(len(self.measured), self.settings.batch_size)
        for note in tuning_notes(len(self.tuning), self.settings.batch_size):
            if note not in self.data["notes"]:
                self.data["notes"].append(note)
        self.report("reading memory for the floor of plain decoding", 0.0)
        self.sample_floor()
        for number, temperature in enumerate(self.settings.temperatures):
            Cell(self, temperature, number / len(self.settings.temperatures)).run()
        self.data["finished"] = True
        self.save()
        self.report("done", 1.0)
        return self.data

    def sample_floor(self) -> None:
        """One more reading of memory; never between runs that are timed."""
        size, before = self.settings.batch_size, self.data["floor"]
        self.data["floor"] = floor.floor(self.models, size, before)

    def save(self) -> None:
        if self.path is not None:
            results.write(self.path, self.data)
