"""The output of a batch: only whole lines are kept, and a second run knows which it has.

A process may be killed at any moment. A line is written by one call at the end of the file, and a
line that was cut short is removed. Every answer has the id of its request, so requests without an
answer are sent again, and no other.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.json_lines import read_line
from hierspec.utils.records import Record

_SYNC_EVERY = 1.0  # seconds; requests whose answers a power cut deletes are sent again


class _Answer(Record):
    """A line of the output, as :mod:`.lines` writes it."""

    id: str
    custom_id: str | None
    response: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def message(self) -> str:
        """Why it is a failure; empty if that is not told."""
        body = (self.response or {}).get("body")
        error = self.error or (body.get("error") if isinstance(body, dict) else None)
        return str((error.get("message") if isinstance(error, dict) else error) or "")


class AnswersFile:
    """A file of answers to which more are added; the caller holds :func:`utils.files.locked` on it.

    Attributes:
        ids: of the answers in the file.
        num_failures: how many of them are errors, or answers with a status other than 200.
        first_failure: the id and message of the first of these.

    Raises:
        HierspecError: the file holds something else, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: set[str] = set()
        self.num_failures, self.first_failure = 0, ""
        if path.exists() and not path.is_file():
            raise HierspecError(f"answers go to a file, which a second run reads; {path} is none")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise _cannot_write(path, error) from None
        try:
            os.ftruncate(self._file, self._recover())
        except BaseException:
            os.close(self._file)
            raise
        self._synced = time.monotonic()

    def add(self, line: bytes) -> bool:
        """Add an answer; return false if the file has it already.

        Args:
            line: of the answer, with its newline.
        """
        answer = read_line(_Answer, line)
        assert answer is not None
        if answer.id in self.ids:
            return False
        try:
            rest = memoryview(line)
            while rest:  # a full disk may take a part of it: then the next call fails
                rest = rest[os.write(self._file, rest) :]
            if time.monotonic() - self._synced > _SYNC_EVERY:
                self.sync()
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        self._count(answer)
        return True

    def sync(self) -> None:
        """Flush what is written to the disk."""
        os.fsync(self._file)
        self._synced = time.monotonic()

    def __enter__(self) -> AnswersFile:
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.sync()
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        finally:
            os.close(self._file)

    def _recover(self) -> int:
        """Count the complete answers in the file, and end the last; return their size in bytes."""
        size, first_broken, is_ended = 0, 0, True
        with os.fdopen(os.dup(self._file), "rb") as stream:
            for number, line in enumerate(stream, 1):
                answer = read_line(_Answer, line)
                if answer is None:
                    first_broken = first_broken or number
                    continue
                problem = ""
                if first_broken:  # a killed process leaves broken lines at the end only
                    problem = f"line {first_broken}: not an answer of a batch"
                elif answer.id in self.ids:
                    problem = f"line {number}: {answer.id} is there twice"
                if problem:
                    raise HierspecError(f"{self.path}, {problem}: name another output")
                self._count(answer)
                size, is_ended = size + len(line), line.endswith(b"\n")
        if not is_ended:  # the last line is whole but for its newline
            size += os.write(self._file, b"\n")
        if first_broken and not size:  # it may be an answer's truncated beginning
            answer_start = b'{"id": "batch_req_'
            with self.path.open("rb") as stream:
                file_start = stream.read(len(answer_start))
            if not answer_start.startswith(file_start) and file_start.strip(b"\0"):
                raise HierspecError(
                    f"{self.path} exists and holds no answers of a batch: name another output"
                )
        return size

    def _count(self, answer: _Answer) -> None:
        self.ids.add(answer.id)
        if answer.response is None or answer.response.get("status_code") != 200:
            self.num_failures += 1
            self.first_failure = self.first_failure or f"{answer.id}: {answer.message}"


def _cannot_write(path: Path, error: OSError) -> HierspecError:
    return HierspecError(f"cannot write answers to {path}: {error.strerror}")
