"""How OpenMP's threads wait for their next piece of work. To be decided before torch is loaded.

A forward is some hundred parallel regions of 10 to 500 µs. Threads that sleep in between (passive
waiting) must be woken for each, which takes longer than many a region; threads that never sleep
starve each other as soon as anything else runs on a machine with few cores: a forward can take a
second. Between the two: spin for about 10 µs, then sleep. On two Zen 5 cores a check of 12 tokens
by a model of 116 M parameters takes 17.0 ms asleep and 12.8 ms so; with two such processes at once
20.9 and 26.8 ms, and 37.8 ms with four times the spinning (``benchmarks/waiting.py``).

GNU OpenMP (torch's on Linux) reads these variables once; others ignore ``GOMP_SPINCOUNT``.
"""

from __future__ import annotations

import os

_SPINS = 1000


def prepare() -> None:
    """Set what the user has not: a short spin, then sleep. Without effect once torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # the count below takes precedence
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))


def spins() -> bool:
    """Whether threads spin before they sleep, so that handing work over is cheap."""
    count = os.environ.get("GOMP_SPINCOUNT")
    if count is not None:
        return count.strip() != "0"
    return os.environ.get("OMP_WAIT_POLICY", "").strip().upper() != "PASSIVE"


def settings() -> dict[str, str | None]:
    """The variables as they stand, for records of what was measured."""
    return {name: os.environ.get(name) for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
