"""How many CPU threads torch uses: as many as requested, but one where a second does not pay.

Where threads sleep while they wait (:mod:`hierspec.utils.openmp`), waking them costs 10 µs and
more, several times a layer: a two-layer model of width 192 takes 290 µs a token on one thread and
400 µs on two. Where they spin for a moment first, eight layers of width 384 gain a sixth from the
second thread.
"""

from __future__ import annotations

import os

from hierspec.errors import HierspecError

from .openmp import threads_spin

PER_CPU = 8  # more never pay; thousands can crash the process


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


# Rough speed of one core on the machines we measured, per microsecond: bytes read from memory, and
# operations on few rows. Only the order of magnitude matters.
_BYTES, _OPERATIONS = 37e3, 250e3
_MIN_MICROSECONDS = 100.0 if threads_spin() else 250.0  # of a product that several threads speed up


def is_small(num_weights: int, num_bytes: int, rows: int) -> bool:
    """Tell whether multiplying ``rows`` rows by these weights is too short for threads to pay."""
    return num_bytes / _BYTES + 2 * rows * num_weights / _OPERATIONS < _MIN_MICROSECONDS
