"""The methods that a bench knows, by name: ours, the papers' systems, baselines, other engines.

Every preset is listed automatically, and so is whatever :mod:`hierspec_lab.bench.peers` lists.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierspec.config.methods import find
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError
from hierspec.presets.defaults import FILES
from hierspec.presets.registry import PRESETS
from hierspec_lab.bench import peers
from hierspec_lab.bench.method_records import GROUPS, PLAIN

from .entry import MethodEntry

if TYPE_CHECKING:  # models bring torch along; a list of names needs none of it
    from .base import Method
    from .ours import BenchModels

_PLURALS = {"papers": "paper", "baselines": "baseline", "peers": "peer"}  # groups in the plural
_PAPERS = ("P1", "P2", "P3", "P4", "P5")
_OURS = (  # name, title, group, source, summary
    (PLAIN, "plain decoding", "plain", "", "one token a call of the target"),
    ("planned", "planned here", "planned", "P1",
     "models profiled on this machine, the best hierarchy computed"),
    ("online", "planned, adapting", "planned", "",
     "the plan, whose levels and budgets follow the text"),
    ("hierarchy", "chain of drafts", "paper", "P1",
     "three levels and more, block verification; tuned"),
    ("branch", "branch resampling (= block)", "paper", "P4",
     "one draft model, block verification; tuned"),
    ("speculative", "one draft model", "baseline", "Leviathan et al. 2023; Chen et al. 2023",
     "one draft model, tokenwise verification; tuned"),
)  # fmt: skip


ALONE = "alone"  # the group word for each drafter by itself


def catalogue(drafts: Sequence[str] = ()) -> dict[str, MethodEntry]:
    """Return all methods by name, in the order in which they are shown.

    Args:
        drafts: each adds a method ``alone-…``, which drafts with it alone, tuned over lengths.
    """
    methods = {row[0]: MethodEntry(*row, _candidates(row[0])) for row in _OURS}
    for draft, word in zip(drafts, labels(drafts), strict=True):
        name = f"{ALONE}-{word}"
        fields = f"{word} alone", "baseline", "", f"{draft} alone, at its best length; tuned"
        methods[name] = MethodEntry(name, *fields, _single_draft_candidates(name, draft))
    for preset in PRESETS.values():
        name = preset.name
        if name not in methods and name != "autoregressive":  # that is "plain"
            group = "paper" if preset.source in _PAPERS else "baseline"
            fields = name.replace("-", " "), group, preset.source, preset.summary
            methods[name] = MethodEntry(name, *fields, _candidates(name))
    for entry in peers.catalogue():
        assert entry.name not in methods, f"two methods are called {entry.name!r}"
        methods[entry.name] = entry
    order = {group: i for i, group in enumerate(GROUPS)}
    return dict(sorted(methods.items(), key=lambda item: order[item[1].group]))


def labels(drafts: Sequence[str]) -> list[str]:
    """Return a short, distinct name for each draft; repeated ones end in ``-2``, ``-3``, …"""
    words: list[str] = []
    for draft in drafts:
        word, number = label(draft), 2
        while word in words:
            word, number = f"{label(draft)}-{number}", number + 1
        words.append(word)
    return words


def label(draft: str) -> str:
    """Name a draft in one word: ``exit:5,head=…`` → ``exit-5``, ``zoo:small`` → ``small``."""
    with contextlib.suppress(ValueError, AttributeError):  # a level as JSON
        level = json.loads(draft)
        draft = str(level.get("model") or level.get("method"))
    head = draft.strip().rstrip("/").partition(",")[0].removeprefix("zoo:")
    kind = head.partition(":")[0]
    method = find(kind)
    if kind in ("exit", "quantized") or (method is not None and method.maker is not None):
        return head.replace(":", "-")
    return head.rpartition("/")[2].rpartition(":")[2] or head


def _single_draft_candidates(name: str, draft: str) -> Callable[[BenchModels, float], list[Method]]:
    def candidates(models: BenchModels, temperature: float) -> list[Method]:
        from . import grids

        return grids.given_draft(name, models, draft)

    return candidates


def _of_file(word: str) -> MethodEntry:
    """Return the hierarchy of a file as a method, called by the file's name.

    Raises:
        HierspecError: the file cannot be read, or is no hierarchy.
    """
    config = HierarchyConfig.load(word)
    content, name = config.to_dict(), Path(word).name
    levels = content.pop("levels", [])
    target = content.pop("target")["model"]

    def candidates(models: BenchModels, temperature: float) -> list[Method]:
        from .base import Unavailable
        from .ours import HierarchyMethod

        if str(models.target.model) != target:
            raise Unavailable(f"it is a hierarchy for {target}")
        return [HierarchyMethod(name, models, levels, **content)]

    fields = name, "baseline", "", f"the hierarchy of {word}"
    return MethodEntry(name, *fields, candidates, lossless=not config.allow_lossy)


def _candidates(name: str) -> Callable[[BenchModels, float], list[Method]]:
    """Return the function that lists configurations of a method of ours or a preset."""

    def candidates(models: BenchModels, temperature: float) -> list[Method]:
        from . import grids, planned

        match name:
            case "plain":
                return grids.plain(models)
            case "planned":
                return planned.planned(models, temperature)
            case "online":
                return planned.online(models, temperature)
            case "hierarchy":
                return grids.chains(name, models)
            case "branch":
                return grids.single(name, models, "block")
            case "speculative":
                return grids.single(name, models, "tokenwise")
            case "eagle3":
                return grids.eagle3(name, models)
        return grids.of_preset(PRESETS[name], models)

    return candidates


def select(words: Sequence[str], methods: dict[str, MethodEntry]) -> list[MethodEntry]:
    """Select methods by names and groups (``all``, ``papers``, …), in the catalogue's order.

    A word that is both is the name; one that names a .json or .toml file is its hierarchy. Plain
    decoding is always among them: all others are compared with it.

    Raises:
        HierspecError: no such name or group; says which are near, and which there are.
    """
    names, methods = {PLAIN}, dict(methods)
    for word in [part.strip() for text in words for part in text.split(",") if part.strip()]:
        group = _PLURALS.get(word, word)
        if word == "all":
            names |= set(methods)
        elif Path(word).suffix in FILES:
            entry = _of_file(word)
            if entry.name in methods:
                raise HierspecError(f"two files are called {entry.name}: rename one of them")
            methods[entry.name] = entry
            names.add(entry.name)
        elif word in methods:
            names.add(word)
        elif word == ALONE:
            names |= {name for name in methods if name.startswith(f"{ALONE}-")}
        elif group in GROUPS:
            names |= {name for name, entry in methods.items() if entry.group == group}
        else:
            choices = [*methods, "all", *_PLURALS]
            near = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise HierspecError(
                f"no method called {word!r}; {hint}hierspec bench --list shows all; "
                f"groups: all, {', '.join(_PLURALS)}, {ALONE}"
            )
    return [entry for name, entry in methods.items() if name in names]
