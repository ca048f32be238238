"""What a GGUF file says: its metadata by key, and where its tensors are; no weight is read.

The format (of ggml's ``docs/gguf.md``): a magic, a version, the numbers of tensors and of metadata,
then those, then the tensors' data, aligned. Nothing here trusts a length or a count: a damaged file
is one line, and takes no memory that the file itself does not fill.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.files import file_state

from .files import shards, validate_file

_FETCH = "fetch it again"
_VERSIONS = (2, 3)
_MOST = 1 << 24  # items of a list or bytes of a text: more than any vocabulary or template has
_ALIGNMENT = 32
_FORMATS = {
    kind: struct.Struct("<" + code) for kind, code in enumerate("BbHhIif?..Qqd") if code != "."
}
_STRING, _ARRAY = 8, 9
_TOO_MANY = "it ends too early, or a count in it is wrong"
# What a file is by its ``general.type``, and by the architecture of older ones
_NO_MODELS = {
    "adapter": "a LoRA adapter: merge it into its model (llama.cpp's llama-export-lora) and give "
    "that file",
    "mmproj": "the image or audio part of a model (mmproj): give the file of its language model",
    "imatrix": "an importance matrix, by which files are quantized: give the file of a model",
}
_NO_MODELS_BY_ARCHITECTURE = {"clip": "mmproj", "imatrix": "imatrix"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's data is.

    Attributes:
        shape: as torch has it, the longest stride first.
        kind: ggml's number of its quantization.
        start: of its data in ``file``, bytes.
        room: bytes from there to the file's end.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    file: Path
    start: int
    room: int


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of a model's file, or of all its shards.

    Metadata are read by kind; a key of another kind is an error that names it.
    """

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def architecture(self) -> str:
        """llama.cpp's name of the model's architecture, the prefix of the keys of its sizes."""
        return self.string("general.architecture")

    @property
    def context_length(self) -> int:
        return self.positive(f"{self.architecture}.context_length")

    def refuse(self, what: str) -> HierspecError:
        """Return the error of a file that is right, but cannot be run."""
        return HierspecError(f"{self.name} {what}")

    def damaged(self, what: str) -> HierspecError:
        """Return the error of a file that contradicts itself, or says too little."""
        return HierspecError(f"{self.path} {what}; {_FETCH}, or convert it anew")

    def string(self, key: str, default: str | None = None) -> str:
        return self._get(key, default, "a text", lambda value: isinstance(value, str))

    def flag(self, key: str, default: bool) -> bool:
        return self._get(key, default, "true or false", lambda value: isinstance(value, bool))

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a number; of a list with a number for every layer, the one that all layers have.

        Raises:
            HierspecError: it is missing, no whole number, or differs between layers.
        """
        value = self.fields.get(key, default)
        if isinstance(value, list) and value and all(_is_integer(one) for one in value):
            if len(set(value)) > 1:
                raise self.refuse(
                    f"has layers of different sizes ({key} from {min(value)} to {max(value)}), "
                    "which is not supported: choose a model whose layers are alike"
                )
            return value[0]
        return self._get(key, default, "a whole number", _is_integer)

    def positive(self, key: str, default: int | None = None) -> int:
        """Return :meth:`integer`, which must be at least 1."""
        value = self.integer(key, default)
        if value < 1:
            raise self.damaged(f"has {key} {value}, which must be at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(
            key, default, "a number", lambda one: _is_integer(one) or isinstance(one, float)
        )
        if not abs(value) < float("inf"):
            raise self.damaged(f"has {key} {value}")
        return float(value)

    def strings(self, key: str) -> list[str]:
        return self._get(key, None, "a list of texts", lambda value: _is_list(value, str))

    def integers(self, key: str) -> list[int]:
        return self._get(key, None, "a list of whole numbers", lambda value: _is_list(value, int))

    def numbers(self, key: str) -> list[float]:
        return self._get(
            key, None, "a list of numbers", lambda v: _is_list(v, float) or _is_list(v, int)
        )

    def _get(self, key: str, default: Any, noun: str, fits: Callable[[Any], bool]) -> Any:
        value = self.fields.get(key, default)
        if value is None:
            raise self.damaged(f"lacks the field {key}")
        if not fits(value):
            raise self.damaged(f"has a field {key} that is not {noun}")
        return value


def read_header(path: str | Path) -> Header:
    """Read what a model's file says, or its shards by the first.

    Raises:
        HierspecError: there is no such file, it is damaged, holds no model, or is a part of one.
    """
    path = Path(path)
    validate_file(path)
    fields: dict[str, Any] = {}
    tensors: dict[str, StoredTensor] = {}
    files = shards(path)
    for number, file in enumerate(files):
        own_fields, own_tensors = _read_file(file)
        if number == 0:
            fields = own_fields
            _validate_kind(file, fields)
        _validate_shard(file, own_fields, number, len(files))
        if twice := tensors.keys() & own_tensors.keys():
            raise HierspecError(
                f"{file} repeats the tensor {min(twice)}: the parts are of two models"
            )
        tensors |= own_tensors
    header = Header(path, fields, tensors)
    if not tensors and header.architecture:
        raise header.refuse("holds a vocabulary alone, no weights: give the file of the model")
    return header


def _validate_kind(file: Path, fields: Mapping[str, Any]) -> None:
    kind = str(fields.get("general.type", "model"))
    kind = _NO_MODELS_BY_ARCHITECTURE.get(str(fields.get("general.architecture")), kind)
    if "adapter.type" in fields:
        kind = "adapter"
    if kind in _NO_MODELS:
        raise HierspecError(f"{file.name} holds {_NO_MODELS[kind]}")
    if kind != "model":
        raise HierspecError(
            f"{file.name} holds {kind!r} instead of a model: give the file of a model"
        )


def _validate_shard(file: Path, fields: Mapping[str, Any], number: int, count: int) -> None:
    """Refuse a part of a split file under the name of a whole one, or of another part."""
    said = (fields.get("split.no", 0), fields.get("split.count", 1) or 1)
    if said != (number, count):
        raise HierspecError(
            f"{file.name} says it is part {_plus_one(said[0])} of {said[1]} of a split GGUF file, "
            f"its name says {number + 1} of {count}: keep the names that the parts were published "
            "under, and give the first"
        )


def _plus_one(number: Any) -> Any:
    return number + 1 if _is_integer(number) else number


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    try:
        state = file_state(path)
        return _parse(path) if state is None else _parse_once(path, *state)
    except _DamagedError as error:
        raise HierspecError(f"{path} is damaged ({error}): {_FETCH}") from None
    except OSError as error:
        raise HierspecError(f"cannot read {path}: {error.strerror or error}") from None


def _parse(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise HierspecError(f"{path} is not a GGUF file, or is damaged: {_FETCH}")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(path, data).parse()


@lru_cache(maxsize=1)  # a model's is asked for at several places
def _parse_once(path: Path, *_state: Any) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    return _parse(path)


class _DamagedError(Exception):
    """What is wrong with a file."""


class _Parser:
    """Reads a file from its beginning; every step checks that there are enough bytes left."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data = path, data
        self.offset = 4  # after the magic

    def parse(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        version = self._unpack(_FORMATS[4])
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise HierspecError(
                    f"{self.path.name} is written for machines of the other byte order "
                    "(big-endian): fetch or convert a little-endian one"
                )
            raise HierspecError(
                f"{self.path.name} is of version {version} of the GGUF format; versions 2 and 3 "
                "are read: fetch or convert a newer one"
            )
        num_tensors, num_fields = self._unpack(_FORMATS[10]), self._unpack(_FORMATS[10])
        fields: dict[str, Any] = {}
        for _ in range(self._counted(num_fields, 13)):  # a key's length, type and value at least
            key = self._string()
            if key in fields:
                raise _DamagedError(f"it has {key!r} twice")
            fields[key] = self._value(self._unpack(_FORMATS[4]))
        stored = [self._tensor() for _ in range(self._counted(num_tensors, 24))]
        alignment = fields.get("general.alignment", _ALIGNMENT)
        if not _is_integer(alignment) or alignment < 1 or alignment & (alignment - 1):
            raise _DamagedError(f"its alignment is {alignment}")
        begin = -(-self.offset // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in stored:
            if name in tensors:
                raise _DamagedError(f"it has the tensor {name!r} twice")
            if begin + offset > len(self.data):
                raise _DamagedError(f"it ends before {name!r}")
            start = begin + offset
            room = len(self.data) - start
            tensors[name] = StoredTensor(name, shape, kind, self.path, start, room)
        return fields, tensors

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        rank = self._unpack(_FORMATS[4])
        if rank > 4:
            raise _DamagedError(f"its tensor {name!r} has {rank} dimensions")
        shape = tuple(self._unpack(_FORMATS[10]) for _ in range(rank))[::-1]
        return name, shape, self._unpack(_FORMATS[4]), self._unpack(_FORMATS[10])

    def _value(self, kind: int) -> Any:
        if kind in _FORMATS:
            return self._unpack(_FORMATS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise _DamagedError(f"a field is of unknown type {kind}")
        items, count = self._unpack(_FORMATS[4]), self._unpack(_FORMATS[10])
        if items == _STRING:
            return self._strings(self._counted(count, 8))
        if items not in _FORMATS:
            raise _DamagedError(f"a field is a list of type {items}")
        one = _FORMATS[items]
        block = struct.Struct(f"<{self._counted(count, one.size)}{one.format[1:]}")
        return list(self._take(block))

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        """Read texts; a vocabulary has a hundred thousand, so there is no call for each part."""
        data, end, at, texts = self.data, len(self.data), self.offset, list[str]()
        unpack = _FORMATS[10].unpack_from
        for _ in range(count):
            if at + 8 > end:
                raise _DamagedError("it ends too early")
            (length,) = unpack(data, at)
            at += 8
            if length > end - at or length > _MOST:
                raise _DamagedError(_TOO_MANY)
            try:
                texts.append(data[at : at + length].decode())
            except UnicodeDecodeError:
                raise _DamagedError(f"the text at byte {at} is not UTF-8") from None
            at += length
        self.offset = at
        return texts

    def _unpack(self, form: struct.Struct) -> Any:
        return self._take(form)[0]

    def _take(self, form: struct.Struct) -> tuple[Any, ...]:
        if self.offset + form.size > len(self.data):
            raise _DamagedError("it ends too early")
        values = form.unpack_from(self.data, self.offset)
        self.offset += form.size
        return values

    def _counted(self, count: int, size: int) -> int:
        """Return how many things of at least ``size`` bytes follow, if so many can."""
        if count > _MOST or count * size > len(self.data) - self.offset:
            raise _DamagedError(_TOO_MANY)
        return count


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any, kind: type) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(isinstance(one, kind) and not isinstance(one, bool) for one in value)
