"""``hierspec doctor``: versions, devices and settings of this machine, and its fast paths."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils import threads
from hierspec.utils.machine import processor_features

from .options import AsJson


def doctor(as_json: AsJson = False) -> int:
    """Show what hierspec finds here: versions, devices, threads, caches, fast paths."""
    sections = examine()
    if as_json:
        print(json.dumps(sections, indent=2))
        return 0
    for section, values in sections.items():
        print(section.replace("_", " "))
        for key, value in values.items():
            print(f"  {key.replace('_', ' '):<24} {value}")
    return 0


def examine() -> dict[str, dict[str, Any]]:
    """Return versions, hardware, threads, caches, fast paths and the shipped models."""
    import torch

    from hierspec.lm import dtypes
    from hierspec.lm.native import compiler, library
    from hierspec.utils.files import cache_folder
    from hierspec.zoo import registry

    try:
        profiles = cache_folder("profiles")
        profile_cache = f"{profiles} ({len(list(profiles.glob('*.json')))} kept)"
    except (HierspecError, OSError) as error:
        profile_cache = str(error)
    models = {name: entry.description for name, entry in registry.entries().items()}
    family = registry.installed(registry.DEFAULT_TARGET)
    data = "found" if family and family.files().exists() else "no code family"
    names = ("hierspec", "torch", "transformers", "tokenizers", "safetensors", "numpy")
    devices = {"cpu": f"{platform.machine()}, {os.cpu_count()} cores"}
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            devices[f"cuda:{i}"] = torch.cuda.get_device_name(i)
    else:
        devices["cuda"] = "none"
    bits_of_files = f"{dtypes.describe()}; with a C compiler in their own bits"
    has_kernels = library.load() is not None
    if has_kernels:
        found = compiler.find()
        tiles = ", several rows on AMX's tiles" if found and found.has_tiles else ""
        threads_of = "" if found and found.has_threads else ", on one thread: no OpenMP"
        kernels = f"compiled kernels{_instructions()}{tiles}{threads_of}"
        bits_of_files = "their own bits, in the compiled kernels"
    else:
        kernels = f"torch's operations, which are slower: {library.why_none()}"
    return {
        "versions": {"python": platform.python_version(), **{n: _version(n) for n in names}},
        "devices": devices,
        "threads": {
            "torch": torch.get_num_threads(),
            **{name: value or "unset" for name, value in threads.settings().items()},
        },
        "fast_paths": dict.fromkeys(("Llama-shaped models on CPUs", "int8 copies"), kernels),
        "dtype_auto_on_cpu": {
            f"{name} checkpoints run in": dtypes.describe(getattr(torch, name), has_kernels)
            for name in ("bfloat16", "float16")
        }
        | {"Llama-shaped GGUF files run in": bits_of_files},
        "caches": {
            "hub": os.environ.get("HF_HOME", "~/.cache/huggingface"),
            "hub_offline": os.environ.get("HF_HUB_OFFLINE", "0") == "1",
            "profiles": profile_cache,
        },
        "zoo": {"data": data} | models,
    }


def _instructions() -> str:
    """Return what the kernels are compiled for, as far as the system tells it."""
    features = processor_features()
    for feature, name in (("avx512bw", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")):
        if feature in features:
            vnni = ", VNNI" if features & {"avx512_vnni", "avx_vnni"} else ""
            return f" ({name}{vnni})"
    return ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
