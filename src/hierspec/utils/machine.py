"""This machine: its devices, its memory, and what times depend on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError

from . import threads


def hardware(device: Any) -> dict[str, Any]:
    """Return the processor, threads and versions on which a call's time on ``device`` depends."""
    import torch

    return {
        "machine": platform.machine(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **threads.settings(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": package_version("transformers"),  # to import it takes a second
        # Without the commit: costs stay the same from one to the next.
        "hierspec": package_version("hierspec").partition(".dev")[0],
    }


def device(name: str) -> Any:
    """Return the ``torch.device`` of a name; for ``auto`` a GPU if there is one, else the CPU.

    Raises:
        HierspecError: this machine has no such device, or it stores no data (``meta``).
    """
    import torch

    gpus = torch.cuda.device_count()
    if gpus and not torch.cuda.is_available():  # as with a driver that is too old for torch
        gpus = 0
    try:
        device = torch.device(("cuda" if gpus else "cpu") if name == "auto" else name)
        if device.type == "cuda":  # without initialising it
            usable = (device.index or 0) < gpus
        else:
            torch.empty(0, device=device)
            usable = device.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError):
        usable = False
    if not usable:
        raise HierspecError(f"device {name!r} is not available here; try --device cpu")
    return device


def processor_features() -> frozenset[str]:
    """Return the processor's features by Linux's names (``avx2``, …); none on other systems."""
    fields = processor_fields()
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def load_average() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes; ``[]`` where the system has none."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else []


def package_version(package: str) -> str:
    """Return a package's version; ``0+unknown`` for one that runs from a folder of sources."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0+unknown"


def processor_name() -> str:
    """Return the processor's name, as far as the system tells it."""
    return processor_fields().get("model name", platform.processor() or platform.machine())


def processor_fields() -> dict[str, str]:
    """Return the fields of the last processor in Linux's ``/proc/cpuinfo``; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, colon, value in parts if colon}


def available_memory() -> int:
    """Return the bytes available to a process here: the machine's, or its container's if fewer.

    Files that a container has read count as used there until their memory is needed; here they do
    not.

    Where the system does not report them, return half of all memory.
    """
    limits: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
        container_limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if container_limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            with contextlib.suppress(OSError, KeyError, ValueError):
                kinds = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
                used -= int(dict(line.split(maxsplit=1) for line in kinds)["inactive_file"])
            limits.append(max(0, int(container_limit) - used))
    except (OSError, KeyError, ValueError):
        pass
    return min(limits, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def give_back_memory() -> None:
    """Return freed heap pages to the system (glibc keeps them; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
