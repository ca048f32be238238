"""A model's panels, kept in the user's cache in the kernels' order and mapped from there.

To pack a large model takes far longer than to map it: memory that a process touches for the first
time has to be found and cleared, and what a file has in memory is there already, for all processes
once. Each matrix is summed when it is made and when it is mapped; a file that does not add up is
made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from hierspec.errors import HierspecError
from hierspec.utils.files import cache_folder, file_state, json_digest, locked, make_room
from hierspec.utils.machine import package_version

from .formats import FORMATS
from .matrices import PANEL, PackedMatrix, empty_panels

_LEAST = 32 << 20  # bytes that are worth a file
_MOST = 16 << 30  # of all files together; those used longest ago go first
_SMALL = 512 << 20  # a file that is copied: its memory is cleared in a moment
_HUGE = 2 << 20  # bytes of a huge page, which the system makes of what is written at once
_FREE = 3  # times the bytes of a new file have to be free on its disk
_LINE = 64  # bytes of a line of the processor's cache
_FOOT = 8 + hashlib.sha256().digest_size  # the length of the index at the end, and its hash


class _Kept(NamedTuple):
    """Where a matrix is in the file: its format, its shape, its bytes, and their sum."""

    form: str
    num_out: int
    width: int
    offset: int
    size: int
    total: int


class KeptPanels:
    """The matrices of a model by name: mapped from their file, or packed and kept in a new one.

    Args:
        key: what the panels are made of and how; ``None``: they are not kept.
        num_bytes: of the panels, about.
    """

    def __init__(self, key: str | None, num_bytes: int) -> None:
        self._file: BinaryIO | None = None
        self._index: dict[str, _Kept] = {}
        self._mapped: mmap.mmap | None = None
        self._held = contextlib.ExitStack()
        if key is None or num_bytes < _LEAST:
            return
        with contextlib.suppress(HierspecError, OSError):  # no home folder, or no room in it
            self._path = cache_folder("panels") / key
            self._temporary = self._path.with_name(f".{key}.tmp")
            if (found := _read(self._path)) is not None:
                self._index, self._mapped = found
                os.utime(self._path)
            elif _make_room(self._path.parent, num_bytes):
                self._held.enter_context(_writing(self._path))
                self._file = self._temporary.open("wb", buffering=0)

    @property
    def is_read(self) -> bool:
        """Whether they come from a file."""
        return self._mapped is not None

    @property
    def is_written(self) -> bool:
        """Whether they go to a new file."""
        return self._file is not None

    def matrix(
        self, name: str, bias: torch.Tensor | None, pack: Callable[[], PackedMatrix]
    ) -> PackedMatrix:
        """Return a matrix of the file, or what ``pack`` makes, which is then kept."""
        if self._mapped is not None and name in self._index:
            kept = self._index[name]
            panels = _view(self._mapped, kept).view(-(-kept.num_out // PANEL), -1)
            if len(self._mapped) < _SMALL:  # on huge pages, which a small file has few of
                panels = _copy(self._mapped, kept, empty_panels(*panels.shape))
            return PackedMatrix(FORMATS[kept.form], kept.num_out, kept.width, panels, bias)
        matrix = pack()
        if self._file is not None:
            try:
                self._write(name, matrix, self._file)
            except OSError:  # the disk is full
                self.close()
        return matrix

    def _write(self, name: str, matrix: PackedMatrix, file: BinaryIO) -> None:
        size, start = matrix.panels.nbytes, file.tell()
        start += -start % (_HUGE if size >= _HUGE else _LINE)
        file.seek(start)
        rest = matrix.panels.numpy().data.cast("B")
        while rest:
            rest = rest[file.write(rest) :]
        shape, total = (matrix.num_out, matrix.width), _sum(matrix.panels.view(-1))
        self._index[name] = _Kept(matrix.format.name, *shape, start, size, total)

    def __enter__(self) -> KeptPanels:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the new file its name, if every matrix is made."""
        if kind is None and self._file is not None:
            index = json.dumps(self._index).encode()
            foot = hashlib.sha256(index).digest() + len(index).to_bytes(8, "little")
            with contextlib.suppress(OSError):
                self._file.write(index + foot)
                os.replace(self._temporary, self._path)
        self.close()

    def close(self) -> None:
        """Keep nothing of what was not kept already."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # of a disk that fails, or lets nothing be deleted
                self._file.close()
                self._temporary.unlink(missing_ok=True)
            self._file = None
        self._held.close()


def _writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Hold what one process at a time holds, which writes this file."""
    return locked(path, "panels", "another process writes them")


def panels_key(weights: Iterable[Path], *what: Any) -> str | None:
    """Return a name for the panels of these files, for what else they depend on and for this code.

    ``None``: a file has gone, or changed so lately that it may still be written to.
    """
    try:
        states = [file_state(file) for file in weights]
    except OSError:
        return None
    # What reads the files may order their rows otherwise in another version.
    code = (package_version("hierspec"), layout())
    return json_digest([states, what, code]) if states and None not in states else None


@cache
def layout() -> str:
    """Return a hash of the code that says where in a panel a weight is."""
    folder = files("hierspec.lm.native")
    names = ("formats.py", "gguf_blocks.py", "kept_panels.py", "matrices.py", "rounding.py")
    return hashlib.sha256(b"".join(folder.joinpath(n).read_bytes() for n in names)).hexdigest()


def _read(path: Path) -> tuple[dict[str, _Kept], mmap.mmap] | None:
    """Map a file of panels; ``None`` where there is none, or a damaged one."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        length = int.from_bytes(mapped[-8:], "little")
        index, digest = mapped[-_FOOT - length : -_FOOT], mapped[-_FOOT:-8]
        if hashlib.sha256(index).digest() != digest:
            return None
        kept = {name: _Kept(*values) for name, values in json.loads(index).items()}
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    whole = all(_sum(_view(mapped, one)) == one.total for one in kept.values())
    if len(mapped) < _SMALL:
        mapped.madvise(mmap.MADV_DONTNEED)  # it is copied, and should not be in memory twice
    return (kept, mapped) if whole else None


def _copy(mapped: mmap.mmap, kept: _Kept, panels: torch.Tensor) -> torch.Tensor:
    """Copy a matrix to panels, part by part, each of which the file then has in memory no more."""
    parts = panels.view(-1).split(_HUGE)
    for offset, part in zip(range(kept.offset, kept.offset + kept.size, _HUGE), parts, strict=True):
        part.copy_(torch.frombuffer(mapped, dtype=torch.uint8, count=len(part), offset=offset))
        page = offset - offset % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, page, offset + len(part) - page)
    return panels


def _view(mapped: mmap.mmap, kept: _Kept) -> torch.Tensor:
    return torch.frombuffer(mapped, dtype=torch.uint8, count=kept.size, offset=kept.offset)


def _sum(panels: torch.Tensor) -> int:
    """Return the sum of uint8 [n] as whole numbers of 64 bits; panels have 16 outputs."""
    return int(panels.view(torch.int64).sum())


def _make_room(folder: Path, num_bytes: int) -> bool:
    """Delete what killed processes left, and files used long ago that leave no room for a new one.

    Returns whether the disk has room for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.tmp"):
        with contextlib.suppress(HierspecError), _writing(folder / left.name[1:-4]):
            left.unlink(missing_ok=True)
    make_room(folder, num_bytes, _MOST)
    return num_bytes <= _MOST and shutil.disk_usage(folder).free >= _FREE * num_bytes
