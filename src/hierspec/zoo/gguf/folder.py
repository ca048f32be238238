"""What transformers reads of a GGUF file's model, in a folder of the user's cache.

That is its configuration and its tokenizer; weights stay in the file. It is written when a file is
first read, which is checked then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import partial
from pathlib import Path

from hierspec.errors import HierspecError
from hierspec.utils.files import cache_folder
from hierspec.zoo import kept_folder
from hierspec.zoo.content import content_hash

from .config import architecture_of, read_config
from .files import shards, validate_file
from .header import Header, read_header
from .tokenizer import UnreadTokenizerError, Vocabulary, build_tokenizer, has_tokenizer
from .weights import factors, validate_package, validate_tensors

FORMAT = 3  # version of the folders, raised when what is written changes


def model_folder(path: str | Path) -> Path:
    """Return the folder with a GGUF file's configuration and tokenizer; write it at first.

    There is no ``tokenizer.json`` in it if the file has no tokenizer, or one that is not read.

    Args:
        path: of the file, or of the first of several parts.

    Raises:
        HierspecError: there is no such file, it is damaged, its architecture, tokenizer or
            quantization is not supported, the ``gguf`` package is missing, or there is no space for
            the result.
    """
    path = Path(path)
    validate_file(path)
    digest = _digest(path)
    folder = cache_folder("models") / f"{path.stem[:50]}-{digest}"
    if kept_folder.is_complete(folder, FORMAT):
        return folder
    header = read_header(path)
    architecture_of(header)
    vocabulary: Vocabulary | None = None
    with contextlib.suppress(UnreadTokenizerError):  # --tokenizer names another
        vocabulary = Vocabulary(header) if has_tokenizer(header) else None
    validate_package(header)

    def write(folder: Path) -> None:
        _write(header, vocabulary, folder)
        if _digest(path) != digest:
            raise HierspecError(f"{path} was replaced while it was read: give the command again")

    noun = f"the configuration and tokenizer of {path.name}"
    kept_folder.make(folder, FORMAT, header.name, noun, write)
    return folder


def _digest(path: Path) -> str:
    hashes = [content_hash(file) for file in shards(path)]
    return hashlib.sha256("".join((f"{FORMAT} ", *hashes)).encode()).hexdigest()[:16]


def _write(header: Header, vocabulary: Vocabulary | None, folder: Path) -> None:
    config = read_config(header, vocabulary, partial(factors, header))
    validate_tensors(header, config)
    if vocabulary is not None:
        tokenizer = build_tokenizer(vocabulary)
        try:
            tokenizer.save_pretrained(folder)
        except Exception as error:  # tokenizers have no OSError for a full disk
            raise error if isinstance(error, OSError) else OSError(str(error)) from None
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=1))
