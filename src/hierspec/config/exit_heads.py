"""The file of trained exit heads: ``exit_heads.safetensors``, checked before anything is used.

Tensors ``exit.LAYER.weight`` and ``exit.LAYER.bias``, of an mlp also ``exit.LAYER.down``; where
heads score a part of the vocabulary, ``vocabulary`` with its ids. One metadata entry, ``hierspec``,
holds a JSON object: what was trained, on which model, and how well the heads did on held-out text.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, cast

import torch
from pydantic import AfterValidator, Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from typing_extensions import TypedDict  # pydantic needs this one below Python 3.12

from hierspec.errors import HierspecError, HierspecWarning, first_line
from hierspec.lm.backend import Backend
from hierspec.lm.exit_heads import FULL, MLP, ExitHead, Heads, VocabularyPart, vocabulary_part
from hierspec.lm.load import DTYPES
from hierspec.utils import schema
from hierspec.utils.files import expand_user, write_atomically
from hierspec.utils.schema import NonEmptyString, PositiveInteger
from hierspec.zoo import fingerprint, trained

FILE = trained.HEADS_FILE
SCHEMA = 1
_KEY = "hierspec"


def _ascending(exits: list[int]) -> list[int]:
    if exits != sorted(set(exits)):
        raise ValueError(f"layers must be ascending and different, not {exits}")
    return exits


_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Figures = dict[str, dict[str, _Finite]]  # by exit, by name


class HeadsInfo(TypedDict):
    """What is known of a file of heads; ``docs/heads.md`` lists the keys, of which these are
    checked."""

    kind: Literal["transform", "full", "mlp"]
    exits: Annotated[list[PositiveInteger], Field(min_length=1), AfterValidator(_ascending)]
    model: NonEmptyString
    hidden_size: PositiveInteger
    vocab_size: PositiveInteger
    num_layers: PositiveInteger
    input_size: NotRequired[PositiveInteger]
    inner_size: NotRequired[PositiveInteger]
    vocabulary_size: NotRequired[PositiveInteger]
    fingerprint: NotRequired[NonEmptyString | None]
    parameters: NotRequired[PositiveInteger]
    before: NotRequired[Figures]
    after: NotRequired[Figures]
    domains: NotRequired[dict[str, Figures]]
    texts: NotRequired[dict[str, Any]]


class HeadsWarning(HierspecWarning, UserWarning):
    """Heads that fit a model's sizes and were trained on other weights."""


@dataclass(frozen=True, slots=True)
class HeadsFile:
    """A file of heads whose description was read and found sound; tensors are read on demand.

    Attributes:
        info: its metadata.
    """

    path: Path
    info: HeadsInfo

    @property
    def kind(self) -> str:
        return self.info["kind"]

    @property
    def exits(self) -> tuple[int, ...]:
        return tuple(self.info["exits"])

    def vocabulary(self) -> torch.Tensor | None:
        """Return the ids [v] int64 that the heads score, ascending; ``None``: all there are.

        Raises:
            HierspecError: they are none.
        """
        size = self.info.get("vocabulary_size")
        if size is None:
            return None
        ids = self._read(["vocabulary"]).get("vocabulary")
        if ids is None:
            raise _damaged(self.path, "the vocabulary is missing")
        ids, whole = ids.long(), self.info["vocab_size"]
        steps = bool((ids.diff() > 0).all())
        if ids.shape != (size,) or not steps or int(ids[0]) < 0 or int(ids[-1]) >= whole:
            raise _damaged(self.path, f"the vocabulary is not {size} ascending ids below {whole}")
        return ids

    def tensors(self, layer: int) -> dict[str, torch.Tensor]:
        """Return the head after ``layer`` layers: its weight, and bias and down if any.

        Raises:
            HierspecError: there is none, or its numbers are not those of a head.
        """
        if layer not in self.exits:
            raise HierspecError(
                f"{self.path} has heads for the exits after layers "
                f"{', '.join(map(str, self.exits))}, none after layer {layer}: choose one of "
                "those, or train it with hierspec heads train"
            )
        shapes = self._shapes()
        names = {f"exit.{layer}.{part}": part for part in shapes}
        found = {names[name]: tensor for name, tensor in self._read(list(names)).items()}
        for part in ("weight", "down"):
            if part in shapes and part not in found:
                raise _damaged(self.path, f"the {part} of exit {layer} is missing")
        for part, tensor in found.items():
            shape = shapes[part]
            wrong = None
            if tensor.shape != shape:
                wrong = f"has shape {tuple(tensor.shape)}, not {shape}"
            elif tensor.dtype not in DTYPES:
                wrong = f"is of {tensor.dtype}, which no head is"
            elif not tensor.isfinite().all():
                wrong = "holds NaN or infinite numbers"
            if wrong:
                raise _damaged(self.path, f"the {part} of exit {layer} {wrong}")
        return found

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        info, size = self.info, self.info["hidden_size"]
        if self.kind == FULL:
            rows = info.get("vocabulary_size", info["vocab_size"])
            return {"weight": (rows, info.get("input_size", size)), "bias": (rows,)}
        if self.kind == MLP:
            inner = info.get("inner_size", 0)
            return {"weight": (size + inner, size), "bias": (size + inner,), "down": (size, inner)}
        return {"weight": (size, info.get("input_size", size)), "bias": (size,)}

    def _read(self, wanted: list[str]) -> dict[str, torch.Tensor]:
        """Read those of the tensors that exist."""
        try:
            with safe_open(self.path, framework="pt") as file:
                names = set(file.keys())
                return {name: file.get_tensor(name) for name in wanted if name in names}
        except (SafetensorError, OSError) as error:
            raise _damaged(self.path, first_line(error)) from None


def write(path: Path, heads: Heads, dtype: torch.dtype, info: Mapping[str, Any]) -> None:
    """Write all heads and their metadata in one step: readers find the old file or the new."""
    tensors = {
        f"exit.{name}": tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in heads.state_dict().items()
    }
    if heads.ids is not None:
        tensors["vocabulary"] = heads.ids.to("cpu", torch.int32)
    save_whole(path, tensors, {"schema_version": SCHEMA, **info}, "the heads")


def save_whole(
    path: Path, tensors: dict[str, torch.Tensor], info: Mapping[str, Any], what: str
) -> None:
    """Write tensors and a description as safetensors, readable like any file one writes.

    Args:
        what: it is, for messages.
    """

    def save(target: Path) -> None:
        save_file(tensors, target, {_KEY: json.dumps(info)})
        mask = os.umask(0)  # it can only be read by setting it
        os.umask(mask)
        target.chmod(0o666 & ~mask)  # safetensors writes for the owner alone

    write_atomically(path, save, what)


def load_into(heads: Heads, file: HeadsFile) -> None:
    """Give heads that are trained on the numbers of a file.

    Raises:
        HierspecError: they are of another size.
    """
    state = {
        f"{layer}.{part}": tensor
        for layer in file.exits
        for part, tensor in file.tensors(layer).items()
    }
    try:
        heads.load_state_dict(state)
    except RuntimeError as error:
        raise HierspecError(
            f"{file.path} holds heads of another size ({first_line(error)}): start afresh"
        ) from None


def locate(ref: str | Path) -> Path:
    """Return the file behind a path or ``zoo:smollm2-heads``: itself, or that in a folder."""
    path = expand_user(trained.locate(str(ref)))
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
        raise _damaged(path, first_line(error)) from None
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
        schema.validate(HeadsInfo, info, "its metadata")
    except HierspecError as error:
        raise _damaged(path, error) from None
    last = info["num_layers"] - 1
    if beyond := [layer for layer in info["exits"] if layer > last]:
        raise _damaged(
            path,
            f"its metadata.exits: a model of {last + 1} layers has none after layer {beyond[0]}",
        )
    return HeadsFile(path, cast(HeadsInfo, info))


Parts = MutableMapping[tuple[Path, int], VocabularyPart]  # by file and model in memory


def attach(
    ref: str | Path, layer: int, backend: Backend, model: str, parts: Parts | None = None
) -> ExitHead:
    """Return the head after ``layer`` layers of a loaded model, ready to score.

    Args:
        ref: a file of heads, or a folder that holds ``exit_heads.safetensors``.
        model: what the model was loaded by; tells whether its weights are those trained on.
        parts: what heads of one file share, to be shared by further calls.

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
    found, ids = file.tensors(layer), file.vocabulary()
    parts = {} if parts is None else parts
    key = (file.path.resolve(), id(backend))
    try:
        if ids is not None and key not in parts:
            parts[key] = vocabulary_part(backend, ids, file.kind)
        head = ExitHead(
            file.kind,
            found["weight"],
            found.get("bias"),
            backend,
            found.get("down"),
            parts.get(key),
        )
        with torch.no_grad():
            head(torch.zeros(1, backend.hidden_size, dtype=backend.dtype, device=backend.device))
    except (RuntimeError, TypeError) as error:
        raise HierspecError(
            f"{file.path} does not fit {backend.name} ({first_line(error)}): train heads for it"
        ) from None
    warn_of_others(
        file.path, file.info, model, "drafts may be kept less often; train the heads again"
    )
    return head


def warn_of_others(path: Path, info: Mapping[str, Any], model: str, what: str) -> None:
    """Warn where what lies in a file was trained on other weights than a model's, if that is known.

    Args:
        info: the file's metadata.
        what: may come of it, and what to do.
    """
    mark = info.get("fingerprint")
    if mark and fingerprint.compute_if_local(model) not in (None, mark):
        warnings.warn(
            f"{path} was trained on other weights than those of {model}: output stays exact, "
            + what,
            HeadsWarning,
            stacklevel=3,
        )


def _damaged(path: Path, why: object) -> HierspecError:
    return HierspecError(f"{path} is damaged ({why}): train the heads again")
