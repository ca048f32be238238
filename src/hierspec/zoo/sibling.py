"""A small model on a larger one's tokenizer, whose embedding and head are made of the larger one's.

A vocabulary of 49,152 tokens is more weights than all layers of a small model. So a sibling has
none of its own: it sees a token as the larger model's embedding through a matrix P [d, D], and it
scores a part of the vocabulary, v of V tokens, by the larger model's output rows through a matrix
Q [D, d]. Both products are made once, when the sibling is loaded.

In its folder: ``config.json`` (a Llama's), ``model.safetensors`` (its layers, its final norm,
``embed_projection.weight``, ``head_projection.weight``, ``vocabulary``) and ``sibling.json``, which
says whose sibling it is and what is known of its training.

Shapes: d hidden of the sibling, D of the larger model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError
from hierspec.lm.weights import (
    EMBEDDING,
    HEAD,
    SCORED,
    Checkpoint,
    WeightSource,
    from_directory,
)
from hierspec.utils.files import expand_user

if TYPE_CHECKING:
    import torch

FILE = "sibling.json"
SCHEMA = 1
EMBED_PROJECTION, HEAD_PROJECTION = "embed_projection.weight", "head_projection.weight"
VOCABULARY = "vocabulary"
_OWN = {EMBED_PROJECTION: EMBEDDING, HEAD_PROJECTION: HEAD, VOCABULARY: SCORED}


def is_sibling(model: str) -> bool:
    """Whether a model's name is the path of a sibling's folder."""
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
        return sorted(_OWN.get(name, name) for name in self.own.names())

    def tensor(self, name: str) -> torch.Tensor:
        if name == SCORED:
            return self._scored
        if name == EMBEDDING:
            return self.larger.tensor(EMBEDDING).float() @ self._projection(EMBED_PROJECTION).T
        if name == HEAD:
            rows = self.larger.tensor(HEAD).float()[self._scored]
            return rows @ self._projection(HEAD_PROJECTION)
        return self.own.tensor(name)

    @cached_property
    def _scored(self) -> torch.Tensor:
        ids, size = self.own.tensor(VOCABULARY), self.config.vocab_size
        if ids.is_floating_point():
            raise _damaged(self.own.path, "its vocabulary is not of whole numbers")
        ids = ids.long()
        if ids.dim() != 1 or not len(ids) or bool((ids.diff() <= 0).any()):
            raise _damaged(self.own.path, "its vocabulary is not a list of ascending ids")
        if int(ids[0]) < 0 or int(ids[-1]) >= size:
            raise _damaged(self.own.path, f"its vocabulary has ids that are not below {size}")
        return ids

    def _projection(self, name: str) -> torch.Tensor:
        d, whole = self.config.hidden_size, self.larger.config.hidden_size
        tensor = self.own.tensor(name)
        shape = (d, whole) if name == EMBED_PROJECTION else (whole, d)
        if tuple(tensor.shape) != shape:
            raise _damaged(
                self.own.path,
                f"{name} has shape {tuple(tensor.shape)}, and {shape} leads from width {whole} of "
                f"{self.larger.name} to its own",
            )
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise _damaged(self.own.path, f"{name} holds what are no finite numbers")
        return tensor.float()


def described(folder: Path) -> dict[str, Any]:
    """What ``sibling.json`` says.

    Raises:
        HierspecError: it cannot be read, or is of another version.
    """
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(folder, error) from None
    if not isinstance(found, dict) or not isinstance(found.get("model"), str):
        raise _damaged(folder, f"{FILE} does not say whose sibling it is")
    if found.get("schema_version") != SCHEMA:
        raise HierspecError(
            f"{folder / FILE} has schema version {found.get('schema_version')!r}, this hierspec "
            f"reads {SCHEMA}: train the sibling again, or use the hierspec that wrote it"
        )
    return found


def larger_of(folder: Path, asked: Callable[[str], Any]) -> Any:
    """What ``asked`` says of the model whose sibling a folder holds.

    Raises:
        HierspecError: it is a sibling itself, or ``asked`` refuses it.
    """
    model = described(folder)["model"]
    said = f"{folder / FILE} says that this is a sibling of {model!r}, which"
    if not model or is_sibling(model):
        raise HierspecError(f"{said} is no model to be a sibling of: write there which one it is")
    try:
        return asked(model)
    except HierspecError as error:
        raise HierspecError(f"{said} cannot be used: {error}") from None


def opened(folder: Path, weights_of: Callable[[str], WeightSource], name: str = "") -> Sibling:
    """The sibling in a folder.

    Args:
        weights_of: a model by name; asked for the larger one.
        name: for messages; default: the folder's.

    Raises:
        HierspecError: a file is missing or damaged, or the larger model is not there or has another
            vocabulary.
    """
    larger: WeightSource = larger_of(folder, weights_of)
    own = from_directory(folder)
    if missing := sorted(set(_OWN) - set(own.names())):
        raise _damaged(folder, f"{missing[0]} is missing")
    if own.config.vocab_size != larger.config.vocab_size:
        raise _damaged(
            folder,
            f"its vocab_size is {own.config.vocab_size}, and that of {larger.name} is "
            f"{larger.config.vocab_size}",
        )
    named = Checkpoint(own.path, name or own.name, own.config, own.files, None)
    return Sibling(named, larger)


def _damaged(folder: Path, why: object) -> HierspecError:
    return HierspecError(f"{folder} is no sound sibling ({why}): train or fetch it again")
