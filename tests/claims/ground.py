"""docs/measured.md: what a token and a command take beside their floors."""

from __future__ import annotations

from typing import Any

from .base import Claim, data, percent
from .measured import MEASURED_PAGE

SMALL, LARGE = "zoo:smollm2", "llama-1.2b"


def run(target: str, way: str, threads: int = 2) -> Any:
    """The last run of ``ground.py`` on a model that has this way."""
    return next(
        one
        for one in reversed(data("ground")["runs"])
        if one["settings"]["target"] == target
        and one["settings"]["threads"] == threads
        and way in one["ways"]
    )


def milliseconds(target: str, kind: str, who: str) -> float:
    """A token's, behind 128."""
    return run(target, f"{kind}, ours")["milliseconds"]["128"]["1"][f"{kind}, {who}"]["median"]


def beside_llama_cpp(kind: str) -> list[str]:
    """Ours, its share of the floor, llama.cpp, and how many times as fast ours is."""
    out = []
    for target in (SMALL, LARGE):
        ours, theirs = (milliseconds(target, kind, who) for who in ("ours", "llama.cpp"))
        floor = run(target, f"{kind}, ours")["floor_milliseconds"][f"{kind}, ours"]
        share = percent(floor / ours, 0)
        out.append(f"{ours:.1f} · {share} | {theirs:.1f} | {theirs / ours:.2f}×")
    return out


def llama_cpp_rows(page: str) -> list[Claim]:
    """The table of files, on any page."""
    return [
        Claim(page, f"| {kind} | {{}} | {{}} |", lambda kind=kind: beside_llama_cpp(kind))
        for kind in ("BF16", "Q8_0", "Q4_0", "Q4_K_M")
    ]


def prompt(target: str, length: int) -> list[float]:
    """Tokens a second at which a prompt is read, ours and transformers', and ours over oneDNN."""
    for found in data("ground")["runs"]:
        if found["settings"]["target"] == target and length in found["settings"]["prompts"]:
            times = found["milliseconds"][str(length)]["prompt"]
            ours, theirs, products = (
                times[way]["median"] for way in ("bfloat16", "transformers", "oneDNN's products")
            )
            return [1e3 * length / ours, 1e3 * length / theirs, ours / products]
    raise KeyError(length)


def peaks() -> list[float]:
    """Of the large model over its weights, plain and with a copy."""
    rows = data("memory")["commands"]
    ways = ("plain", "a copy in 8 bits drafts")
    return [rows[f"1.24 B, bfloat16, {way}"]["peak_over_weights"] for way in ways]


def equal_in_bfloat16() -> list[int]:
    found = data("equality-smollm2-bfloat16")
    rows = [row for row in found["rows"].values() if "prompts" in row]
    return [found["equal"], found["outputs"], len(rows)]


def rivals() -> Any:
    """The plan of ``auto`` beside its runners-up, greedily."""
    runs = [one for one in data("auto")["runs"] if one["settings"]["rivals"]]
    return runs[-1]["temperatures"]["0.0"]


def beside_the_plan() -> list[float]:
    """Of other ways the least time, over the plan's."""
    found = rivals()
    others = [row for way, row in found["ways"].items() if way != found["plan"]]
    return [min(row["gains_in_all"] for row in others)]


def losing_drafts() -> list[float]:
    """Time over plain decoding's of the look-up that does not pay, as it is and under control."""
    ways = rivals()["ways"]
    lost = (ways[f"prompt-lookup 8{more}"]["loses_to_plain"] for more in ("", ", under control"))
    return list(lost)


def auto_seconds(target: str) -> list[float]:
    """Of the first command and a later one, greedily."""
    for found in data("auto")["runs"]:
        if target in found["settings"]["target"] and not found["settings"]["rivals"]:
            uses = found["temperatures"]["0.0"]
            return [uses[use]["seconds"] for use in ("first", "later") if use in uses]
    raise KeyError(target)


GROUND = [
    Claim(
        MEASURED_PAGE,
        "On two Zen 4 cores, behind 128 tokens, SmolLM2 and a Llama of 1.24 B parameters with "
        "random weights take so many milliseconds",
    ),
    *llama_cpp_rows(MEASURED_PAGE),
    Claim(
        MEASURED_PAGE,
        "A prompt of 512 tokens is read at {:.0f} tokens a second in bfloat16, where transformers "
        "reads {:.0f}, and in {:.2f} times what oneDNN takes for the products of its layers alone.",
        lambda: prompt(SMALL, 512),
    ),
    Claim(
        MEASURED_PAGE,
        "A command on the large model takes at its peak {:.2f} times its weights' memory, {:.2f} "
        "times with a copy in 8 bits",
        peaks,
    ),
    Claim(
        MEASURED_PAGE,
        "The first `auto` took {:.0f} s, measuring and compiling included, a later one {:.0f} s, "
        "and the first on the large model {:.0f} s",
        lambda: (*auto_seconds(SMALL), *auto_seconds(LARGE)),
    ),
    Claim(
        MEASURED_PAGE,
        "the fastest of six other ways takes {:.2f} times as long as its plan on 24 chats",
        beside_the_plan,
    ),
    Claim(
        MEASURED_PAGE,
        "A look-up of 8 tokens that does not pay there takes {:.2f} times plain decoding's time, "
        "and {:.2f} times under control",
        losing_drafts,
    ),
    Claim(
        MEASURED_PAGE,
        "{} of {} greedy texts of {} hierarchies in bfloat16 equal plain decoding's",
        lambda: equal_in_bfloat16(),
    ),
]
