"""Texts that a model wrote, as token ids of 16 bits on disk.

A folder holds ``tokens.bin``, text after text, and ``batches.jsonl``, a line for the texts of a
batch. The line is written last, so an interruption leaves whole batches and what the next one
overwrites.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hierspec.errors import HierspecError
from hierspec.utils.files import write_atomically
from hierspec.utils.json_lines import read_line
from hierspec.utils.records import Record

_TOKENS, _BATCHES = "tokens.bin", "batches.jsonl"
_DTYPE = np.dtype("<u2")


class PackedText(Record):
    """What is known of a text besides its ids.

    Attributes:
        length: its tokens.
        answer: the first of them that the model wrote, as an answer to those before.
        origin: who wrote the prompt: ``own`` (the model) or ``template``.
    """

    length: int
    answer: int
    domain: str
    temperature: float
    origin: str
    finish_reason: str


class _Batch(Record):
    texts: list[PackedText]


def is_packed(path: Path) -> bool:
    """Return whether a folder holds such texts."""
    return (path / _BATCHES).is_file()


class PackedTexts:
    """The texts in a folder, which is made if it is missing.

    Raises:
        HierspecError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._tokens, self._index = folder / _TOKENS, folder / _BATCHES
        self.batches: list[list[PackedText]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._tokens.touch()
            self._index.touch()
            room = self._tokens.stat().st_size // _DTYPE.itemsize
        except OSError as error:
            raise HierspecError(f"cannot keep texts in {folder}: {error.strerror}") from None
        lines = self._index.read_bytes().split(b"\n")
        for line in lines[:-1]:  # the last is empty, or was cut
            batch = read_line(_Batch, line)
            if batch is None or self.num_tokens + _length(batch.texts) > room:
                break
            self.batches.append(batch.texts)
        if len(self.batches) < len(lines) - 1 or lines[-1]:
            kept = b"".join(line + b"\n" for line in lines[: len(self.batches)])
            write_atomically(self._index, kept, "the texts")

    @property
    def texts(self) -> list[PackedText]:
        return [text for batch in self.batches for text in batch]

    @property
    def num_tokens(self) -> int:
        return sum(map(_length, self.batches))

    def append(self, batch: Sequence[tuple[PackedText, Sequence[int]]]) -> None:
        """Add the texts of a batch, each with its ids, which are below 65,536.

        Raises:
            HierspecError: an id is above that, or the disk is full.
        """
        texts = [text for text, _ in batch]
        ids = np.array([i for _, row in batch for i in row], dtype=np.int64)
        assert len(ids) == _length(texts)
        if ids.max(initial=0) > np.iinfo(_DTYPE).max:
            raise HierspecError(
                "texts of models with tokens beyond 65,535 cannot be kept: give others with --texts"
            )
        try:
            with self._tokens.open("r+b") as file:
                file.truncate(self.num_tokens * _DTYPE.itemsize)
                file.seek(0, 2)
                file.write(ids.astype(_DTYPE).tobytes())
            with self._index.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"texts": [text.to_dict() for text in texts]}) + "\n")
        except OSError as error:
            folder = self._tokens.parent
            raise HierspecError(f"cannot keep texts in {folder}: {error.strerror}") from None
        self.batches.append(texts)

    def read(self) -> Iterator[tuple[PackedText, list[int]]]:
        """Yield every text with its ids."""
        tokens = np.fromfile(self._tokens, _DTYPE, self.num_tokens)
        start = 0
        for text in self.texts:
            yield text, tokens[start : start + text.length].tolist()
            start += text.length


def _length(texts: Sequence[PackedText]) -> int:
    return sum(text.length for text in texts)
