"""How many CPU threads torch uses: as many as asked for, and one where a second does not pay.

Where threads sleep while they wait (:mod:`hierspec.utils.openmp`), a hand-over costs 10 µs and
more, and a layer has several: a two-layer model of width 192 takes 290 µs a token on one thread
and 400 µs on two. Where they spin for a moment first, eight layers of width 384 gain a sixth from
the second.
"""

from __future__ import annotations

import os

from hierspec.errors import HierspecError

from .openmp import threads_spin

PER_CPU = 8  # more never pay; thousands end the process where the system has no room for them


def use_threads(threads: int | None) -> None:
    """Let torch use so many threads; ``None`` leaves it as it is. A wrong number loads no torch.

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
    """Within it, torch uses one thread if ``when``; afterwards as many as before, in any case.

    torch keeps the count per thread. Only a thread that is started in the meantime, and that uses
    torch for the first time then, would inherit the 1; it may set its own.
    """

    __slots__ = ("before", "when")

    def __init__(self, when: bool) -> None:
        self.when = when

    def __enter__(self) -> None:
        import torch

        self.before = torch.get_num_threads() if self.when else 1
        if self.before > 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        import torch

        if self.before > 1:
            torch.set_num_threads(self.before)


# One core's share of a layer, roughly, on the machines we have seen: bytes streamed and
# multiply-adds of few rows, per microsecond. Only the order of magnitude matters.
_BYTES, _OPERATIONS = 37e3, 250e3
_WORTH_MICROSECONDS = 100.0 if threads_spin() else 250.0


def is_small(num_weights: int, num_bytes: int, rows: int) -> bool:
    """Whether products of ``rows`` rows with these weights are over before threads pay."""
    return num_bytes / _BYTES + 2 * rows * num_weights / _OPERATIONS < _WORTH_MICROSECONDS
