"""This machine: its devices, and records of where something was measured, without host names."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError

from . import openmp

_ROOT = Path(__file__).resolve().parents[3]  # of a checkout; anything, where installed


def environment(**more: Any) -> dict[str, Any]:
    """Return commit (empty outside a checkout), versions, hardware, load, and what is ``more``."""
    import torch

    names = ("hierspec", "torch", "transformers", "numpy")
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in names},
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **openmp.settings(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_average": load_average(),
        **more,
    }


def hardware(device: Any) -> dict[str, Any]:
    """Return the processor, threads and versions on which a call's time on ``device`` depends."""
    import torch
    import transformers

    return {
        "machine": platform.machine(),
        "processor": _cpuinfo().get("model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **openmp.settings(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "hierspec": metadata.version("hierspec").partition(".dev")[0],  # costs outlast a commit
    }


def device(name: str) -> Any:
    """Return the ``torch.device`` of a name; of ``auto`` a GPU if there is one, else the CPU.

    Raises:
        HierspecError: this machine has no such device, or it stores no data (``meta``).
    """
    import torch

    gpus = torch.cuda.device_count()
    try:
        found = torch.device(("cuda" if gpus else "cpu") if name == "auto" else name)
        if found.type == "cuda":  # without initialising it
            usable = (found.index or 0) < gpus
        else:
            torch.empty(0, device=found)
            usable = found.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError):
        usable = False
    if not usable:
        raise HierspecError(f"device {name!r} is not available here; try --device cpu")
    return found


def processor_features() -> frozenset[str]:
    """Return the processor's features by Linux's names (``avx2``, ``asimdhp``, …), else none."""
    fields = _cpuinfo()
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def load_average() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes; none where the system keeps none."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else []


def _commit() -> str:
    if not (_ROOT / ".git").exists():
        return ""
    # Changed results of earlier measurements, and changed pages, do not make the code dirty.
    code = ["--", "src", "benchmarks", ":(exclude)benchmarks/results"]
    try:
        name = _git("describe", "--always").stdout.strip()
        changed = _git("diff", "--quiet", "HEAD", *code).returncode == 1
    except OSError:  # no git
        return ""
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True)


def _cpu() -> str:
    fields = _cpuinfo()
    flags = fields.get("flags", "").split()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    name = fields.get("model name", platform.processor() or platform.machine())
    return f"{name} family {fields.get('cpu family', '?')} ({', '.join(wide)})"


def _cpuinfo() -> dict[str, str]:
    """Return the fields of the last processor in Linux's ``/proc/cpuinfo``; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, colon, value in parts if colon}


def available_memory() -> int:
    """Return the bytes left to a process on the machine, or in its container if that is less.

    Where the system does not report them, half of all memory.
    """
    found: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            found.append(max(0, int(limit) - used))
    except (OSError, KeyError, ValueError):
        pass
    return min(found, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
