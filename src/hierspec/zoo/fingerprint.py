"""What a measurement holds for: this hardware, these versions, these weights."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hierspec import __version__
from hierspec.errors import HierspecError
from hierspec.utils import openmp

_EDGE = 1 << 16  # bytes read at both ends of a file: a whole checkpoint takes too long
_PATTERNS = (  # what makes a model what it is, among all that may lie beside it
    "*.safetensors",
    "*.bin",
    "*.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "*.model",
    "vocab*",
    "merges*",
)


def hardware(device: Any) -> dict[str, Any]:
    """Processor, threads and versions, as far as they change what a call costs."""
    import torch
    import transformers

    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **openmp.settings(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "hierspec": __version__,
    }


def device(name: str) -> Any:
    """The device that a target names; ``auto``: an accelerator if there is one.

    Raises:
        ValueError: it is not here.
    """
    import torch

    count = torch.cuda.device_count()
    try:
        found = torch.device(("cuda" if count else "cpu") if name == "auto" else name)
    except RuntimeError:
        found = None
    if found is None or (found.type == "cuda" and (found.index or 0) >= count):
        raise HierspecError(f"device {name!r} is not available here; try --device cpu")
    return found


def weights(name: str) -> str:
    """A short hash of a model's files: their names, sizes, and both ends of each.

    Of a directory only weights, configurations and the tokenizer count.

    ``name`` is a directory, ``zoo:NAME`` or a hub id; of a hub id only the name counts, unless it
    is in the local cache.
    """
    digest = hashlib.sha256()
    path = _folder(name)
    if name.startswith("zoo:"):
        digest.update(urlsplit(name).query.encode())
    if path is None:
        digest.update(name.encode())
        return digest.hexdigest()[:16]
    for file in [path] if path.is_file() else _files(path):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_EDGE))
            stream.seek(max(size - _EDGE, 0))
            digest.update(stream.read(_EDGE))
    return digest.hexdigest()[:16]


def found(name: str) -> bool:
    """Whether a model's files are here; else its hash is that of its name."""
    return _folder(name) is not None


def differences(measured: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What is not as it was, in words; empty where all is equal."""
    return [
        f"{key} was {measured.get(key)!r}, here it is {here.get(key)!r}"
        for key in here
        if measured.get(key) != here.get(key)
    ]


def key(value: Any) -> str:
    """A name for a file, from anything that can be written as JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _files(folder: Path) -> list[Path]:
    matching = {file for pattern in _PATTERNS for file in folder.glob(pattern)}
    # Heads trained on a model may lie beside it, and are no part of it.
    return sorted(f for f in matching if f.is_file() and f.name != "exit_heads.safetensors")


def _folder(name: str) -> Path | None:
    from . import registry

    if name.startswith(registry.PREFIX):
        known = name.removeprefix(registry.PREFIX).partition("?")[0]
        if known == "ngram":
            return registry.DATA / "ngram.safetensors"
        return registry.DATA / ("trunk" if known == "large" else known)
    if Path(name).exists():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # not a hub id, or not here: the name is all there is
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
