"""GGUF files as checkpoints: dequantized once into bfloat16 safetensors in the user's cache.

The result is a folder in Hugging Face's format, which is loaded like any other. A folder is
complete or does not exist, even if several processes convert the same file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from filelock import FileLock

from hierspec.errors import HierspecError
from hierspec.utils.documents import read_json
from hierspec.utils.files import cache_folder
from hierspec.utils.records import Record
from hierspec.zoo.content import content_hash

from .config import architecture_of, read_config
from .files import check_file, shards
from .header import Header, read_header
from .tokenizer import Vocabulary, build_tokenizer
from .weights import check_package, factors, parameters

FORMAT = 2  # version of converted folders, raised when the conversion changes
_LOG = logging.getLogger(__name__)
_MANIFEST = "conversion.json"  # the last file written: the source of the folder, and its checksums


def convert(path: str | Path, report: Callable[[str], None] = _LOG.warning) -> Path:
    """Convert a GGUF file on first use, which takes some seconds, and return the model's folder.

    Args:
        path: of the file, or of the first of several parts.
        report: called with a message when a conversion starts.

    Raises:
        HierspecError: there is no such file, it is damaged, its architecture, tokenizer or
            quantization is not supported, the ``gguf`` package is missing, or there is no space for
            the result.
    """
    path = Path(path)
    check_file(path)
    digest = hashlib.sha256(f"{FORMAT} ".encode())
    for file in shards(path):
        digest.update(content_hash(file).encode())
    folder = cache_folder("models") / f"{path.stem}-{digest.hexdigest()[:16]}"
    if _is_complete(folder):
        return folder
    header = read_header(path)
    architecture_of(header)
    vocabulary = Vocabulary(header)
    check_package(header)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):  # a second process waits for the first one's folder
            if not _is_complete(folder):
                report(f"converting {path.name} to bfloat16 in {folder}, once")
                _write_folder(header, vocabulary, folder)
    except OSError as error:
        reason = error.strerror or error
        raise HierspecError(
            f"cannot write the converted {path.name} to {folder.parent}: {reason}; make room "
            "there, or set HIERSPEC_CACHE to another folder"
        ) from None
    return folder


def _write_folder(header: Header, vocabulary: Vocabulary, folder: Path) -> None:
    """Write the converted model to a temporary folder, then rename it to ``folder``."""
    from safetensors.torch import save_file

    config = read_config(header, vocabulary, partial(factors, header))
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        build_tokenizer(vocabulary).save_pretrained(temporary)
        save_file(
            dict(parameters(header, config)), temporary / "model.safetensors", {"format": "pt"}
        )
        (temporary / "config.json").write_text(json.dumps(config, indent=1))
        ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        (temporary / "generation_config.json").write_text(json.dumps(ends, indent=1))
        manifest = {"format": FORMAT, "from": header.name, "sha256": _checksums(temporary)}
        (temporary / _MANIFEST).write_text(json.dumps(manifest))
        shutil.rmtree(folder, ignore_errors=True)  # damaged, or of an older format
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Manifest(Record):
    format: int
    sha256: dict[str, tuple[int, str]]  # file → its size and checksum


def _is_complete(folder: Path) -> bool:
    """Return whether a finished conversion is in ``folder``, with files of the recorded sizes.

    Checksums are not compared, since that would read all weights at every start.
    """
    try:
        manifest = read_json(_Manifest, folder / _MANIFEST, "its manifest")
        sizes = {name: (folder / name).stat().st_size for name in manifest.sha256}
    except (HierspecError, OSError):
        return False
    return manifest.format == FORMAT and all(
        sizes[name] == size for name, (size, _) in manifest.sha256.items()
    )


def _checksums(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file in a folder."""
    checksums = {}
    for file in sorted(folder.iterdir()):
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        checksums[file.name] = (file.stat().st_size, digest)
    return checksums
