"""How many CPU threads torch uses, and how OpenMP's threads wait for their next task.

As many are used as requested, but one where a second does not pay. Where threads sleep while they
wait, waking them costs 10 µs and more, several times a layer: a two-layer model of width 192 takes
290 µs a token on one thread and 400 µs on two. Where they spin for a moment first, eight layers of
width 384 gain a sixth from the second thread.

How they wait is set before torch is loaded. A forward is some hundred parallel regions of 10 to
500 µs. Threads that sleep in between must be woken for each: 10 µs on some machines, 60 to 80 on a
virtual one whose idle cores are halted. Threads that never sleep starve each other as soon as
anything else runs on a machine with few cores: a forward can take a second. The compromise is to
spin for about as long as the slowest wake-up takes and then sleep, so that a wait costs at most
twice the optimum. 6000 spins are 60 µs where a pause takes 10 ns (measured by
``benchmarks/waiting.py``).

GNU OpenMP (torch's wheels on Linux) reads ``OMP_WAIT_POLICY`` and ``GOMP_SPINCOUNT`` once. Intel's
and LLVM's runtimes (torch from conda, on macOS, on Windows) ignore the latter and would only sleep:
nothing is set for them, and they are assumed not to spin.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError

PER_CPU = 8  # more never pay; thousands can crash the process
_SPINS = 6000
_PAUSE_HARD = 2  # omp_pause_hard: end the threads
_GNU, _OTHER_RUNTIMES = "libgomp", ("libiomp", "libomp", "vcomp")
_MAPS = Path("/proc/self/maps")
# Rough speed of one core on the machines we measured, per microsecond: bytes read from memory, and
# operations on few rows. Only the order of magnitude matters.
_BYTES, _OPERATIONS = 37e3, 250e3


def prepare() -> None:
    """Set that threads spin briefly, then sleep, unless the user's environment sets a policy.

    It takes effect only before torch is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ and is_gnu():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # the spin count takes precedence over it
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))


def end_threads() -> None:
    """End the worker threads of the calling thread; its next parallel region starts new ones.

    GNU's runtime counts all threads of a process, also the workers of an idle thread. Once there
    are more threads than processors, none of them spins any more: with models loaded in one thread
    and run in another a token takes 1.5 times as long (SmolLM2 on two cores). Starting new threads
    takes 0.1 ms. Calls within a parallel region have no effect.
    """
    for pause in _pause_functions():
        pause(_PAUSE_HARD)


@cache
def _pause_functions() -> tuple[Any, ...]:
    """Return ``omp_pause_resource_all`` of each GNU runtime in this process that has it."""
    functions = []
    for path in _loaded_runtimes():
        if path.rpartition("/")[2].startswith(_GNU):
            with contextlib.suppress(OSError, AttributeError):
                functions.append(ctypes.CDLL(path).omp_pause_resource_all)
    return tuple(functions)


def threads_spin() -> bool:
    """Return whether threads are known to spin before they sleep, and so start a task quickly."""
    if not is_gnu():
        return False
    count = os.environ.get("GOMP_SPINCOUNT")
    if count is not None:
        return count.strip() != "0"
    return os.environ.get("OMP_WAIT_POLICY", "").strip().upper() != "PASSIVE"


def is_gnu() -> bool:
    """Return whether torch's OpenMP runtime, the one loaded or else the one it ships, is GNU's.

    If neither is known, Linux is assumed to have GNU's. With two runtimes in one process (one
    preloaded, and torch's own) it is not known which of them torch calls, and the answer is no.
    """
    paths = _loaded_runtimes() if "torch" in sys.modules else frozenset()
    names = frozenset(path.rpartition("/")[2] for path in paths) or _shipped_runtimes()
    if any(name.startswith(_OTHER_RUNTIMES) for name in names):
        return False
    return any(name.startswith(_GNU) for name in names) or sys.platform == "linux"


def _loaded_runtimes() -> frozenset[str]:
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return _runtimes_among("/" + line.partition("/")[2] for line in lines if "/" in line)


@cache
def _shipped_runtimes() -> frozenset[str]:
    """Return the file names of the runtimes in torch's folder of libraries; torch is not loaded."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return frozenset()
    folder = Path(spec.origin).parent / "lib"
    return _runtimes_among(path.name for path in folder.glob("*omp*"))


def _runtimes_among(paths: Iterable[str]) -> frozenset[str]:
    prefixes = (_GNU, *_OTHER_RUNTIMES)
    return frozenset(path for path in paths if path.rpartition("/")[2].startswith(prefixes))


def settings() -> dict[str, str | None]:
    """Return the environment variables in force, for records of measurements."""
    return {name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}


def use_threads(threads: int | None) -> None:
    """Set torch's number of threads, unless it is ``None``; torch is not loaded to refuse a number.

    Raises:
        HierspecError: fewer than one, or more than ``PER_CPU`` for each processor here.
    """
    if threads is None:
        return
    cpus = os.cpu_count() or 1
    if not 1 <= threads <= PER_CPU * cpus:
        raise HierspecError(
            f"--threads must lie between 1 and {PER_CPU * cpus} here ({PER_CPU} for each of "
            f"{cpus} processors), not {threads}; leave it out for as many as pay"
        )
    import torch

    torch.set_num_threads(threads)


class OneThread:
    """A context in which torch uses one thread, if ``is_active``; then as many as it used before.

    torch keeps the count per thread. Only a thread that starts in the meantime and uses torch for
    the first time would inherit the 1; it can set its own.
    """

    __slots__ = ("is_active", "previous_count")

    def __init__(self, is_active: bool) -> None:
        self.is_active = is_active

    def __enter__(self) -> None:
        import torch

        self.previous_count = torch.get_num_threads() if self.is_active else 1
        if self.previous_count > 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        import torch

        if self.previous_count > 1:
            torch.set_num_threads(self.previous_count)


def is_small(num_weights: int, num_bytes: int, rows: int) -> bool:
    """Return whether multiplying ``rows`` rows by these weights is too short for threads to pay."""
    return num_bytes / _BYTES + 2 * rows * num_weights / _OPERATIONS < _min_microseconds()


@cache
def _min_microseconds() -> float:
    """Return how long a product takes at least that several threads speed up."""
    return 100.0 if threads_spin() else 250.0
