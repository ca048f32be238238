"""A short hash of a model's files, which shows whether a model is still the same."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from . import registry
from .gguf import smollm2_file

_EDGE = 1 << 16  # bytes read at both ends of a file: a whole checkpoint takes too long
_PATTERNS = (  # the files that define a model, among others in its folder
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
_HEADS = ("exit_heads.safetensors", "acceptance_head.safetensors")  # beside a model


def compute(name: str) -> str:
    """Return a short hash of a model's files: their names, sizes, and both ends of each.

    Of a directory only weights, configurations and the tokenizer count. A model whose files are not
    here, such as a hub id that is not in the local cache, has the hash of its name.

    Args:
        name: a directory, ``zoo:NAME`` or a hub id.
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


def is_local(name: str) -> bool:
    """Return whether a model's files are here; else its hash is that of its name."""
    return _folder(name) is not None


def compute_if_local(name: str) -> str | None:
    """Return :func:`compute` of a model whose files are here; ``None`` for others."""
    return compute(name) if is_local(name) else None


def _files(folder: Path) -> list[Path]:
    matching = {file for pattern in _PATTERNS for file in folder.glob(pattern)}
    # Heads trained on a model may be in its folder, and are no part of it.
    return sorted(f for f in matching if f.is_file() and f.name not in _HEADS)


def _folder(name: str) -> Path | None:
    if name.startswith(registry.PREFIX):
        known = name.removeprefix(registry.PREFIX).partition("?")[0]
        if known == "ngram":
            return registry.DATA / "ngram.safetensors"
        if known == registry.SMOLLM2:
            return smollm2_file()
        return registry.DATA / ("trunk" if known == "large" else known)
    if Path(name).exists():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:  # not a hub id, or not here
        return None
