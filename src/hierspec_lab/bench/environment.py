"""Where a measurement was made: commit, versions, hardware and load."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from hierspec.utils import threads
from hierspec.utils.machine import (
    load_average,
    package_version,
    processor_features,
    processor_fields,
    processor_name,
)

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
        | {name: package_version(name) for name in names},
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **threads.settings(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_average": load_average(),
        **extra,
    }


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
    family = processor_fields().get("cpu family", "?")
    return f"{processor_name()} family {family} ({', '.join(flags)})"
