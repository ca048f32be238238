"""A record of where something was measured, without the machine's name or paths."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from . import openmp

_ROOT = Path(__file__).resolve().parents[3]  # of a checkout; anything, where installed


def environment(**more: Any) -> dict[str, Any]:
    """Commit, versions, hardware and load; ``commit`` is empty outside a checkout."""
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


def load_average() -> list[float]:
    """Of 1, 5 and 15 minutes; empty where the system keeps none."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else []


def _commit() -> str:
    if not (_ROOT / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git
        return ""


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    lines = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, colon, value in lines if colon}
    flags = fields.get("flags", "").split()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    name = fields.get("model name", platform.processor() or platform.machine())
    return f"{name} family {fields.get('cpu family', '?')} ({', '.join(wide)})"
