"""Drafters trained for a released model: their names, kinds and folders.

A drafter for ``zoo:NAME`` is called ``zoo:NAME-KIND``: ``zoo:smollm2-sibling`` is the folder
``smollm2-sibling`` of the shipped data. Not every version ships all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hierspec.errors import HierspecError
from hierspec.utils.documents import read_json

from . import registry
from .registry import PREFIX, SMOLLM2, SMOLLM2_NAME

EAGLE3_KIND, HEADS_KIND = "eagle3", "heads"  # the kinds that are not models themselves
EAGLE3_REPORT = "hierspec.json"  # in the folder of a network
HEADS_FILE = "exit_heads.safetensors"  # in the folder of heads, or of their target


def kind(name: str) -> str:
    """Return the part of a drafter's name that is its kind: ``eagle3``, ``heads``, ``sibling``."""
    return name.rpartition("-")[2] if name.startswith(PREFIX) else ""


def drafters_for(target: str) -> tuple[str, ...]:
    """Return the names of drafters shipped for a target; only SmolLM2 has any."""
    if not registry.is_smollm2(target):
        return ()
    files = registry.DATA.glob(f"{SMOLLM2}-*/*.safetensors")
    return tuple(sorted({f"{PREFIX}{file.parent.name}" for file in files}))


def of_kind(name: str, target: str) -> list[str]:
    """Return those of :func:`drafters_for` that are of a kind."""
    return [drafter for drafter in drafters_for(target) if kind(drafter) == name]


def siblings_of(target: str) -> tuple[str, ...]:
    """Return those of :func:`drafters_for` that are models themselves."""
    return tuple(filter(is_model, drafters_for(target)))


def is_model(name: str) -> bool:
    """Return whether a name is none of a drafter that reads the states of its target."""
    return kind(name) not in (EAGLE3_KIND, HEADS_KIND)


def is_for_smollm2(drafter: str) -> bool:
    """Return whether a drafter, by its name or its folder's report, is one for zoo:smollm2."""
    if drafter.startswith(PREFIX):
        return drafter.startswith(f"{SMOLLM2_NAME}-")
    report = locate(drafter) / EAGLE3_REPORT
    description = read_json(dict[str, Any], report, "its report") if report.is_file() else {}
    return description.get("target") == SMOLLM2_NAME


def locate(name: str) -> Path:
    """Return the folder of a shipped drafter, ``zoo:NAME``; any other name is a path itself.

    Raises:
        HierspecError: there is no such drafter, or this version does not ship it.
    """
    if not name.startswith(PREFIX):
        return Path(name).expanduser()
    names = (registry.SMOLLM2_EAGLE3, registry.SMOLLM2_HEADS, registry.SMOLLM2_SIBLING)
    entry = registry.find(name) if name in names else None
    if entry is None:
        raise HierspecError(
            f"no trained drafter called {name!r}; there are: {', '.join(names)}, or a path"
        )
    return entry.files()
