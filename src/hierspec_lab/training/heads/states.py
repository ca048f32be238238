"""Hidden states of a frozen model, computed once per text and kept on disk.

Heads are trained and measured on rows of them: positions of texts, each with the hidden states at
every exit and after the last layer. Stored states are looked up by a hash of their tokens, so an
interrupted computation goes on, and a training on more texts computes only the new ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hierspec.errors import HierspecError
from hierspec.utils.files import locked, write_atomically
from hierspec.utils.json_lines import read_line

from .frozen import Frozen

_BYTES = 2  # of a bfloat16


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A text, or a window of one.

    Attributes:
        ids: [n] int32.
        positions: [m] int64, those to train or measure on.
        domain: label of its subject, for figures by domain.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    domain: str = "text"

    @staticmethod
    def from_ids(ids: torch.Tensor, domain: str = "text") -> Piece:
        """Return a text of which every position counts."""
        return Piece(ids.int(), torch.arange(len(ids)), domain)

    def digest(self) -> str:
        parts = self.ids.int().numpy().tobytes(), self.positions.long().numpy().tobytes()
        return hashlib.sha256(b"|".join(parts)).hexdigest()[:24]


class StateStore:
    """A file of rows [E + 1, d] in bfloat16, one per position: E exits, then the last layer.

    Args:
        name: of the file, and of its index, in ``folder``; identifies the model and its exits.
    """

    def __init__(self, folder: Path, name: str, frozen: Frozen) -> None:
        self.frozen = frozen
        self.shape = (len(frozen.exits) + 1, frozen.backend.hidden_size)
        self.path = folder / f"{name}.states"
        self.index = folder / f"{name}.jsonl"
        self._rows: np.ndarray | None = None
        self._read_index()

    def _read_index(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}  # digest → first row and number of rows
        if self.index.is_file():
            size = self.path.stat().st_size if self.path.is_file() else 0
            room = size // (_BYTES * self.shape[0] * self.shape[1])
            for line in self.index.read_text(encoding="utf-8").splitlines():
                place = read_line(tuple[str, int, int], line)
                if place and place[1] + place[2] <= room:
                    self._places[place[0]] = place[1:]

    def compute(self, pieces: Sequence[Piece], report_share: Callable[[float], None]) -> None:
        """Compute and store the states of those texts that have none.

        Raises:
            HierspecError: the disk is full, or cannot be written, or another process writes there.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        busy = f"another process adds hidden states to {self.path}: wait for it"
        with locked(self.path, "hidden states", busy):
            self._read_index()  # another process may have added to it
            self._compute(pieces, report_share)

    def _compute(self, pieces: Sequence[Piece], report_share: Callable[[float], None]) -> None:
        missing = {d: piece for piece in pieces if (d := piece.digest()) not in self._places}
        end, size = self._end(), _BYTES * self.shape[0] * self.shape[1]
        try:
            # Without lines of states that are gone, or were cut by an interruption.
            kept = [json.dumps([name, *place]) + "\n" for name, place in self._places.items()]
            write_atomically(self.index, "".join(kept), "the index")
            with self.path.open("ab") as file, self.index.open("a", encoding="utf-8") as index:
                file.truncate(end * size)  # what an interruption left behind
                for number, (digest, piece) in enumerate(missing.items()):
                    report_share(number / len(missing))
                    states = self.frozen.states(piece.ids[None].long())
                    rows = torch.stack([h[piece.positions] for h in states], dim=1)
                    file.write(rows.cpu().bfloat16().view(torch.int16).numpy().tobytes())
                    file.flush()
                    self._places[digest] = end, len(rows)
                    index.write(json.dumps([digest, end, len(rows)]) + "\n")
                    index.flush()
                    end += len(rows)
        except OSError as error:
            raise HierspecError(
                f"cannot keep hidden states in {self.path.parent}: {error.strerror or error}; make "
                "room there, or use fewer --tokens"
            ) from None
        self._rows = None

    def rows_of(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Return the numbers of all rows of these texts, [Σ m] int64."""
        places = [self._places[piece.digest()] for piece in pieces]
        return torch.cat([torch.arange(first, first + count) for first, count in places])

    def read(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Read hidden states [n, d] of n rows at each exit, then after the last layer."""
        if self._rows is None:
            shape = (self._end(), *self.shape)
            self._rows = np.memmap(self.path, np.int16, "r", shape=shape)
        states = torch.from_numpy(self._rows[rows.numpy()]).view(torch.bfloat16)
        backend = self.frozen.backend
        return list(states.to(backend.device, backend.dtype).unbind(1))

    def _end(self) -> int:
        return max((first + count for first, count in self._places.values()), default=0)
