"""How many CPU threads torch uses."""

from __future__ import annotations

import os
from types import TracebackType

import torch

PER_CPU = 8  # more never pay; thousands end the process where the system has no room for them


def use(threads: int | None) -> None:
    """Let torch use so many threads; ``None`` leaves it as it is.

    Raises:
        ValueError: fewer than one, or more than ``PER_CPU`` for each processor here.
    """
    if threads is None:
        return
    cpus = os.cpu_count() or 1
    if not 1 <= threads <= PER_CPU * cpus:
        raise ValueError(
            f"--threads must lie between 1 and {PER_CPU * cpus} here ({PER_CPU} for each of "
            f"{cpus} processors), not {threads}; leave it out for as many as pay"
        )
    torch.set_num_threads(threads)


class Threads:
    """Within it, torch uses one thread if ``one``, and as many as before otherwise.

    torch keeps the count per thread. Only a thread that is started in the meantime, and that uses
    torch for the first time then, would inherit the 1; it may set its own.
    """

    __slots__ = ("before", "one")

    def __init__(self, one: bool) -> None:
        self.one = one

    def __enter__(self) -> None:
        self.before = torch.get_num_threads() if self.one else 1
        if self.before > 1:
            torch.set_num_threads(1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.before > 1:
            torch.set_num_threads(self.before)
