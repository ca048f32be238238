"""Siblings: small models with a larger one's tokenizer, and projections of its embedding and head.

The matrices for a vocabulary of 49,152 tokens have more weights than all layers of a small model.
So a sibling stores none: its embedding is the larger model's times a matrix P [d, D], and it scores
a part of the vocabulary, v of V tokens, by the larger model's output rows times a matrix Q [D, d].
Both products are computed once, when the sibling is loaded.

In its folder: ``config.json`` (a Llama's), ``model.safetensors`` (its layers, its final norm,
``embed_projection.weight``, ``head_projection.weight``, ``vocabulary``) and ``sibling.json``, which
names the larger model and describes the training.

Shapes: d hidden of the sibling, D of the larger model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError
from hierspec.lm.weights import EMBEDDING, HEAD, SCORED, Checkpoint, WeightSource, from_directory
from hierspec.utils.documents import read_json
from hierspec.utils.files import expand_user

if TYPE_CHECKING:
    import torch

FILE = "sibling.json"
SCHEMA = 1
EMBED_PROJECTION, HEAD_PROJECTION = "embed_projection.weight", "head_projection.weight"
VOCABULARY = "vocabulary"
# names in the file → names of the tensors that are made of them
_TENSOR_NAMES = {EMBED_PROJECTION: EMBEDDING, HEAD_PROJECTION: HEAD, VOCABULARY: SCORED}


def is_sibling(model: str) -> bool:
    """Return whether a model's name is the path of a sibling's folder."""
    return bool(model) and (expand_user(model) / FILE).is_file()


@dataclass(frozen=True, eq=False)
class Sibling:
    """A sibling as a :class:`~hierspec.lm.weights.WeightSource` of whole matrices."""

    own: Checkpoint
    larger: WeightSource

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def config(self) -> Any:
        return self.own.config

    @property
    def tokenizer_path(self) -> Path | None:
        return self.larger.tokenizer_path

    def names(self) -> list[str]:
        return sorted(_TENSOR_NAMES.get(name, name) for name in self.own.names())

    def tensor(self, name: str) -> torch.Tensor:
        if name == SCORED:
            return self._scored_ids
        if name == EMBEDDING:
            return self.larger.tensor(EMBEDDING).float() @ self._projection(EMBED_PROJECTION).T
        if name == HEAD:
            rows = self.larger.tensor(HEAD).float()[self._scored_ids]
            return rows @ self._projection(HEAD_PROJECTION)
        return self.own.tensor(name)

    @cached_property
    def _scored_ids(self) -> torch.Tensor:
        ids, size = self.own.tensor(VOCABULARY), self.config.vocab_size
        if ids.is_floating_point():
            raise _damaged(self.own.path, "its vocabulary is not of integers")
        ids = ids.long()
        if ids.dim() != 1 or not len(ids) or bool((ids.diff() <= 0).any()):
            raise _damaged(self.own.path, "its vocabulary is not a list of ascending ids")
        if int(ids[0]) < 0 or int(ids[-1]) >= size:
            raise _damaged(self.own.path, f"its vocabulary has ids that are not below {size}")
        return ids

    def _projection(self, name: str) -> torch.Tensor:
        width, larger_width = self.config.hidden_size, self.larger.config.hidden_size
        tensor = self.own.tensor(name)
        shape = (width, larger_width) if name == EMBED_PROJECTION else (larger_width, width)
        if tuple(tensor.shape) != shape:
            raise _damaged(
                self.own.path,
                f"{name} has shape {tuple(tensor.shape)}, not {shape} for the width {larger_width} "
                f"of {self.larger.name}",
            )
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise _damaged(self.own.path, f"{name} holds values that are no finite numbers")
        return tensor.float()


def read_description(folder: Path) -> dict[str, Any]:
    """Read ``sibling.json``.

    Raises:
        HierspecError: it cannot be read, or is of another version.
    """
    try:
        description = read_json(dict[str, Any], folder / FILE, "the description")
    except HierspecError as error:
        raise _damaged(folder, error) from None
    if not isinstance(description.get("model"), str):
        raise _damaged(folder, f"{FILE} does not name the larger model")
    if (version := description.get("schema_version")) != SCHEMA:
        raise HierspecError(
            f"{folder / FILE} has schema version {version!r}, this hierspec reads {SCHEMA}: train "
            "the sibling again, or use the hierspec that wrote it"
        )
    return description


def apply_to_larger(folder: Path, function: Callable[[str], Any]) -> Any:
    """Return what ``function`` returns for the name of a sibling's larger model.

    Raises:
        HierspecError: the larger model is a sibling itself, or ``function`` refuses it.
    """
    model = read_description(folder)["model"]
    subject = f"{folder / FILE} names {model!r} as the larger model, which"
    if not model or is_sibling(model):
        raise HierspecError(
            f"{subject} is missing or a sibling itself: name the model it was distilled from"
        )
    try:
        return function(model)
    except HierspecError as error:
        raise HierspecError(f"{subject} cannot be used: {error}") from None


def open_sibling(
    folder: Path, open_weights: Callable[[str], WeightSource], name: str = ""
) -> Sibling:
    """Open the sibling in a folder.

    Args:
        open_weights: opens the larger model by its name.
        name: for messages; default: the folder's.

    Raises:
        HierspecError: a file is missing or damaged, or the larger model is missing or has another
            vocabulary.
    """
    larger: WeightSource = apply_to_larger(folder, open_weights)
    own = from_directory(folder)
    if missing := sorted(set(_TENSOR_NAMES) - set(own.names())):
        raise _damaged(folder, f"{missing[0]} is missing")
    if own.config.vocab_size != larger.config.vocab_size:
        raise _damaged(
            folder,
            f"its vocab_size is {own.config.vocab_size}, and that of {larger.name} is "
            f"{larger.config.vocab_size}",
        )
    return Sibling(Checkpoint(own.path, name or own.name, own.config, own.files, None), larger)


def _damaged(folder: Path, reason: object) -> HierspecError:
    return HierspecError(f"{folder} is no usable sibling ({reason}): train or fetch it again")
