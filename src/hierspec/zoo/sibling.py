"""A small model with a larger one's tokenizer, whose embedding and head are made of the larger's.

The matrices for a vocabulary of 49,152 tokens have more weights than all layers of a small model.
So a sibling has none of its own: its embedding is the larger model's times a matrix P [d, D], and
it scores a part of the vocabulary, v of V tokens, by the larger model's output rows times a matrix
Q [D, d]. Both products are computed once, when the sibling is loaded.

In its folder: ``config.json`` (a Llama's), ``model.safetensors`` (its layers, its final norm,
``embed_projection.weight``, ``head_projection.weight``, ``vocabulary``) and ``sibling.json``, which
names the larger model and describes the training.

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
from hierspec.lm.weights import EMBEDDING, HEAD, SCORED, Checkpoint, WeightSource, from_directory
from hierspec.utils.files import expand_user

if TYPE_CHECKING:
    import torch

FILE = "sibling.json"
SCHEMA = 1
EMBED_PROJECTION, HEAD_PROJECTION = "embed_projection.weight", "head_projection.weight"
VOCABULARY = "vocabulary"
_OWN = {EMBED_PROJECTION: EMBEDDING, HEAD_PROJECTION: HEAD, VOCABULARY: SCORED}


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
            raise _damaged(self.own.path, "its vocabulary is not of integers")
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


def read_description(folder: Path) -> dict[str, Any]:
    """Read ``sibling.json``.

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


def apply_to_larger(folder: Path, function: Callable[[str], Any]) -> Any:
    """Return what ``function`` returns for the name of a sibling's larger model.

    Raises:
        HierspecError: that is a sibling itself, or ``function`` refuses it.
    """
    model = read_description(folder)["model"]
    subject = f"{folder / FILE} says that this is a sibling of {model!r}, which"
    if not model or is_sibling(model):
        raise HierspecError(
            f"{subject} is no model to be a sibling of: write there which one it is"
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
        HierspecError: a file is missing or damaged, or the larger model is not there or has another
            vocabulary.
    """
    larger: WeightSource = apply_to_larger(folder, open_weights)
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
