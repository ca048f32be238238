"""The file of an acceptance head: ``acceptance_head.safetensors``, checked before it is used.

Tensors ``blocks.I.weight`` [d, d] and ``blocks.I.bias`` [d], ``out.weight`` [1, d] and ``out.bias``
[1]. One metadata entry, ``hierspec``, holds a JSON object: on which draft model for which target it
was trained, and how well it predicts on held-out text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, cast

import torch
from safetensors import SafetensorError, safe_open
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from hierspec.errors import HierspecError, first_line
from hierspec.lm.acceptance_head import AcceptanceHead, PredictingExit
from hierspec.lm.trunk.trunk import ExitModel
from hierspec.utils import schema
from hierspec.utils.files import expand_user
from hierspec.utils.schema import NonEmptyString, PositiveInteger
from hierspec.zoo import registry, trained

from .exit_heads import save_whole, warn_of_others

FILE = "acceptance_head.safetensors"
KIND = "acceptance"
SCHEMA = 1
_KEY = "hierspec"


class HeadInfo(TypedDict):
    """What is known of a head; ``docs/heads.md`` lists the keys, of which these are checked."""

    kind: Literal["acceptance"]
    model: NonEmptyString
    target: NonEmptyString
    hidden_size: PositiveInteger
    depth: PositiveInteger
    fingerprint: NotRequired[NonEmptyString | None]
    held_out: NotRequired[dict[str, Any]]
    texts: NotRequired[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A file whose description was read and found sound.

    Attributes:
        info: its metadata; ``model`` is the draft model.
    """

    path: Path
    info: HeadInfo


def locate(ref: str | Path) -> Path:
    """Return the file behind a path or ``zoo:NAME-acceptance``: itself, or that in a folder."""
    name = str(ref)
    if name.startswith(registry.PREFIX) and name != registry.ACCEPTANCE:
        raise HierspecError(
            f"no acceptance head is shipped for {name}, only {registry.ACCEPTANCE}: train one with "
            "hierspec heads train --kind acceptance --target TARGET --draft MODEL -o FILE"
        )
    path = expand_user(trained.locate(name))
    return path / FILE if path.is_dir() else path


def is_one(path: Path) -> bool:
    """Return whether a file is marked as an acceptance head."""
    return bool(_described(path))


def _described(path: Path) -> dict[str, Any]:
    """Return a file's metadata of its acceptance head; empty where it holds none."""
    try:
        with safe_open(path, framework="pt") as file:
            info = json.loads((file.metadata() or {}).get(_KEY, "{}"))
    except (SafetensorError, OSError, ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) and info.get("kind") == KIND else {}


def read(ref: str | Path) -> HeadFile:
    """Open the file of a head, or the one in a folder.

    Raises:
        HierspecError: there is none, it is damaged, or it is something else.
    """
    path = locate(ref)
    if not path.is_file():
        raise HierspecError(
            f"no acceptance head at {str(path)!r}: train one with hierspec heads train "
            "--kind acceptance --target TARGET --draft MODEL"
        )
    info = _described(path)
    if not info:
        raise HierspecError(
            f"{path} is no acceptance head: give a file that hierspec heads train "
            "--kind acceptance has written"
        )
    if info.get("schema_version") != SCHEMA:
        raise HierspecError(
            f"{path} has schema version {info.get('schema_version')!r}, this hierspec reads "
            f"{SCHEMA}: train the head again, or use the hierspec that wrote it"
        )
    try:
        schema.validate(HeadInfo, info, "its metadata")
    except HierspecError as error:
        raise _damaged(path, error) from None
    return HeadFile(path, cast(HeadInfo, info))


def load(file: HeadFile) -> AcceptanceHead:
    """Load the head of a file, in float32.

    Raises:
        HierspecError: its tensors are not those of a head.
    """
    head = AcceptanceHead(file.info["hidden_size"], file.info["depth"])
    try:
        with safe_open(file.path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name).float() for name in opened.keys()}  # noqa: SIM118
        head.load_state_dict(tensors)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _damaged(file.path, first_line(error)) from None
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise _damaged(file.path, "it holds NaN or infinite numbers")
    return head.requires_grad_(False)


def write(path: Path, head: AcceptanceHead, info: Mapping[str, Any]) -> None:
    """Write a head and its metadata in one step; numbers are stored in bfloat16."""
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in head.state_dict().items()
    }
    save_whole(path, tensors, {"schema_version": SCHEMA, **info}, "the acceptance head")


def attach(ref: str | Path, view: ExitModel, model: str) -> PredictingExit:
    """Give a draft model the head of a file.

    Args:
        model: what the draft model was loaded by; tells whether its weights are those trained on.

    Raises:
        HierspecError: no such head, a damaged file, or one of a model of another size.

    Warns:
        HeadsWarning: the size fits and the weights are others. Output stays exact all the same.
    """
    file = read(ref)
    size, own = file.info["hidden_size"], view.trunk.backend.hidden_size
    if size != own:
        raise HierspecError(
            f"{file.path} was trained on {file.info['model']}, whose hidden_size is {size}; that "
            f"of {model} is {own}: train an acceptance head for {model}"
        )
    what = "drafts may end too early or too late; train the head again"
    warn_of_others(file.path, file.info, model, what)
    return PredictingExit(view, load(file))


def _damaged(path: Path, why: object) -> HierspecError:
    return HierspecError(f"{path} is damaged ({why}): train the head again")
