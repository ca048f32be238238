"""How many CPU threads torch uses: as many as asked for, but one where a second does not pay.

Where threads sleep while they wait (:mod:`hierspec.utils.openmp`), handing work over costs 10 µs
and more, several times a layer: a two-layer model of width 192 takes 290 µs a token on one thread
and 400 µs on two. Where they spin for a moment first, eight layers of width 384 gain a sixth from
the second thread.
"""

from __future__ import annotations

import os

from hierspec.errors import HierspecError

from .openmp import threads_spin

PER_CPU = 8  # more never pay; thousands can crash the process


def use_threads(threads: int | None) -> None:
    """Set torch's number of threads, unless it is ``None``; a wrong number does not load torch.

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
    """A context in which torch uses one thread if ``when``; afterwards it uses as many as before.

    torch keeps the count per thread. Only a thread that starts meanwhile and uses torch for the
    first time would inherit the 1; it can set its own.
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


# Rough speed of one core on the machines we measured: bytes streamed, and operations with few
# rows, per microsecond. Only the order of magnitude matters.
_BYTES, _OPERATIONS = 37e3, 250e3
_WORTH_MICROSECONDS = 100.0 if threads_spin() else 250.0


def is_small(num_weights: int, num_bytes: int, rows: int) -> bool:
    """Tell whether multiplying ``rows`` rows by these weights is too short for threads to pay."""
    return num_bytes / _BYTES + 2 * rows * num_weights / _OPERATIONS < _WORTH_MICROSECONDS
