"""Our methods as small grids of configurations, equally many for all that are compared.

Every method that is tuned gets ``TRIALS`` configurations, so that none wins by having been tuned
harder: a single draft several models and budgets, chains of drafts likewise, and presets their own
budgets and others around them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hierspec.config.chains import ConcatenateConfig
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError
from hierspec.methods.early_exit import trained_exits
from hierspec.presets.systems import Preset, PresetModels
from hierspec.profiling.candidates import parse
from hierspec.zoo import trained

from .base import Method, Unavailable
from .ours import BenchModels, HierarchyMethod

TRIALS = 12  # configurations of a method that is tuned
BUDGETS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20)  # of a single draft
LOWER, UPPER = (2, 3, 4, 6), (6, 8, 10, 12, 16)  # of two levels that draft

_NO_DRAFT = "needs a draft model: add --draft MODEL, of the target's family and smaller"
_POINTS = 4000  # candidates; few of them have ascending budgets where levels are many


def plain(models: BenchModels) -> list[Method]:
    return [HierarchyMethod("plain", models)]


def single(name: str, models: BenchModels, verify: str) -> list[Method]:
    """List configurations of a single draft: each of the drafts, over a spread of budgets.

    Raises:
        Unavailable: there is no draft.
    """
    return _singles(name, models, _drafts(models)[-TRIALS:], verify)


def given_draft(name: str, models: BenchModels, draft: str) -> list[Method]:
    """List configurations of one given draft over all budgets, with block verification."""
    return _singles(name, models, [draft], "block")


def _singles(name: str, models: BenchModels, drafts: Sequence[str], verify: str) -> list[Method]:
    return [
        HierarchyMethod(name, models, [models.level(draft, budget)], verify=verify)
        for draft, share in zip(reversed(drafts), split_trials(len(drafts)), strict=True)
        for budget in pick_evenly(BUDGETS, share)
    ]


def _shipped_eagle3(target: str) -> str:
    return next(iter(trained.of_kind(trained.EAGLE3_KIND, target)), "")


def eagle3(name: str, models: BenchModels) -> list[Method]:
    """List configurations of single EAGLE-3 drafters, with block verification.

    Raises:
        Unavailable: there is none, and none ships for this target.
    """
    drafts = [draft for draft in models.drafts if parse(draft).level.method == "eagle3"]
    if not drafts and (shipped := _shipped_eagle3(models.target.model)):
        drafts = [shipped]
    if not drafts:
        raise Unavailable("needs an EAGLE-3 drafter of the target: add --draft eagle3:FOLDER")
    return _singles(name, models, drafts, "block")


def chains(name: str, models: BenchModels) -> list[Method]:
    """List chains of three levels and more: every two of the drafts, and all; block verification.

    A single draft model is stacked on prompt lookup. A draft that cannot verify is the lowest.

    Raises:
        Unavailable: there is no draft that can verify another.
    """
    drafts = _drafts(models)
    if len(drafts) == 1:
        drafts = ["prompt-lookup", *drafts]
    stacks = [tuple(drafts)] if len(drafts) > 2 else []
    stacks += itertools.combinations(reversed(drafts), 2)
    stacks = [tuple(sorted(stack, key=drafts.index)) for stack in stacks]
    stacks = [stack for stack in stacks if all(map(models.can_verify, stack[1:]))][:TRIALS]
    if not stacks:
        raise Unavailable("no draft here can verify another: add --draft MODEL, larger ones last")
    # Cycles of four and of five: twenty trials would hold every two numbers, twelve each of them.
    budgets = zip(itertools.cycle(LOWER), itertools.cycle(UPPER))
    return [
        HierarchyMethod(name, models, _stacked(models, stack, lower, upper), verify="block")
        for stack, share in zip(stacks, split_trials(len(stacks)), strict=True)
        for lower, upper in itertools.islice(budgets, share)
    ]


def split_trials(parts: int) -> list[int]:
    """Split ``TRIALS`` into ``parts`` nearly equal integers, larger ones first."""
    return [TRIALS // parts + (i < TRIALS % parts) for i in range(parts)]


def _stacked(
    models: BenchModels, stack: Sequence[str], lower: int, upper: int
) -> list[dict[str, Any]]:
    """Return levels of these drafts, with budgets in even steps from ``lower`` to ``upper``."""
    lowest, *verifying = stack
    steps = len(verifying)
    budgets = [round(lower + (upper - lower) * i / steps) for i in range(1, steps + 1)]
    above = [models.level(m, n, verify="block") for m, n in zip(verifying, budgets, strict=True)]
    return [models.level(lowest, lower), *above]


def of_preset(preset: Preset, models: BenchModels) -> list[Method]:
    """List configurations of a preset: with its own budgets, which may not suit, and others.

    Raises:
        Unavailable: it needs other models.
    """
    if preset.max_drafts != 0 and not models.draft_models:
        raise Unavailable(_NO_DRAFT)
    preset_models = PresetModels(
        models.target,
        models.draft_models,
        lambda: models.num_layers,
        *trained_exits(models.target.model),
    )
    try:
        config = preset.make(preset_models)
    except HierspecError as error:
        raise Unavailable(str(error)) from None
    own = varied_numbers(config.levels)
    variants = (with_numbers(config.levels, iter(values)) for values in _variants(own))
    trials = [config.levels, *itertools.islice(filter(is_ascending, variants), TRIALS - 1)]
    return [_method(preset.name, models, replace(config, levels=levels)) for levels in trials]


def _variants(own: Sequence[int]) -> list[tuple[int, ...]]:
    """Return numbers to try beside a preset's own: smaller and larger ones of each."""
    if len(own) > 1:
        half = tuple((n + 1) // 2 for n in own)  # ascending where its own numbers are
        return list(dict.fromkeys([half, *around(own)[1:]]))
    (budget,) = own
    if budget < BUDGETS[-1]:
        return [(n,) for n in BUDGETS if n != budget]
    return [(n,) for n in (budget * 3 // 2, *BUDGETS[1:]) if n != budget]


def _method(name: str, models: BenchModels, config: HierarchyConfig) -> HierarchyMethod:
    content = config.to_dict()
    top = {
        key: value for key, value in content.items() if key not in ("target", "levels", "verify")
    }
    return HierarchyMethod(name, models, content["levels"], verify=config.verify, **top)


def _drafts(models: BenchModels) -> list[str]:
    if not models.drafts:
        raise Unavailable(_NO_DRAFT)
    return list(models.drafts)


def pick_evenly(values: Sequence[Any], count: int) -> list[Any]:
    """Pick ``count`` of the values, evenly spaced, or all if there are no more."""
    if count >= len(values):
        return list(values)
    return [values[int((i + 0.5) * len(values) / count)] for i in range(count)]


def around(own: Sequence[int]) -> list[tuple[int, ...]]:
    """Return distinct points around ``own``, itself first; every prefix of them is spread evenly.

    Each number runs from half to twice its own, and at least two up. The points are an additive
    recurrence in as many dimensions d, whose steps are powers of 1/φ, φ^(d+1) = φ + 1: of the
    golden ratio where d is 1.
    """
    size = len(own)
    phi = 2.0
    for _ in range(60):
        phi = (1.0 + phi) ** (1 / (size + 1))
    points = [tuple(own)]
    for point in range(1, _POINTS):
        shares = [(0.5 + point * phi ** -(k + 1)) % 1.0 for k in range(size)]
        points.append(tuple(_between(n, share) for n, share in zip(own, shares, strict=True)))
    return list(dict.fromkeys(points))


def _between(own: int, share: float) -> int:
    """Map 0 ≤ ``share`` < 1 to half … twice ``own``, evenly in the square root.

    Even steps would be coarse for small numbers, even ratios would hardly try large ones.
    """
    low, high = (own + 1) // 2, max(2 * own, own + 2)
    return int((low**0.5 + share * ((high + 1) ** 0.5 - low**0.5)) ** 2)


def varied_numbers(levels: Sequence[Any]) -> list[int]:
    """List all numbers that are varied, in the order of the file: the levels' budgets.

    A concatenation that repeats has its ``repeat`` before the numbers of its parts.
    """
    out = []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            out += [level.repeat] if level.repeat > 1 else []
            out += [n for part in level.parts for n in varied_numbers(part)]
        else:
            out.append(level.num_speculative_tokens)
    return out


def with_numbers(levels: Sequence[Any], values: Iterator[int]) -> tuple[Any, ...]:
    """Return the levels with other numbers, given in the order of :func:`varied_numbers`."""
    out = []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            repeat = next(values) if level.repeat > 1 else 1
            parts = tuple(with_numbers(part, values) for part in level.parts)
            out.append(replace(level, parts=parts, repeat=repeat))
        else:
            out.append(replace(level, num_speculative_tokens=next(values)))
    return tuple(out)


def is_ascending(levels: Sequence[Any]) -> bool:
    """Return whether budgets rise along every chain.

    A level that holds fewer tokens than the one below hands up at once would just pass them on.
    """
    budgets, parts = [], []
    for level in levels:
        if isinstance(level, ConcatenateConfig):
            parts += level.parts
        else:
            budgets.append(level.num_speculative_tokens)
    return budgets == sorted(budgets) and all(map(is_ascending, parts))
