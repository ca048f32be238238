"""Short hashes of a model's files, which show whether two models are the same."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from hierspec.lm.hub import fetch
from hierspec.utils.files import expand_user

from . import registry
from .content import content_hash
from .gguf.files import shards

_PATTERNS = (  # the files in a folder that define its model
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
_HEADS = ("exit_heads.safetensors", "acceptance_head.safetensors")  # not part of the model
_DIGITS = 20


def compute(name: str) -> str:
    """Return a short hash of a model's files: their names, and all that is in them.

    In a directory these are the weights, the configurations and the tokenizer. For a model whose
    files are not on this machine, such as a hub id that is not in the local cache, return a hash of
    its name.

    Args:
        name: a directory, ``FILE.gguf``, ``zoo:NAME`` or a hub id.

    Raises:
        HierspecError: what ``zoo:NAME`` is made of does not ship, or is not installed.
    """
    digest = hashlib.sha256()
    path = _local_path(name)
    if name.startswith("zoo:"):
        digest.update(urlsplit(name).query.encode())
    if path is None:
        digest.update(name.encode())
        return digest.hexdigest()[:_DIGITS]
    for file in shards(path) if path.is_file() else _files(path):
        digest.update(f"{file.name} {file.stat().st_size} ".encode())
        digest.update(content_hash(file).encode())
    return digest.hexdigest()[:_DIGITS]


def is_local(name: str) -> bool:
    """Return whether a model's files are on this machine; if not, its hash is that of its name."""
    return _local_path(name) is not None


def compute_if_local(name: str) -> str | None:
    """Return :func:`compute` of a model whose files are on this machine; ``None`` for others."""
    return compute(name) if is_local(name) else None


def _files(folder: Path) -> list[Path]:
    matching = {file for pattern in _PATTERNS for file in folder.glob(pattern)}
    return sorted(f for f in matching if f.is_file() and f.name not in _HEADS)


def _local_path(name: str) -> Path | None:
    if name.startswith(registry.PREFIX):
        if name == registry.SMOLLM2_16BIT:
            return registry.open_smollm2_16bit().path
        entry = registry.installed(name)
        return entry.files() if entry else None
    if (path := expand_user(name)).exists():
        return path
    try:
        folder = fetch(name, local_files_only=True)
    except Exception:  # not a hub id, or not in the local cache
        return None
    return folder if any(folder.glob("*.safetensors")) else None  # or it is there in part
