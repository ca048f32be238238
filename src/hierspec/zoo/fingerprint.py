"""Which weights: a short hash that tells whether a model is still the one it was."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

from . import registry
from .gguf import smollm2_file

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
_HEADS = ("exit_heads.safetensors", "acceptance_head.safetensors")  # beside a model


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


def of(name: str) -> str | None:
    """:func:`weights` of a model whose files are here; ``None`` where only its name is known."""
    return weights(name) if found(name) else None


def _files(folder: Path) -> list[Path]:
    matching = {file for pattern in _PATTERNS for file in folder.glob(pattern)}
    # Heads trained on a model may lie beside it, and are no part of it.
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
    except Exception:  # not a hub id, or not here: the name is all there is
        return None
