"""Peak memory of a method, on a run of its own that nobody times.

All methods of a bench share one process and most of its weights, so the process's own peak says
nothing about one of them. What counts for a method is the weights it needs (shared ones count for
each method that needs them) and by how much one run of it raises the resident set, or an
accelerator's allocations, above what was there before.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def rise(run: Callable[[], Any], device: str = "cpu") -> int | None:
    """Bytes by which ``run`` raises the peak; ``None`` where nobody can tell.

    On a CPU the kernel's high-water mark is reset first (``/proc/self/clear_refs``, Linux alone).
    Memory that an earlier run gave back to the allocator but not to the system is used again
    without a trace, so small figures are lower bounds.
    """
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        _CLEAR.write_text("5")  # resets VmHWM
        before_kib = _field("VmRSS")
    except OSError:
        return None
    run()
    return max(0, _field("VmHWM") - before_kib) * 1024


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"no {name} in {_STATUS}")
