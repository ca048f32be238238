"""The file of an acceptance head, ``acceptance_head.safetensors``, which is checked before use.

Its tensors are ``blocks.I.weight`` [d, d] and ``blocks.I.bias`` [d], ``out.weight`` [1, d] and
``out.bias`` [1]. One metadata entry, ``hierspec``, holds a JSON object: on which draft model for
which target it was trained, and how well it predicts on held-out text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hierspec.config.exit_heads import (
    METADATA_KEY,
    SCHEMA,
    TrainingTexts,
    damaged,
    parse_metadata,
    warn_if_other_weights,
)
from hierspec.errors import HierspecError, first_line
from hierspec.lm.trunk.trunk import ExitModel
from hierspec.utils.files import expand_user, write_atomically
from hierspec.utils.records import FrozenRecord
from hierspec.utils.schema import Integer, Natural, NonEmptyString, PositiveInteger
from hierspec.zoo import registry
from hierspec_lab.families.code import MID_ACCEPTANCE, MID_ACCEPTANCE_NAME

from .head import AcceptanceHead, PredictingExit

FILE = "acceptance_head.safetensors"
KIND = "acceptance"


class PredictionScores(FrozenRecord):
    """How well a head predicts on held-out text; ``docs/heads.md`` defines them."""

    samples: Natural | None = None
    acceptance: float | None = None
    predicted: float | None = None
    loss: float | None = None
    constant_loss: float | None = None
    auc: Annotated[float, Field(allow_inf_nan=True)] | None = None  # NaN where all are kept


class AcceptanceHeadInfo(FrozenRecord):
    """A head's metadata, in the file's order."""

    schema_version: Integer
    kind: Literal["acceptance"]
    model: NonEmptyString
    target: NonEmptyString
    fingerprint: NonEmptyString | None = None
    hidden_size: PositiveInteger
    depth: PositiveInteger
    parameters: PositiveInteger = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    steps: Natural | None = None
    samples: Natural | None = None
    seconds: Natural | float | None = None
    texts: TrainingTexts = TrainingTexts()
    held_out: PredictionScores = PredictionScores()


@dataclass(frozen=True, slots=True)
class AcceptanceHeadFile:
    """The file of an acceptance head whose metadata was read and is valid.

    Attributes:
        info: its metadata; ``model`` is the draft model.
    """

    path: Path
    info: AcceptanceHeadInfo


def locate(ref: str | Path) -> Path:
    """Return the file of a head for its path, for its folder's, or for ``zoo:NAME-acceptance``."""
    name = str(ref)
    if name == MID_ACCEPTANCE_NAME:
        return MID_ACCEPTANCE.files() / FILE
    if name.startswith(registry.PREFIX):
        raise HierspecError(
            f"no acceptance head is shipped for {name}, only {MID_ACCEPTANCE_NAME}: train one "
            "with hierspec heads train --kind acceptance --target TARGET --draft MODEL -o FILE"
        )
    path = expand_user(name)
    return path / FILE if path.is_dir() else path


def is_acceptance_head(path: Path) -> bool:
    """Return whether a file's metadata says that it holds an acceptance head."""
    return bool(_metadata(path))


def _metadata(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            info = json.loads((file.metadata() or {}).get(METADATA_KEY, "{}"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) and info.get("kind") == KIND else {}


def read(ref: str | Path) -> AcceptanceHeadFile:
    """Read and check the metadata of a head's file, or of the one in a folder.

    Raises:
        HierspecError: there is no file, it is damaged, or it holds no acceptance head.
    """
    path = locate(ref)
    if not path.is_file():
        raise HierspecError(
            f"no acceptance head at {str(path)!r}: train one with hierspec heads train "
            "--kind acceptance --target TARGET --draft MODEL"
        )
    info = _metadata(path)
    if not info:
        raise HierspecError(
            f"{path} is no acceptance head: give a file that hierspec heads train "
            "--kind acceptance has written"
        )
    return AcceptanceHeadFile(path, parse_metadata(AcceptanceHeadInfo, info, path))


def load(file: AcceptanceHeadFile) -> AcceptanceHead:
    """Load the head of a file, in float32.

    Raises:
        HierspecError: its tensors are not those of a head.
    """
    head = AcceptanceHead(file.info.hidden_size, file.info.depth)
    try:
        with safe_open(file.path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name).float() for name in opened.keys()}  # noqa: SIM118
        head.load_state_dict(tensors)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise damaged(file.path, first_line(error)) from None
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise damaged(file.path, "it holds NaN or infinite numbers")
    return head.requires_grad_(False)


def write(path: Path, head: AcceptanceHead, info: Mapping[str, Any]) -> None:
    """Write a head and its metadata in one step; numbers are stored in bfloat16."""
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
    }
    save_tensors(path, tensors, {"schema_version": SCHEMA, **info}, "the acceptance head")


def save_tensors(
    path: Path, tensors: dict[str, torch.Tensor], info: Mapping[str, Any], noun: str
) -> None:
    """Write tensors and metadata as safetensors, with the permissions of any new file.

    Args:
        noun: the content's name in the error: ``the heads``.
    """

    def save(temporary: Path) -> None:
        save_file(tensors, temporary, {METADATA_KEY: json.dumps(info)})
        mask = os.umask(0)  # it can only be read by setting it
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # safetensors writes for the owner alone

    write_atomically(path, save, noun)


def attach(ref: str | Path, view: ExitModel, model: str) -> PredictingExit:
    """Return a draft model with the head of a file.

    Args:
        model: the name or path by which the draft model was loaded; shows whether the head was
            trained on its weights.

    Raises:
        HierspecError: no such head, a damaged file, or one of a model of another size.

    Warns:
        HeadsWarning: the size fits, but the weights differ. The output is exact nevertheless.
    """
    file = read(ref)
    trained_size, size = file.info.hidden_size, view.trunk.backend.hidden_size
    if trained_size != size:
        raise HierspecError(
            f"{file.path} was trained on {file.info.model}, whose hidden_size is "
            f"{trained_size}; that of {model} is {size}: train an acceptance head for {model}"
        )
    consequence = "drafts may end too early or too late; train the head again"
    warn_if_other_weights(file.path, file.info.fingerprint, model, consequence)
    return PredictingExit(view, load(file))
