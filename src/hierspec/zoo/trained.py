"""Drafters trained here for a released model and shipped beside the family: which are there.

``zoo:smollm2-eagle3`` is the folder ``smollm2-eagle3`` of the shipped data, and so on: what drafts
for ``zoo:NAME`` is called ``zoo:NAME-KIND``.
"""

from __future__ import annotations

from pathlib import Path

from hierspec.errors import HierspecError

from .registry import ACCEPTANCE, DATA, PREFIX, SIBLING, is_shipped
from .registry import EAGLE3 as _EAGLE3
from .registry import HEADS as _HEADS

EAGLE3, HEADS = "eagle3", "heads"  # kinds that are no models of their own; all others are
HEADS_FILE = "exit_heads.safetensors"  # in the folder of heads, or of their target


def folder(name: str, data: Path | None = None) -> Path:
    """Where a trained drafter's files are, or would be."""
    return (data or DATA) / name.removeprefix(PREFIX)


def kind(name: str) -> str:
    """``eagle3``, ``heads``, or another word: a model of its own."""
    return name.rpartition("-")[2] if name.startswith(PREFIX) else ""


def drafters_for(target: str, data: Path | None = None) -> tuple[str, ...]:
    """Names of the drafters shipped for a target; none for others than ``zoo:smollm2``."""
    if not target.startswith(PREFIX) or is_shipped(target):
        return ()
    beside = folder(target, data)
    found = beside.parent.glob(f"{beside.name}-*/*.safetensors")
    return tuple(sorted({f"{PREFIX}{file.parent.name}" for file in found}))


def siblings_of(target: str) -> tuple[str, ...]:
    """Those of :func:`drafters_for` that are models of their own."""
    return tuple(one for one in drafters_for(target) if kind(one) not in (EAGLE3, HEADS))


def located(name: str, data: Path | None = None) -> Path:
    """The folder of a shipped drafter, ``zoo:NAME``; any other name is the path itself.

    Raises:
        HierspecError: there is no such drafter, or it is not shipped.
    """
    if not name.startswith(PREFIX):
        return Path(name).expanduser()
    names = (_EAGLE3, _HEADS, SIBLING, ACCEPTANCE)
    if name not in names:
        known = ", ".join(names)
        raise HierspecError(f"no trained drafter called {name!r}; there are: {known}, or a path")
    path = folder(name, data)
    if not path.is_dir():
        raise HierspecError(
            f"{name} does not ship with this version: train it with `hierspec zoo train smollm2` "
            "or `hierspec heads train`, and give the folder it has written"
        )
    return path
