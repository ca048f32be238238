"""The methods that a bench knows, by name: ours, the papers' systems, baselines, other engines.

An :class:`Entry` is a method before it has models. Every preset is here of itself, and so is
whatever :mod:`hierspec.bench.peers` lists.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hierspec.errors import HierspecError

from .entry import GROUPS, Entry

if TYPE_CHECKING:  # models bring torch along; a list of names needs none of it
    from hierspec.bench.turns import Method

    from .ours import Models

PLAIN = "plain"
_WORDS = {"papers": "paper", "baselines": "baseline", "peers": "peer"}  # groups in the plural
_PAPERS = ("P1", "P2", "P3", "P4", "P5")


def catalogue() -> dict[str, Entry]:
    """All methods by name, in the order in which they are shown."""
    from hierspec.bench.peers import catalogue as peers
    from hierspec.presets.registry import PRESETS

    found = {entry.name: entry for entry in _ours()}
    for preset in PRESETS.values():
        if preset.name not in found and preset.name != "autoregressive":  # that is "plain"
            found[preset.name] = _preset(preset.name)
    for entry in peers():
        if entry.name in found:
            raise AssertionError(f"two methods are called {entry.name!r}")
        found[entry.name] = entry
    order = {group: i for i, group in enumerate(GROUPS)}
    return dict(sorted(found.items(), key=lambda item: order[item[1].group]))


def select(words: Sequence[str], known: dict[str, Entry]) -> list[Entry]:
    """The methods of names and groups (``all``, ``papers``, …), in the catalogue's order.

    A word that is both is the name.

    Plain decoding is always among them: all others are compared with it.

    Raises:
        ValueError: no such name or group; says which are near, and which there are.
    """
    wanted = {PLAIN}
    for word in [part.strip() for text in words for part in text.split(",") if part.strip()]:
        group = _WORDS.get(word, word)
        if word == "all":
            wanted |= set(known)
        elif word in known:
            wanted.add(word)
        elif group in GROUPS:
            wanted |= {name for name, entry in known.items() if entry.group == group}
        else:
            choices = [*known, "all", *_WORDS]
            near = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise HierspecError(
                f"no method called {word!r}; {hint}hierspec bench --list shows all; "
                f"groups: all, {', '.join(_WORDS)}"
            )
    return [entry for name, entry in known.items() if name in wanted]


def _ours() -> list[Entry]:
    def single(name: str, verify: str) -> Callable[[Models, float], list[Method]]:
        def candidates(models: Models, temperature: float) -> list[Method]:
            from .grids import single as found

            return found(name, models, verify)

        return candidates

    def chains(models: Models, temperature: float) -> list[Method]:
        from .grids import chains as found

        return found("hierarchy", models)

    def plain(models: Models, temperature: float) -> list[Method]:
        from .grids import plain as found

        return found(models, temperature)

    def planned(models: Models, temperature: float) -> list[Method]:
        from .planned import planned as found

        return found(models, temperature)

    def online(models: Models, temperature: float) -> list[Method]:
        from .planned import online as found

        return found(models, temperature)

    leviathan = "Leviathan et al. 2023; Chen et al. 2023"
    return [
        Entry(PLAIN, "plain decoding", "plain", "", "one token a call of the target", True, plain),
        Entry(
            "planned",
            "planned here",
            "planned",
            "P1",
            "models profiled on this machine, the best hierarchy computed",
            True,
            planned,
        ),
        Entry(
            "online",
            "planned, adapting",
            "planned",
            "",
            "the plan, whose levels and budgets follow the text",
            True,
            online,
        ),
        Entry(
            "hierarchy",
            "chain of drafts",
            "paper",
            "P1",
            "three levels and more, block verification; tuned",
            True,
            chains,
        ),
        Entry(
            "branch",
            "branch resampling (= block)",
            "paper",
            "P4",
            "one draft model, block verification; tuned",
            True,
            single("branch", "block"),
        ),
        Entry(
            "speculative",
            "one draft model",
            "baseline",
            leviathan,
            "one draft model, tokenwise verification; tuned",
            True,
            single("speculative", "tokenwise"),
        ),
    ]


def _preset(name: str) -> Entry:
    from hierspec.presets.registry import PRESETS

    preset = PRESETS[name]

    def candidates(models: Models, temperature: float) -> list[Method]:
        from .grids import of_preset

        return of_preset(preset, models)

    paper = preset.source in _PAPERS
    return Entry(
        name,
        name.replace("-", " "),
        "paper" if paper else "baseline",
        preset.source,
        preset.summary,
        True,
        candidates,
    )
