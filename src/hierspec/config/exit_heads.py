"""The file of trained exit heads, ``exit_heads.safetensors``, which is checked before it is used.

Its tensors are ``exit.LAYER.weight`` and ``exit.LAYER.bias``, for an mlp also ``exit.LAYER.down``,
and ``vocabulary`` if the heads score a part of the vocabulary: the ids of that part. One metadata
entry, ``hierspec``, holds a JSON object: what was trained, on which model, and how well the heads
did on held-out text.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, Field
from safetensors import SafetensorError, safe_open

from hierspec.errors import HierspecError, HierspecWarning, first_line
from hierspec.lm.backend import Backend
from hierspec.lm.exit_heads import FULL, MLP, ExitHead, VocabularyPart, vocabulary_part
from hierspec.lm.load import DTYPES
from hierspec.utils import schema
from hierspec.utils.files import expand_user
from hierspec.utils.records import FrozenRecord
from hierspec.utils.schema import Integer, Natural, NonEmptyString, PositiveInteger
from hierspec.zoo import fingerprint, registry, trained

FILE = trained.HEADS_FILE
SCHEMA = 1  # version of the metadata, for exit heads and acceptance heads
METADATA_KEY = "hierspec"

Info = TypeVar("Info", bound=FrozenRecord)


def _ascending(exits: list[int]) -> list[int]:
    if exits != sorted(set(exits)):
        raise ValueError(f"layers must be ascending and different, not {exits}")
    return exits


_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class ExitFigures(FrozenRecord):
    """How well an exit drafts on held-out text.

    Attributes:
        acceptance: 1 − TV at temperature 1; ``agreement``: share of equal argmaxes.
        kl: KL(model ‖ exit), nats.
        coverage: the model's mass on the tokens that the exit scores.
    """

    acceptance: _Finite
    agreement: _Finite
    kl: _Finite
    coverage: _Finite | None = None


FiguresByExit = dict[str, ExitFigures]


class TrainingTexts(FrozenRecord):
    """What heads were trained on."""

    name: str | None = None
    tokens: Natural | None = None


class HeadsInfo(FrozenRecord):
    """The metadata of a file of heads, in the file's order.

    Attributes:
        fingerprint: of the model's files.
        input_size: columns of a weight; 0: ``hidden_size``.
        vocabulary_size: how many tokens the heads score; ``None``: all.
        by_teacher: figures ``before`` and ``after``, where one exit taught those before it: how
            well they draft for that one.
    """

    schema_version: Integer
    kind: Literal["transform", "full", "mlp"]
    exits: Annotated[list[PositiveInteger], Field(min_length=1), AfterValidator(_ascending)]
    model: NonEmptyString
    fingerprint: NonEmptyString | None = None
    hidden_size: PositiveInteger
    vocab_size: PositiveInteger
    num_layers: PositiveInteger
    input_size: PositiveInteger = 0
    inner_size: PositiveInteger = 0
    vocabulary_size: PositiveInteger | None = None
    dtype: str | None = None
    parameters: PositiveInteger = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    steps: Natural | None = None
    seconds: Natural | _Finite | None = None
    texts: TrainingTexts = TrainingTexts()
    before: FiguresByExit = Field(default_factory=dict)
    after: FiguresByExit = Field(default_factory=dict)
    domains: dict[str, FiguresByExit] = Field(default_factory=dict)
    by_teacher: dict[str, FiguresByExit] = Field(default_factory=dict)


class HeadsWarning(HierspecWarning, UserWarning):
    """Heads that fit a model's sizes, but were trained on other weights."""


@dataclass(frozen=True, slots=True)
class HeadsFile:
    """A file of heads whose metadata was read and is valid; tensors are read on demand."""

    path: Path
    info: HeadsInfo

    @property
    def kind(self) -> str:
        return self.info.kind

    @property
    def exits(self) -> tuple[int, ...]:
        return tuple(self.info.exits)

    def vocabulary(self) -> torch.Tensor | None:
        """Return the ids [v] int64 that the heads score, ascending; ``None`` if they score all.

        Raises:
            HierspecError: they are missing, or no ascending ids.
        """
        size = self.info.vocabulary_size
        if size is None:
            return None
        ids = self._read(["vocabulary"]).get("vocabulary")
        if ids is None:
            raise damaged(self.path, "the vocabulary is missing")
        ids, limit = ids.long(), self.info.vocab_size
        ascends = bool((ids.diff() > 0).all())
        if ids.shape != (size,) or not ascends or int(ids[0]) < 0 or int(ids[-1]) >= limit:
            raise damaged(self.path, f"the vocabulary is not {size} ascending ids below {limit}")
        return ids

    def tensors(self, layer: int) -> dict[str, torch.Tensor]:
        """Return the tensors of the head after ``layer`` layers by name: weight, bias, down.

        Raises:
            HierspecError: there is no such head, or its tensors are not those of a head.
        """
        if layer not in self.exits:
            raise HierspecError(
                f"{self.path} has heads for the exits after layers "
                f"{', '.join(map(str, self.exits))}, none after layer {layer}: choose one of "
                "those, or train it with hierspec heads train"
            )
        shapes = self._shapes()
        names = {f"exit.{layer}.{name}": name for name in shapes}
        tensors = {names[key]: tensor for key, tensor in self._read(list(names)).items()}
        for name in ("weight", "down"):
            if name in shapes and name not in tensors:
                raise damaged(self.path, f"the {name} of exit {layer} is missing")
        for name, tensor in tensors.items():
            defect = None
            if tensor.shape != shapes[name]:
                defect = f"has shape {tuple(tensor.shape)}, not {shapes[name]}"
            elif tensor.dtype not in DTYPES:
                defect = f"is of {tensor.dtype}, which no head is"
            elif not tensor.isfinite().all():
                defect = "holds NaN or infinite numbers"
            if defect:
                raise damaged(self.path, f"the {name} of exit {layer} {defect}")
        return tensors

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        info, size = self.info, self.info.hidden_size
        rows, columns = size, info.input_size or size
        if self.kind == FULL:
            rows = info.vocabulary_size or info.vocab_size
        if self.kind == MLP:
            inner = info.inner_size
            return {"weight": (size + inner, size), "bias": (size + inner,), "down": (size, inner)}
        return {"weight": (rows, columns), "bias": (rows,)}

    def _read(self, names: list[str]) -> dict[str, torch.Tensor]:
        try:
            with safe_open(self.path, framework="pt") as file:
                existing = set(file.keys())
                return {name: file.get_tensor(name) for name in names if name in existing}
        except (SafetensorError, OSError) as error:
            raise damaged(self.path, first_line(error)) from None


def locate(ref: str | Path) -> Path:
    """Return the file of heads for its path, for its folder's, or for ``zoo:smollm2-heads``."""
    path = expand_user(trained.locate(str(ref)))
    return path / FILE if path.is_dir() else path


def read(ref: str | Path) -> HeadsFile:
    """Read and check the metadata of a file of heads, or of the one in a folder.

    Raises:
        HierspecError: there is no file, it is damaged, or it holds no exit heads.
    """
    path = locate(ref)
    if not path.is_file():
        raise HierspecError(
            f"no exit heads at {str(path)!r}: train some with hierspec heads train, or leave "
            '"head" out for the model\'s own final norm and head'
        )
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(METADATA_KEY)
        info = None if text is None else json.loads(text)
    except OSError as error:
        reason = error.strerror or error
        raise HierspecError(f"cannot read the exit heads in {path} ({reason})") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise damaged(path, first_line(error)) from None
    if not isinstance(info, dict) or "exits" not in info:
        raise HierspecError(
            f"{path} holds no exit heads: give a file that hierspec heads train has written"
        )
    file = HeadsFile(path, parse_metadata(HeadsInfo, info, path))
    num_layers = file.info.num_layers
    if too_deep := [layer for layer in file.exits if layer >= num_layers]:
        raise damaged(
            path,
            f"its metadata.exits: a model of {num_layers} layers has none after layer "
            f"{too_deep[0]}",
        )
    return file


def parse_metadata(shape: type[Info], info: dict[str, Any], path: Path) -> Info:
    if info.get("schema_version") != SCHEMA:
        raise HierspecError(
            f"{path} has schema version {info.get('schema_version')!r}, this hierspec reads "
            f"{SCHEMA}: train it again, or use the hierspec that wrote it"
        )
    try:
        return schema.validate(shape, info, "its metadata")
    except HierspecError as error:
        raise damaged(path, error) from None


VocabularyParts = MutableMapping[tuple[Path, int], VocabularyPart]  # by file and model in memory


def load_head(
    ref: str | Path, layer: int, backend: Backend, model: str, parts: VocabularyParts | None = None
) -> ExitHead:
    """Load the head after ``layer`` layers of a model in memory.

    Args:
        ref: a file of heads, or a folder that holds ``exit_heads.safetensors``.
        model: the name or path by which the model was loaded; shows whether the head was trained on
            its weights. ``zoo:smollm2-16bit`` takes heads for ``zoo:smollm2``, folded.
        parts: parts of vocabularies that calls share; new ones are added.

    Raises:
        HierspecError: no such head, a damaged file, or heads of a model of other sizes.

    Warns:
        HeadsWarning: the sizes fit, but the weights differ. The output is exact nevertheless.
    """
    file = read(ref)
    for key in ("hidden_size", "vocab_size", "num_layers"):
        trained_size, size = getattr(file.info, key), getattr(backend, key)
        if trained_size != size:
            raise HierspecError(
                f"{file.path} was trained on {file.info.model}, whose {key} is {trained_size}; "
                f"that of {backend.name} is {size}: train heads for {backend.name}"
            )
    tensors, ids = file.tensors(layer), file.vocabulary()
    if (model, file.info.model) == (registry.SMOLLM2_16BIT, registry.SMOLLM2_NAME):
        from hierspec.zoo.rotated import fold_head

        tensors = fold_head(file.kind, tensors, registry.open_smollm2())
        model = registry.SMOLLM2_NAME
    parts = {} if parts is None else parts
    key = (file.path.resolve(), id(backend))
    try:
        if ids is not None and key not in parts:
            parts[key] = vocabulary_part(backend, ids, file.kind)
        head = ExitHead(
            file.kind,
            tensors["weight"],
            tensors.get("bias"),
            backend,
            tensors.get("down"),
            parts.get(key),
        )
        with torch.no_grad():
            head(torch.zeros(1, backend.hidden_size, dtype=backend.dtype, device=backend.device))
    except (RuntimeError, TypeError) as error:
        raise HierspecError(
            f"{file.path} does not fit {backend.name} ({first_line(error)}): train heads for it"
        ) from None
    consequence = "drafts may be kept less often; train the heads again"
    warn_if_other_weights(file.path, file.info.fingerprint, model, consequence)
    return head


def warn_if_other_weights(path: Path, trained_on: str | None, model: str, consequence: str) -> None:
    """Warn if a file is known to have been trained on other weights than a model's."""
    if trained_on and fingerprint.is_local(model) and trained_on != fingerprint.compute(model):
        warnings.warn(
            f"{path} was trained on other weights than those of {model}: output stays exact, "
            + consequence,
            HeadsWarning,
            stacklevel=3,
        )


def damaged(path: Path, reason: object) -> HierspecError:
    return HierspecError(f"{path} is damaged ({reason}): train it again")
