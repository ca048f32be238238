"""Drafters that we trained for a released model and ship: which there are, and their folders.

A drafter for ``zoo:NAME`` is called ``zoo:NAME-KIND``: ``zoo:smollm2-eagle3`` is the folder
``smollm2-eagle3`` of the shipped data.
"""

from __future__ import annotations

from pathlib import Path

from hierspec.errors import HierspecError

from .registry import ACCEPTANCE, DATA, PREFIX, SIBLING, is_shipped
from .registry import EAGLE3 as _EAGLE3
from .registry import HEADS as _HEADS

EAGLE3, HEADS = "eagle3", "heads"  # the kinds that are not models of their own
HEADS_FILE = "exit_heads.safetensors"  # in the folder of heads, or of their target


def folder(name: str, data: Path | None = None) -> Path:
    """Return the folder of a trained drafter, whether it exists or not."""
    return (data or DATA) / name.removeprefix(PREFIX)


def kind(name: str) -> str:
    """Return a drafter's kind: ``eagle3``, ``heads``, or another word for a model of its own."""
    return name.rpartition("-")[2] if name.startswith(PREFIX) else ""


def drafters_for(target: str, data: Path | None = None) -> tuple[str, ...]:
    """Return the names of drafters shipped for a target; only ``zoo:smollm2`` has any."""
    if not target.startswith(PREFIX) or is_shipped(target):
        return ()
    beside = folder(target, data)
    found = beside.parent.glob(f"{beside.name}-*/*.safetensors")
    return tuple(sorted({f"{PREFIX}{file.parent.name}" for file in found}))


def siblings_of(target: str) -> tuple[str, ...]:
    """Return those of :func:`drafters_for` that are models of their own."""
    return tuple(name for name in drafters_for(target) if kind(name) not in (EAGLE3, HEADS))


def locate(name: str, data: Path | None = None) -> Path:
    """Return the folder of a shipped drafter, ``zoo:NAME``; any other name is a path itself.

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
