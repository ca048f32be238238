"""This machine: its devices, its memory, and records of where a measurement was made."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError

from . import threads

_WIDE_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_ROOT = Path(__file__).resolve().parents[3]  # of a checkout; meaningless where installed


def environment(**extra: Any) -> dict[str, Any]:
    """Return commit (empty outside a checkout), versions, hardware and load, with ``extra`` added.

    Host names are left out.
    """
    import torch

    names = ("hierspec", "torch", "transformers", "numpy")
    return {
        "commit": _git_commit(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in names},
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **threads.settings(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_average": load_average(),
        **extra,
    }


def hardware(device: Any) -> dict[str, Any]:
    """Return the processor, threads and versions on which a call's time on ``device`` depends."""
    import torch
    import transformers

    return {
        "machine": platform.machine(),
        "processor": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **threads.settings(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        # Without the commit: costs stay the same from one to the next.
        "hierspec": _version("hierspec").partition(".dev")[0],
    }


def device(name: str) -> Any:
    """Return the ``torch.device`` of a name; for ``auto`` a GPU if there is one, else the CPU.

    Raises:
        HierspecError: this machine has no such device, or it stores no data (``meta``).
    """
    import torch

    gpus = torch.cuda.device_count()
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
    fields = _cpuinfo()
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def load_average() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes; ``[]`` where the system has none."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else []


def _version(package: str) -> str:
    """Return a package's version; ``0+unknown`` for one that runs from a folder of sources."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0+unknown"


def _git_commit() -> str:
    if not (_ROOT / ".git").exists():
        return ""
    # Changed results of earlier measurements, and changed pages, do not make the code dirty.
    code = ["--", "src", "benchmarks", ":(exclude)benchmarks/results"]
    try:
        name = _git("describe", "--always").stdout.strip()
        is_dirty = _git("diff", "--quiet", "HEAD", *code).returncode == 1
    except OSError:  # no git
        return ""
    return f"{name}-dirty" if is_dirty else name


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True)


def _cpu() -> str:
    flags = [flag for flag in _WIDE_FLAGS if flag in processor_features()]
    return f"{_cpu_name()} family {_cpuinfo().get('cpu family', '?')} ({', '.join(flags)})"


def _cpu_name() -> str:
    return _cpuinfo().get("model name", platform.processor() or platform.machine())


def _cpuinfo() -> dict[str, str]:
    """Return the fields of the last processor in Linux's ``/proc/cpuinfo``; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, colon, value in parts if colon}


def available_memory() -> int:
    """Return the bytes available to a process here: the machine's, or its container's if fewer.

    Where the system does not report them, return half of all memory.
    """
    limits: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
        container_limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if container_limit != "max":
            limits.append(max(0, int(container_limit) - used))
    except (OSError, KeyError, ValueError):
        pass
    return min(limits, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def give_back_memory() -> None:
    """Return freed heap pages to the system (glibc keeps them; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
