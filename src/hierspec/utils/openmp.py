"""How OpenMP's threads wait for their next piece of work. To be decided before torch is loaded.

A forward is some hundred parallel regions of 10 to 500 µs. Threads that sleep in between must be
woken for each: 10 µs on some machines, 60 to 80 on a virtual one whose idle cores are halted.
Threads that never sleep starve each other as soon as anything else runs on a machine with few
cores: a forward can take a second. Between the two: spin for about as long as the slowest wake
takes, then sleep, so that a wait costs at most twice what is best. 6000 spins are 60 µs where a
pause takes 10 ns (measured by ``benchmarks/waiting.py``).

GNU OpenMP (torch's wheels on Linux) reads these variables once. Intel's and LLVM's runtimes (torch
from conda, on macOS, on Windows) ignore ``GOMP_SPINCOUNT`` and would only sleep: nothing is set
for them, and they are not taken to spin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_SPINS = 6000
_GNU, _OTHERS = "libgomp", ("libiomp", "libomp", "vcomp")
_MAPS = Path("/proc/self/maps")


def prepare() -> None:
    """Set what the user has not: a short spin, then sleep. Without effect once torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ and is_gnu():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # the count below takes precedence
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))


def spins() -> bool:
    """Whether threads are known to spin before they sleep, so that handing work over is cheap."""
    if not is_gnu():
        return False
    count = os.environ.get("GOMP_SPINCOUNT")
    if count is not None:
        return count.strip() != "0"
    return os.environ.get("OMP_WAIT_POLICY", "").strip().upper() != "PASSIVE"


def is_gnu() -> bool:
    """Whether torch's OpenMP runtime is GNU's: of what is loaded, else of what torch comes with.

    Where neither tells, Linux is taken to have GNU's. With two runtimes in one process (a
    preloaded one beside torch's own) it is not known which of them torch calls: not GNU's.
    """
    names = (_loaded() if "torch" in sys.modules else frozenset()) or _shipped()
    if any(name.startswith(_OTHERS) for name in names):
        return False
    return any(name.startswith(_GNU) for name in names) or sys.platform == "linux"


def _loaded() -> frozenset[str]:
    """File names of the OpenMP runtimes in this process; empty where the system does not tell."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return _runtimes(line.rpartition("/")[2] for line in lines if "/" in line)


@cache
def _shipped() -> frozenset[str]:
    """File names of the runtimes in torch's folder of libraries. torch is not loaded for it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return frozenset()
    folder = Path(spec.origin).parent / "lib"
    return _runtimes(path.name for path in folder.glob("*omp*"))


def _runtimes(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if name.startswith((_GNU, *_OTHERS)))


def settings() -> dict[str, str | None]:
    """The variables as they stand, for records of what was measured."""
    return {name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
