"""The methods that experiments compare, paper by paper, for any family of models.

Each function returns specifications by method name. The claims (:mod:`.paper_claims`) refer to
methods by these names.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hierspec.core.windows import EntropyWindow
from hierspec.presets.registry import preset
from hierspec_lab.papers.p3.table1 import PRESETS
from hierspec_lab.papers.p5.readings import READINGS
from hierspec_lab.papers.p5.systems import RULE, WINDOW, stacked

from .families import Family, LevelEntry, drafter_level

PLAIN = "plain"
MULTI_DRAFT_RULES = ("rrs", "block-rrs", "traversal", "induced-block")


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method as in a hierarchy file: levels below the family's target, and top-level keys."""

    levels: tuple[LevelEntry, ...] = ()
    top_level: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return a hierarchy file's content without the target; windows by kind and threshold."""

        def plain(value: Any) -> Any:
            is_window = isinstance(value, EntropyWindow)
            return {"kind": value.kind, "threshold": value.threshold} if is_window else value

        levels = [{key: plain(value) for key, value in level.items()} for level in self.levels]
        return {"levels": levels, **self.top_level}


MethodSpecs = dict[str, MethodSpec]


# --- P1 and P2: the small and the larger drafter, alone and stacked


def stacks(family: Family) -> MethodSpecs:
    """Return five single drafts and five hierarchies of three models [P1]."""
    small, large = family.small, family.large

    rule = {"verify": "block"}
    specs = {f"single small {n}": MethodSpec((drafter_level(small, n),), rule) for n in (2, 4)}
    for n in (3, 6, 10):
        specs[f"single large {n}"] = MethodSpec((drafter_level(large, n),), rule)
    for n, m in ((1, 4), (2, 4), (2, 6), (3, 6), (3, 10)):
        levels = (drafter_level(small, n), drafter_level(large, m, **rule))
        specs[f"three {n}-{m}"] = MethodSpec(levels, rule)
    return specs


def exit_stacks(family: Family) -> MethodSpecs:
    """Return early exits alone, at several lengths, and stacks of two of them [P1 Table 3]."""
    first, second, third, fourth = family.exits
    specs: MethodSpecs = {PLAIN: MethodSpec()}
    for layer in family.exits:
        for n in (2, 4):
            specs[f"exit {layer}, {n}"] = single_exit(family, layer, n)
    for lower, upper in ((first, second), (first, third), (first, fourth), (second, fourth)):
        levels = (family.exit_level(lower, 2), family.exit_level(upper, 4, verify="block"))
        specs[f"exits {lower} and {upper}"] = MethodSpec(levels, {"verify": "block"})
    return specs


def horizontal_tails(family: Family) -> MethodSpecs:
    """Return P1's horizontal heuristic: each level's draft, then h tokens of the smallest model."""
    specs = {}
    for tail in (0, 1, 2):
        small = drafter_level(family.small, 2)
        upper = drafter_level(family.large, 6, verify="block")
        levels: tuple[LevelEntry, ...] = (small, upper)
        if tail:
            parts = [[small, upper], [drafter_level(family.small, tail)]]
            levels = ({"method": "concatenate", "parts": parts},)
        specs[f"tail {tail}"] = MethodSpec(levels, {"verify": "block"})
    return specs


_TABLE: LevelEntry = {"method": "ngram_table"}  # free by weights, as P1's smallest drafter is
_Plan = tuple[tuple[str, int], ...]  # drafters and their lengths, the smallest first
_PLANS: tuple[_Plan, ...] = (
    (("table", 10),),
    *((("small", n),) for n in (2, 4)),
    *((("large", n),) for n in (3, 6)),
    *((("table", 10), ("small", n)) for n in (2, 4, 6)),
    *((("table", 10), ("large", n)) for n in (3, 6)),
    *((("small", n), ("large", m)) for n, m in ((2, 4), (2, 6), (3, 6))),
    (("table", 10), ("small", 2), ("large", 6)),
)
_WITH_SMALL_TAILS = ((("large", 3),), (("large", 6),), (("small", 2), ("large", 6)))
SHORT_TAIL, TAIL = 3, 10  # tokens of the smallest model after every level; ten in P1 Appendix D


def sweep(family: Family) -> MethodSpecs:
    """Return vertical cascades of a table and two models, and horizontal ones of them [P1 §5].

    Horizontal are those with further tokens of the table after every level, and those with tokens
    of the small drafter, then of the table, after the larger one's (Chen et al., 2023b).
    """
    drafters = {"table": _TABLE, "small": family.small, "large": family.large}
    rule = {"verify": "block"}
    specs = {}
    for plan in _PLANS:
        name = ", ".join(f"{drafter} {n}" for drafter, n in plan)
        tails: list[tuple[_Plan, str]] = [((), "")]
        if name != "table 10":  # behind the table, its tokens would only make its draft longer
            tails += [((("table", h),), f" + {h}") for h in (SHORT_TAIL, TAIL)]
        if plan in _WITH_SMALL_TAILS:
            tails += [((("small", h), ("table", TAIL)), f" + small {h} + {TAIL}") for h in (1, 3)]
        for tail, suffix in tails:
            levels: tuple[LevelEntry, ...] = ()
            for drafter, n in plan:
                levels += (drafter_level(drafters[drafter], n, **(rule if levels else {})),)
                after = tail if (drafter, n) == plan[-1] else tail[-1:]
                if after and drafter != "table":
                    parts = [[drafter_level(drafters[other], h)] for other, h in after]
                    levels = ({"method": "concatenate", "parts": [list(levels), *parts]},)
            specs[name + suffix] = MethodSpec(levels, rule)
    return specs


def draft_temperatures(family: Family) -> MethodSpecs:
    """Return a drafter at several temperatures of its own; the request's is .6 [P1 Table 10]."""
    return {
        f"drafts at {temperature:g}": MethodSpec(
            (drafter_level(family.large, 6, temperature=temperature),), {"verify": "block"}
        )
        for temperature in (0.0, 0.3, 0.5, 0.6, 0.8)
    }


def orders(family: Family) -> MethodSpecs:
    """Return interleaved and horizontal orders with 4 tokens of M_q, and single drafts [P2]."""
    small, large = family.small, family.large
    rule = {"verify": "tokenwise"}
    specs = {f"M_s {n}": MethodSpec((drafter_level(small, n),), rule) for n in (2, 4)}
    specs |= {f"M_q {m}": MethodSpec((drafter_level(large, m),), rule) for m in (2, 4, 8)}
    for n in (1, 2):
        parts = [[drafter_level(small, n)], [drafter_level(large, 1)]]
        interleaved: LevelEntry = {"method": "concatenate", "parts": parts, "repeat": 4}
        specs[f"interleaved {n}"] = MethodSpec((interleaved,), rule)
        parts = [[drafter_level(large, 4)], [drafter_level(small, 4 * n)]]
        specs[f"horizontal {n}"] = MethodSpec(({"method": "concatenate", "parts": parts},), rule)
    return specs


# --- P3: early exits


def exits(family: Family) -> MethodSpecs:
    """Return HiSpec's default, single exits, and HiSpec at another exit or rule [P3 Table 1]."""
    low, high, higher = family.exits[:3]
    return {
        "hispec": hispec(family, low, high),
        **{f"exit {layer}": single_exit(family, layer) for layer in (high, low, higher)},
        f"hispec {low}-{higher}": hispec(family, low, higher),
        "hispec top-2": hispec(family, low, high, top_m=2),
    }


def exit_pairs(family: Family) -> MethodSpecs:
    """Return every pair of a drafting and a verifying trained exit [P3 Figures 5 and 8]."""
    return {f"{low}-{high}": hispec(family, low, high) for low, high in exit_layer_pairs(family)}


def exit_layer_pairs(family: Family) -> list[tuple[int, int]]:
    """Return all pairs of a family's exits, the lower first; the first pair is P3's."""
    return list(itertools.combinations(family.exits, 2))


def hispec_lengths(family: Family) -> MethodSpecs:
    """Return HiSpec with several N_d at N_i = 4, and several N_i at N_d = 2 [P3 Figure 7]."""
    low, high = family.exits[:2]
    pairs = [(1, 4), (2, 4), (4, 4), (8, 4), (2, 2), (2, 8), (2, 12)]
    return {f"{n_d}/{n_i}": hispec(family, low, high, n_d, n_i) for n_d, n_i in pairs}


LAYERSKIP_LENGTHS = (1, 2, 3, 4, 6, 8)  # P3 does not state LayerSkip's


def hispec_and_layerskip(family: Family) -> MethodSpecs:
    """Return HiSpec with and without a bonus token below, and LayerSkip at several lengths [P3]."""
    low, high = family.exits[:2]
    specs = {f"layerskip {n}": single_exit(family, high, n) for n in LAYERSKIP_LENGTHS}
    hispecs = {
        "hispec": hispec(family, low, high),
        "hispec, no bonus": hispec(family, low, high, bonus=False),
    }
    return {**hispecs, **specs}


def hispec_baselines(family: Family) -> MethodSpecs:
    """Return HiSpec and its look-ahead, adaptive-exit and layer-skipping rivals [P3 Table 1]."""
    baselines = {name: _preset_spec(name, family) for name in ("lookahead", "adadecode", "swift")}
    return {"hispec": hispec(family, *family.exits[:2]), **baselines}


def presets(family: Family) -> MethodSpecs:
    """Return plain decoding and the presets of P3 Table 1, by their printed names."""
    specs = {title: _preset_spec(name, family) for title, name in PRESETS.items()}
    return {PLAIN: MethodSpec(), **specs}


def _preset_spec(name: str, family: Family) -> MethodSpec:
    config = preset(name, family.target).to_dict()
    del config["target"]
    return MethodSpec(tuple(config.pop("levels")), config)


def hispec(
    family: Family,
    low: int,
    high: int,
    n_d: int = 2,
    n_i: int = 4,
    top_m: int = 1,
    *,
    bonus: bool = True,
) -> MethodSpec:
    """Return HiSpec: exit ``low`` drafts, ``high`` verifies by leading, the target by block."""
    options: dict[str, Any] = {"top_m": top_m} if top_m > 1 else {}
    options |= {} if bonus else {"bonus": False}
    upper = family.exit_level(high, n_i, verify="leading", **options)
    return MethodSpec((family.exit_level(low, n_d), upper), {"verify": "block"})


def single_exit(family: Family, layer: int, num_tokens: int = 4) -> MethodSpec:
    """Return LayerSkip: one exit drafts for the target, which verifies by block."""
    return MethodSpec((family.exit_level(layer, num_tokens),), {"verify": "block"})


def timed_baselines(family: Family) -> MethodSpecs:
    """Return P3 Figure 1's methods, to be timed: plain, one exit, HiSpec and its baselines."""
    layer = family.exits[1]
    return {
        PLAIN: MethodSpec(),
        f"exit {layer}": single_exit(family, layer),
        **hispec_baselines(family),
    }


def timed_hispec(family: Family) -> MethodSpecs:
    """Return plain decoding, HiSpec and single exits, to be timed."""
    low, high = family.exits[:2]
    return {
        PLAIN: MethodSpec(),
        "hispec": hispec(family, low, high),
        f"exit {high}": single_exit(family, high),
        f"exit {low}": single_exit(family, low),
    }


# --- P4: verification rules


def rules(family: Family) -> MethodSpecs:
    """Return tokenwise and block at three draft lengths; naive and lossy uncapped at the middle."""
    specs: MethodSpecs = {}
    for n in (5, 10, 15):
        levels = (drafter_level(family.small, n),)
        for rule in ("tokenwise", "block"):
            specs[f"{rule} {n}"] = MethodSpec(levels, {"verify": rule})
    levels = (drafter_level(family.small, 10),)
    specs["naive 10"] = MethodSpec(levels, {"verify": "naive"})
    specs["uncapped 10"] = MethodSpec(levels, {"verify": "uncapped", "allow_lossy": True})
    return specs


def rules_short(family: Family) -> MethodSpecs:
    """Return tokenwise and block on five tokens of the small drafter."""
    levels = (drafter_level(family.small, 5),)
    return {rule: MethodSpec(levels, {"verify": rule}) for rule in ("tokenwise", "block")}


def several_drafts(family: Family) -> MethodSpecs:
    """Return one draft and four, by recursive rejection and by block after block [P4 Table 2]."""
    single = drafter_level(family.small, 5)
    return {
        f"{rule} × {k}": MethodSpec((level,), {"verify": rule})
        for k, level in ((1, single), (4, {**single, "num_drafts": 4}))
        for rule in ("rrs", "block-rrs")
    }


_EAGLE3 = {"method": "eagle3", "model": "zoo:smollm2-eagle3", "num_speculative_tokens": 4}


def eagle(family: Family) -> MethodSpecs:
    """Return tokenwise and block on a draft of EAGLE-3's drafter [P4 Table 4(b)]."""
    return {rule: MethodSpec((_EAGLE3,), {"verify": rule}) for rule in ("tokenwise", "block")}


def eagle_several(family: Family) -> MethodSpecs:
    """Return the rules for several drafts on four sampled by EAGLE-3's drafter [P4 Table 4(b)]."""
    return {
        f"{rule} × 4": MethodSpec(({**_EAGLE3, "num_drafts": 4},), {"verify": rule})
        for rule in MULTI_DRAFT_RULES
    }


def block_long(family: Family) -> MethodSpecs:
    """Return block on drafts of ten tokens [P4 Figure A.1]."""
    return {"block": MethodSpec((drafter_level(family.small, 10),), {"verify": "block"})}


def timed_rules(family: Family) -> MethodSpecs:
    """Return plain decoding, tokenwise and block, to be timed."""
    return {PLAIN: MethodSpec(), **rules_short(family)}


# --- P5: windows


def systems(family: Family, window: int = WINDOW) -> MethodSpecs:
    """Return P5's systems by its names; in the full system M2 drafts at most CAP tokens."""
    levels_by_name = stacked(
        drafter_level(family.small, window), drafter_level(family.large, window)
    )
    return {name: MethodSpec(tuple(own), {"verify": RULE}) for name, own in levels_by_name.items()}


def single_drafters_and_full(family: Family) -> MethodSpecs:
    """Return each drafter alone and the full system [P5 Table 3]."""
    vanilla = {name: systems(family)[name] for name in ("vanilla M1", "vanilla M2")}
    return {**vanilla, "full": _full(family, READ_AS)}


WINDOW_SIZES = (2, 6, 10, 15)


def windows(family: Family) -> MethodSpecs:
    """Return three systems at several window sizes K [P5 Figure 7]."""
    names = ("vanilla M2", "pre-verify + self-verify", "full")
    return {
        f"{name}, K = {k}": (systems(family, k) | {"full": _full(family, READ_AS, k)})[name]
        for k in WINDOW_SIZES
        for name in names
    }


def rivals(family: Family) -> MethodSpecs:
    """Return plain decoding, the full system, and presets of other papers [P5 Table 1]."""
    return {
        PLAIN: MethodSpec(),
        "full": _full(family, READ_AS),
        **{name: _preset_spec(name, family) for name in family.rivals},
    }


THRESHOLDS = (3.0, 5.0, 7.0)  # nats: kept tokens of M2 have 3.6 on average
READ_AS = "last token"  # of all, nearest the printed σ and η in both families, at 5 nats


def readings(family: Family) -> MethodSpecs:
    """Return P5's systems with running and with fixed entropy thresholds, by reading of it.

    P5's own threshold is a running mean, which starts at 0 and forgets nothing; a fixed one is
    chosen on other prompts, as lengths are. What the entropy is of that ends M2's turn has three
    readings (:mod:`hierspec_lab.papers.p5.readings`).
    """
    adaptive = systems(family)
    specs = {name: adaptive[name] for name in ("vanilla M1", "pre-verify")}
    specs |= {f"vanilla M2, K = {k}": systems(family, k)["vanilla M2"] for k in (6, 10)}
    for threshold in (None, *THRESHOLDS):
        for name in ("self-verify M2", "pre-verify + self-verify"):
            specs[at_threshold(name, threshold)] = _with_threshold(adaptive[name], threshold)
        for reading in READINGS:
            full = _full(family, reading, threshold=threshold)
            specs[at_threshold(f"full, {reading}", threshold)] = full
    return specs


def _full(
    family: Family, reading: str, window: int = WINDOW, threshold: float | None = None
) -> MethodSpec:
    """Return the full system by a reading of what ends M2's turn."""
    spec = _with_threshold(systems(family, window)["full"], threshold)
    lower, upper = spec.levels
    levels = (lower, {**upper, "window": READINGS[reading](threshold)})
    return MethodSpec(levels, spec.top_level)


def at_threshold(system: str, threshold: float | None) -> str:
    """Return the name of a system with a fixed threshold, in nats, or the running one."""
    return f"{system}, {'running' if threshold is None else f'{threshold:g} nats'}"


def _with_threshold(spec: MethodSpec, threshold: float | None) -> MethodSpec:
    """Return the method with a threshold, in nats, where windows adapt; ``None``: running."""
    window = EntropyWindow(threshold)
    levels = [{**level, "window": window} if "window" in level else level for level in spec.levels]
    return MethodSpec(tuple(levels), spec.top_level)


def timed_stacks(family: Family) -> MethodSpecs:
    """Return plain decoding and the stacks that counting finds near the best, to be timed."""
    specs = stacks(family)
    names = ("single large 3", "single large 6", "single large 10")
    names += ("three 2-6", "three 3-6", "three 3-10")
    return {PLAIN: MethodSpec(), **{name: specs[name] for name in names}}


def timed_orders(family: Family) -> MethodSpecs:
    """Return plain decoding and P2's orders, to be timed."""
    return {PLAIN: MethodSpec(), **orders(family)}


def timed_systems(family: Family) -> MethodSpecs:
    """Return plain decoding and P5's systems to be timed, the full one read as elsewhere."""
    return {PLAIN: MethodSpec(), **systems(family), "full": _full(family, READ_AS)}
