"""How many CPU threads torch uses."""

from __future__ import annotations

import os

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
    import torch

    torch.set_num_threads(threads)
