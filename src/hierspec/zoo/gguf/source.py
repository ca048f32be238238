"""A GGUF file as a source of weights, in the bits it has them in or dequantized."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.lm.weights import EMBEDDING, HEAD, Stored, read_config

from .config import ARCHITECTURES
from .files import shards
from .folder import model_folder
from .header import Header, StoredTensor, read_header
from .weights import by_halves, dequantized, may_lack, named, size_of, stored_bytes

if TYPE_CHECKING:
    import torch


def open_gguf(path: str | Path, name: str) -> GgufSource:
    """Open a GGUF file, or several by the first; no weight is read."""
    folder = model_folder(path)
    tokenizer_path = folder if (folder / "tokenizer.json").is_file() else None
    return GgufSource(Path(path), name, tokenizer_path, read_config(folder))


@dataclass(frozen=True, eq=False)
class GgufSource:
    """A GGUF file as a :class:`~hierspec.lm.weights.StoredSource`.

    Its tensors have transformers' names and order of rows. They are read when they are asked for,
    one at a time.
    """

    path: Path
    name: str
    tokenizer_path: Path | None
    config: Any

    @property
    def weight_files(self) -> list[Path]:
        return shards(self.path)

    @cached_property
    def _header(self) -> Header:
        return read_header(self.path)

    @cached_property
    def _tensors(self) -> dict[str, StoredTensor]:
        return named(self._header)

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight of the layers' matrices takes in the file, on average."""
        matrices = [
            tensor
            for name, tensor in self._tensors.items()
            if len(tensor.shape) == 2 and name.startswith("model.layers.")
        ]
        num_bytes = sum(size_of(self._header, tensor) for tensor in matrices)
        return 8 * num_bytes / sum(math.prod(tensor.shape) for tensor in matrices)

    def names(self) -> list[str]:
        return sorted(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter that the file holds."""
        return self._tensors[self._own_name(name)].shape

    def tensor(self, name: str) -> torch.Tensor:
        """Return a parameter's values in float32.

        Raises:
            KeyError: there is no such parameter.
            HierspecError: the file is damaged there.
        """
        import torch

        name = self._own_name(name)
        if name not in self._tensors:
            matrix = self._tensors.get(f"{name.removesuffix('.bias')}.weight")
            if matrix is None or not may_lack(name, vars(self.config)):
                raise KeyError(f"{self.name} has no parameter {name!r}")
            return torch.zeros(matrix.shape[0], device="cpu")
        values = torch.from_numpy(dequantized(self._header, self._tensors[name]))
        offset = ARCHITECTURES[self._header.architecture].norm_offset
        if offset and name.endswith("norm.weight"):
            values = values - offset
        return self._in_order(name, values)

    def stored(self, name: str) -> Stored | None:
        import torch

        tensor = self._tensors.get(name := self._own_name(name))
        if tensor is None or len(tensor.shape) != 2:
            return None
        form, rows = stored_bytes(self._header, tensor)
        return Stored(form, tensor.shape[1], self._in_order(name, torch.from_numpy(rows)))

    def _own_name(self, name: str) -> str:
        tied = name == HEAD and name not in self._tensors and self.config.tie_word_embeddings
        return EMBEDDING if tied else name

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        if ARCHITECTURES[self._header.architecture].interleaved and ".self_attn." in name:
            rows = by_halves(rows, name, self.config)
        return rows.contiguous()
