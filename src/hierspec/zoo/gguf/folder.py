"""What transformers reads of a GGUF file's model, in a folder of the user's cache.

That is its configuration and its tokenizer; weights stay in the file. It is written when a file is
first read, which is checked then. A folder is complete or does not exist, even if several processes
write it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
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
from .weights import check_package, check_tensors, factors

FORMAT = 3  # version of the folders, raised when what is written changes
_WITH_WEIGHTS = 2  # the version whose folders held the weights, too
_MANIFEST = "conversion.json"  # the last file written: the source of the folder, and its checksums


def model_folder(path: str | Path) -> Path:
    """Return the folder with a GGUF file's configuration and tokenizer; write it at first.

    Args:
        path: of the file, or of the first of several parts.

    Raises:
        HierspecError: there is no such file, it is damaged, its architecture, tokenizer or
            quantization is not supported, the ``gguf`` package is missing, or there is no space for
            the result.
    """
    path = Path(path)
    check_file(path)
    hashes = [content_hash(file) for file in shards(path)]
    folder = _folder_of(path, hashes, FORMAT)
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
                _write_folder(header, vocabulary, folder)
    except OSError as error:
        reason = error.strerror or error
        raise HierspecError(
            f"cannot write the configuration and tokenizer of {path.name} to {folder.parent}: "
            f"{reason}; make room there, or set HIERSPEC_CACHE to another folder"
        ) from None
    shutil.rmtree(_folder_of(path, hashes, _WITH_WEIGHTS), ignore_errors=True)
    return folder


def _folder_of(path: Path, hashes: list[str], version: int) -> Path:
    digest = hashlib.sha256("".join((f"{version} ", *hashes)).encode())
    return cache_folder("models") / f"{path.stem}-{digest.hexdigest()[:16]}"


def _write_folder(header: Header, vocabulary: Vocabulary, folder: Path) -> None:
    """Write the files to a temporary folder, then rename it to ``folder``."""
    config = read_config(header, vocabulary, partial(factors, header))
    check_tensors(header, config)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        build_tokenizer(vocabulary).save_pretrained(temporary)
        (temporary / "config.json").write_text(json.dumps(config, indent=1))
        ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        (temporary / "generation_config.json").write_text(json.dumps(ends, indent=1))
        manifest = {"format": FORMAT, "from": header.name, "sha256": _checksums(temporary)}
        (temporary / _MANIFEST).write_text(json.dumps(manifest))
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _Manifest(Record):
    format: int
    sha256: dict[str, tuple[int, str]]  # file → its size and checksum


def _is_complete(folder: Path) -> bool:
    """Return whether all files are in ``folder``, of the recorded sizes."""
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
