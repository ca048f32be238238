"""``exit_heads.safetensors``: written once, checked before anything of it is used.

Tensors ``exit.LAYER.weight`` and ``exit.LAYER.bias``; one metadata entry, ``hierspec``, holds a
JSON object: what was trained, on which model, and how well the heads did on held-out text.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import AfterValidator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from typing_extensions import TypedDict  # typing's own does not serve pydantic before 3.12

from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend
from hierspec.lm.exit_heads import KINDS, TRANSFORM, ExitHead, Heads
from hierspec.lm.load import DTYPES
from hierspec.utils import schema
from hierspec.utils.checks import is_number
from hierspec.utils.files import write_whole
from hierspec.utils.schema import Expected, NonEmptyString, PositiveInteger
from hierspec.zoo import fingerprint


def _ascending(layers: tuple[int, ...]) -> tuple[int, ...]:
    if not layers or layers != tuple(sorted(set(layers))):
        raise ValueError
    return layers


def _figure(value: Any) -> Any:
    if not is_number(value):
        raise ValueError
    return value


_Figures = Annotated[
    dict[str, dict[str, Annotated[Any, AfterValidator(_figure)]]],
    Expected("an object of numbers by exit"),
]


class Description(TypedDict):
    """What the metadata of a file of heads must be; there may be more (docs/heads.md)."""

    kind: Annotated[Literal["transform", "full"], Expected(f"one of {', '.join(KINDS)}")]
    exits: Annotated[
        tuple[PositiveInteger, ...],
        AfterValidator(_ascending),
        Expected("a list of different layers from 1 on, ascending"),
    ]
    model: NonEmptyString
    hidden_size: PositiveInteger
    vocab_size: PositiveInteger
    num_layers: PositiveInteger
    input_size: NotRequired[PositiveInteger]
    fingerprint: NotRequired[NonEmptyString | None]
    parameters: NotRequired[PositiveInteger]
    before: NotRequired[_Figures]
    after: NotRequired[_Figures]
    texts: NotRequired[dict[str, Any]]


FILE = "exit_heads.safetensors"
SCHEMA = 1
_KEY = "hierspec"


class HeadsWarning(UserWarning):
    """Heads that fit a model's sizes and were trained on other weights."""


@dataclass(frozen=True, slots=True)
class HeadsFile:
    """A file of heads whose description was read and found sound; tensors are read on demand.

    Attributes:
        info: its metadata (docs/heads.md lists the keys).
    """

    path: Path
    info: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return self.info["kind"]

    @property
    def exits(self) -> tuple[int, ...]:
        return tuple(self.info["exits"])

    def tensors(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias of the head after ``layer`` layers.

        Raises:
            HierspecError: there is none, or its numbers are not those of a head.
        """
        if layer not in self.exits:
            raise HierspecError(
                f"{self.path} has heads for the exits after layers {_listed(self.exits)}, none "
                f"after layer {layer}: choose one of those, or train it with hierspec heads train"
            )
        try:
            with safe_open(self.path, framework="pt") as file:
                names = set(file.keys())
                weight, bias = (
                    file.get_tensor(name) if (name := f"exit.{layer}.{part}") in names else None
                    for part in ("weight", "bias")
                )
        except (SafetensorError, OSError) as error:
            raise _broken(self.path, _first_line(error)) from None
        if weight is None:
            raise _broken(self.path, f"the weight of exit {layer} is missing")
        rows = self.info["hidden_size" if self.kind == TRANSFORM else "vocab_size"]
        columns = self.info.get("input_size", self.info["hidden_size"])
        for part, tensor, shape in (("weight", weight, (rows, columns)), ("bias", bias, (rows,))):
            if tensor is None:
                continue
            if tensor.shape != shape:
                raise _broken(
                    self.path,
                    f"the {part} of exit {layer} has shape {tuple(tensor.shape)}, not {shape}",
                )
            if tensor.dtype not in DTYPES:
                raise _broken(
                    self.path,
                    f"the {part} of exit {layer} is of {tensor.dtype}, which no head is",
                )
        if not all(bool(t.isfinite().all()) for t in (weight, bias) if t is not None):
            raise _broken(self.path, f"the head of exit {layer} holds NaN or infinite numbers")
        return weight, bias


def write(path: Path, heads: Heads, dtype: torch.dtype, info: Mapping[str, Any]) -> None:
    """All heads and what is to be known of them, in one step: the old file, or the new one."""
    tensors = {
        f"exit.{name}": tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in heads.state_dict().items()
    }
    metadata = {_KEY: json.dumps({"schema_version": SCHEMA, **info})}

    def save(target: Path) -> None:
        save_file(tensors, target, metadata)
        mask = os.umask(0)  # it can only be read by setting it
        os.umask(mask)
        target.chmod(0o666 & ~mask)  # safetensors writes for the owner alone

    write_whole(path, save, "the heads")


def locate(ref: str | Path) -> Path:
    """The file behind a path: itself, or ``exit_heads.safetensors`` in a folder."""
    path = Path(ref).expanduser()
    return path / FILE if path.is_dir() else path


def read(ref: str | Path) -> HeadsFile:
    """Open a file of heads, or the one in a folder.

    Raises:
        HierspecError: there is none, it is damaged, or it is something else.
    """
    path = locate(ref)
    if not path.is_file():
        raise HierspecError(
            f"no exit heads at {str(path)!r}: train some with hierspec heads train, or leave "
            '"head" out for the model\'s own final norm and head'
        )
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
        info = None if text is None else json.loads(text)
    except OSError as error:
        why = error.strerror or error
        raise HierspecError(f"cannot read the exit heads in {path} ({why})") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise _broken(path, _first_line(error)) from None
    if not isinstance(info, dict) or "exits" not in info:
        raise HierspecError(
            f"{path} holds no exit heads: give a file that hierspec heads train has written"
        )
    if info.get("schema_version") != SCHEMA:
        raise HierspecError(
            f"{path} has schema version {info.get('schema_version')!r}, this hierspec reads "
            f"{SCHEMA}: train the heads again, or use the hierspec that wrote them"
        )
    try:
        described = schema.read(Description, info, "metadata")
    except HierspecError as error:
        raise _broken(path, error) from None
    if (deepest := described["exits"][-1]) >= (depth := described["num_layers"]):
        raise _broken(
            path, f"metadata.exits: a model of {depth} layers has none after layer {deepest}"
        )
    return HeadsFile(path, info)


def attach(ref: str | Path, layer: int, backend: Backend, model: str) -> ExitHead:
    """The head after ``layer`` layers of a loaded model, ready to score.

    Args:
        ref: a file of heads, or a folder that holds ``exit_heads.safetensors``.
        model: what the model was loaded by; tells whether its weights are those trained on.

    Raises:
        HierspecError: no such head, a damaged file, or heads of a model of other sizes.

    Warns:
        HeadsWarning: the sizes fit and the weights are others. Output stays exact all the same.
    """
    file = read(ref)
    for key in ("hidden_size", "vocab_size", "num_layers"):
        theirs, ours = file.info[key], getattr(backend, key)
        if theirs != ours:
            raise HierspecError(
                f"{file.path} was trained on {file.info['model']}, whose {key} is {theirs}; that "
                f"of {backend.name} is {ours}: train heads for {backend.name}"
            )
    head = ExitHead(file.kind, *file.tensors(layer), backend)
    try:
        with torch.no_grad():
            head(torch.zeros(1, backend.hidden_size, dtype=backend.dtype, device=backend.device))
    except (RuntimeError, TypeError) as error:
        raise HierspecError(
            f"{file.path} does not fit {backend.name} ({_first_line(error)}): train heads for it"
        ) from None
    trained_on = file.info.get("fingerprint")
    if trained_on and fingerprint.found(model) and fingerprint.weights(model) != trained_on:
        warnings.warn(
            f"{file.path} was trained on other weights than those of {model}: output stays exact, "
            "drafts may be kept less often; train the heads again",
            HeadsWarning,
            stacklevel=2,
        )
    return head


def _listed(exits: tuple[int, ...]) -> str:
    return ", ".join(map(str, exits)) or "none"


def _broken(path: Path, why: object) -> ValueError:
    return HierspecError(f"{path} is damaged ({why}): train the heads again")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
