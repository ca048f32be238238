"""What experiments compare: for each paper its methods, on any family of models.

A method is a hierarchy without its target. Names are those that the claims (:mod:`.said`) ask for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hierspec.presets.registry import preset
from hierspec_papers.p3.table1 import PRESETS
from hierspec_papers.p5.systems import CAP, WINDOW

from .families import Family, Level

PLAIN = "plain"
SEVERAL = ("rrs", "block-rrs", "traversal", "induced-block")  # rules for several drafts


@dataclass(frozen=True, slots=True)
class Way:
    """A method: levels below the family's target, and the hierarchy file's top-level keys."""

    levels: tuple[Level, ...] = ()
    top: Mapping[str, Any] = field(default_factory=dict)


Ways = dict[str, Way]


# --- P1 and P2: the small and the larger drafter, alone and stacked


def stacks(family: Family) -> Ways:
    """P1: single drafts and hierarchies of three models, as many candidates of each."""
    small, large = family.small, family.large

    def single(model: Mapping[str, Any], n: int) -> Way:
        return Way((family.draft(model, n),), {"verify": "block"})

    def three(n: int, m: int) -> Way:
        upper = family.draft(large, m, verify="block")
        return Way((family.draft(small, n), upper), {"verify": "block"})

    return {
        "single small 2": single(small, 2),
        "single small 4": single(small, 4),
        "single large 3": single(large, 3),
        "single large 6": single(large, 6),
        "single large 10": single(large, 10),
        "three 1-4": three(1, 4),
        "three 2-4": three(2, 4),
        "three 2-6": three(2, 6),
        "three 3-6": three(3, 6),
        "three 3-10": three(3, 10),
    }


def exit_stacks(family: Family) -> Ways:
    """P1 Table 3: early exits alone and two of them stacked, at several lengths."""
    low, second, third, top = family.exits
    out: Ways = {PLAIN: Way()}
    for layer in family.exits:
        for n in (2, 4):
            out[f"exit {layer}, {n}"] = single_exit(family, layer, n)
    for lower, upper in ((low, second), (low, third), (low, top), (second, top)):
        levels = (family.exit(lower, 2), family.exit(upper, 4, verify="block"))
        out[f"exits {lower} and {upper}"] = Way(levels, {"verify": "block"})
    return out


def tails(family: Family) -> Ways:
    """P1's horizontal heuristic: h tokens of the smallest model after what each level hands up."""
    out = {}
    for tail in (0, 1, 2):
        small = family.draft(family.small, 2)
        upper = family.draft(family.large, 6, verify="block")
        end = [[family.draft(family.small, tail)]] if tail else []
        levels = (
            ({"method": "concatenate", "parts": [[small, upper], *end]},)
            if tail
            else (small, upper)
        )
        out[f"tail {tail}"] = Way(tuple(levels), {"verify": "block"})
    return out


def warmths(family: Family) -> Ways:
    """P1 Table 10: drafters at temperatures of their own, the request at .6."""
    return {
        f"drafts at {own:g}": Way(
            (family.draft(family.large, 6, temperature=own),), {"verify": "block"}
        )
        for own in (0.0, 0.3, 0.5, 0.6, 0.8)
    }


def orders(family: Family) -> Ways:
    """P2: interleaved and horizontal with 4 tokens of M_q, and either drafter alone."""
    small, large = family.small, family.large
    rule = {"verify": "tokenwise"}
    out = {f"M_s {n}": Way((family.draft(small, n),), rule) for n in (2, 4)}
    out |= {f"M_q {m}": Way((family.draft(large, m),), rule) for m in (2, 4, 8)}
    for n in (1, 2):
        block = [[family.draft(small, n)], [family.draft(large, 1)]]
        mixed: Level = {"method": "concatenate", "parts": block, "repeat": 4}
        line = [[family.draft(large, 4)], [family.draft(small, 4 * n)]]
        out[f"interleaved {n}"] = Way((mixed,), rule)
        out[f"horizontal {n}"] = Way(({"method": "concatenate", "parts": line},), rule)
    return out


# --- P3: early exits


def exits(family: Family) -> Ways:
    """P3 Table 1: HiSpec's default, single exits, and other exits and lengths."""
    low, high, top = family.exits[:3]
    out = {
        "hispec": hispec(family, low, high),
        f"exit {high}": single_exit(family, high),
        f"exit {low}": single_exit(family, low),
    }
    out[f"exit {top}"] = single_exit(family, top)
    out[f"hispec {low}-{top}"] = hispec(family, low, top)
    out["hispec top-2"] = hispec(family, low, high, top_m=2)
    return out


def pairs(family: Family) -> Ways:
    """P3 Figures 5 and 8: every pair of a drafting and a verifying exit among the trained ones."""
    return {f"{low}-{high}": hispec(family, low, high) for low, high in every_pair(family)}


def every_pair(family: Family) -> list[tuple[int, int]]:
    """Return all pairs of a family's exits, the lower first; the first pair is P3's."""
    return list(itertools.combinations(family.exits, 2))


def lengths(family: Family) -> Ways:
    """P3 Figure 7: N_d at N_i = 4, and N_i at N_d = 2."""
    low, high = family.exits[:2]
    pairs = [(1, 4), (2, 4), (4, 4), (8, 4), (2, 2), (2, 8), (2, 12)]
    return {f"{n_d}/{n_i}": hispec(family, low, high, n_d, n_i) for n_d, n_i in pairs}


def others(family: Family) -> Ways:
    """P3 Table 1's look-ahead, adaptive-exit and layer-skipping baselines beside HiSpec."""
    low, high = family.exits[:2]
    out = {"hispec": hispec(family, low, high)}
    return out | {name: _preset(name, family) for name in ("lookahead", "adadecode", "swift")}


def presets(family: Family) -> Ways:
    """P3 Table 1's methods as their presets are, by the names they are printed with."""
    ways = {printed: _preset(name, family) for printed, name in PRESETS.items()}
    return {PLAIN: Way(), **ways}


def _preset(name: str, family: Family) -> Way:
    """Return a preset for the family's target."""
    file = preset(name, family.target).to_dict()
    top = {k: v for k, v in file.items() if k not in ("target", "levels")}
    return Way(tuple(file["levels"]), top)


def hispec(family: Family, low: int, high: int, n_d: int = 2, n_i: int = 4, top_m: int = 1) -> Way:
    """Exit ``low`` drafts, exit ``high`` verifies by leading tokens, the target by block."""
    more = {"top_m": top_m} if top_m > 1 else {}
    upper = family.exit(high, n_i, verify="leading", **more)
    return Way((family.exit(low, n_d), upper), {"verify": "block"})


def single_exit(family: Family, layer: int, tokens: int = 4) -> Way:
    """LayerSkip's way."""
    return Way((family.exit(layer, tokens),), {"verify": "block"})


def others_clock(family: Family) -> Ways:
    """P3 Figure 1 in time: the target's own exits, adaptive with their heads, and what has none."""
    layer = family.exits[1]
    return {PLAIN: Way(), f"exit {layer}": single_exit(family, layer), **others(family)}


def p3_clock(family: Family) -> Ways:
    """HiSpec against single exits in time, plain decoding beside them."""
    low, high = family.exits[:2]
    return {
        PLAIN: Way(),
        "hispec": hispec(family, low, high),
        f"exit {high}": single_exit(family, high),
        f"exit {low}": single_exit(family, low),
    }


# --- P4: verification rules


def rules(family: Family) -> Ways:
    """Tokenwise, block and the lossy uncapped rule by draft length; naive at the middle one."""
    out: Ways = {}
    for n in (5, 10, 15):
        draft = (family.draft(family.small, n),)
        for rule in ("tokenwise", "block"):
            out[f"{rule} {n}"] = Way(draft, {"verify": rule})
    draft = (family.draft(family.small, 10),)
    out["naive 10"] = Way(draft, {"verify": "naive"})
    out["uncapped 10"] = Way(draft, {"verify": "uncapped", "allow_lossy": True})
    return out


def rules_short(family: Family) -> Ways:
    """Tokenwise and block at one draft length, of the small drafter."""
    draft = (family.draft(family.small, 5),)
    return {rule: Way(draft, {"verify": rule}) for rule in ("tokenwise", "block")}


def several(family: Family) -> Ways:
    """P4 Table 2: one draft and four, by recursive rejection and by block after block."""
    return {
        f"{rule} × {k}": Way(
            (family.draft(family.small, 5, **({"num_drafts": k} if k > 1 else {})),),
            {"verify": rule},
        )
        for k in (1, 4)
        for rule in ("rrs", "block-rrs")
    }


def eagle(family: Family) -> Ways:
    """P4 Table 4(b): EAGLE-3's drafter under both rules."""
    level = {"method": "eagle3", "model": "zoo:smollm2-eagle3", "num_speculative_tokens": 4}
    return {rule: Way((level,), {"verify": rule}) for rule in ("tokenwise", "block")}


def eagle_several(family: Family) -> Ways:
    """P4 Table 4(b) with four drafts that EAGLE-3's drafter samples, under every rule for them."""
    level = {"method": "eagle3", "model": "zoo:smollm2-eagle3", "num_speculative_tokens": 4}
    return {f"{rule} × 4": Way(({**level, "num_drafts": 4},), {"verify": rule}) for rule in SEVERAL}


def block_long(family: Family) -> Ways:
    """P4 Figure A.1: drafts of ten tokens, which block verifies."""
    return {"block": Way((family.draft(family.small, 10),), {"verify": "block"})}


def p4_clock(family: Family) -> Ways:
    """Tokenwise against block in time."""
    draft = (family.draft(family.small, 5),)
    return {PLAIN: Way(), **{r: Way(draft, {"verify": r}) for r in ("tokenwise", "block")}}


# --- P5: windows


def systems(family: Family, window: int = WINDOW) -> Ways:
    """P5's systems by its names; the full one's M2 is bounded by CAP tokens."""

    def level(which: Mapping[str, Any], n: int, adapts: bool = False, **more: Any) -> Level:
        return family.draft(which, n, **({"window": {"kind": "entropy"}} if adapts else {}), **more)

    small, large, rule = family.small, family.large, "tokenwise"
    every = {
        "vanilla M1": (level(small, window),),
        "vanilla M2": (level(large, window),),
        "self-verify M1": (level(small, window, True),),
        "self-verify M2": (level(large, window, True),),
        "pre-verify": (level(small, window), level(large, window, verify=rule)),
        "pre-verify + self-verify": (
            level(small, window, True),
            level(large, window, verify=rule),
        ),
        "full": (level(small, window, True), level(large, CAP, True, verify=rule)),
    }
    return {name: Way(levels, {"verify": rule}) for name, levels in every.items()}


def full_alone(family: Family) -> Ways:
    """P5 Table 3: the full system and the larger drafter alone."""
    return {name: systems(family)[name] for name in ("vanilla M2", "full")}


WINDOWS = (2, 6, 10, 15)


def windows(family: Family) -> Ways:
    """P5 Figure 7: three systems over the window size K."""
    names = ("vanilla M2", "pre-verify + self-verify", "full")
    return {f"{name}, K = {k}": systems(family, k)[name] for k in WINDOWS for name in names}


def rivals(family: Family) -> Ways:
    """P5 Table 1: the full system beside methods of other papers, these as their presets are."""
    return {
        PLAIN: Way(),
        "full": systems(family)["full"],
        **{name: _preset(name, family) for name in family.rivals},
    }


THRESHOLDS = (0.5, 1.0, 2.0, 3.0)  # nats


def thresholds(family: Family) -> Ways:
    """P5's systems whose windows end at a fixed entropy, beside those whose windows do not adapt.

    The running mean that P5's threshold is starts at 0 and forgets nothing; a fixed one is chosen
    on other prompts, as lengths are.
    """
    every = systems(family)
    out = {PLAIN: Way(), "pre-verify": every["pre-verify"]}
    out |= {f"vanilla M2, K = {k}": systems(family, k)["vanilla M2"] for k in (3, 6, 10)}
    for name in ("self-verify M2", "pre-verify + self-verify", "full"):
        for limit in THRESHOLDS:
            levels = tuple(_limited(level, limit) for level in every[name].levels)
            out[f"{name}, {limit:g} nats"] = Way(levels, every[name].top)
    return out


def _limited(level: Level, limit: float) -> Level:
    """Return the level with a fixed threshold, if its window adapts."""
    window = {"kind": "entropy", "threshold": limit}
    return {**level, "window": window} if "window" in level else level


def p1_clock(family: Family) -> Ways:
    """The stacks that counting finds near the best, in time."""
    kept = ("single large 3", "single large 6", "single large 10")
    deep = ("three 2-6", "three 3-6", "three 3-10")
    return {PLAIN: Way(), **{name: stacks(family)[name] for name in (*kept, *deep)}}


def beside_plain(make: Callable[[Family], Ways]) -> Callable[[Family], Ways]:
    """Return the same methods with plain decoding before them, for the clock."""
    return lambda family: {PLAIN: Way(), **make(family)}
