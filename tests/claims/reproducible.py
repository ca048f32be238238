"""docs/reproducible.md: equal bits, at which price, and the acceptance of ``match``."""

from __future__ import annotations

from typing import Any

from hierspec_lab.bench.method_records import PairedRatio

from .base import Claim, data

PAGE = "docs/reproducible.md"


def _deterministic() -> list[Claim]:
    """How many texts were equal, and the price."""
    found = data("deterministic")
    prices = [row["price"]["median"] for row in found["hierarchies"].values()]
    return [
        Claim(
            PAGE,
            "{} of {} greedy texts of five hierarchies",
            lambda: (found["equal"]["deterministic"], found["runs"]),
        ),
        Claim(
            PAGE,
            "token for token, {} of {} without the mode",
            lambda: (found["equal"]["usual"], found["runs"]),
        ),
        Claim(
            PAGE,
            "Plain decoding takes {} times as long in it, the hierarchies {} to {} times",
            lambda: (
                f"{found['plain']['price']['median']:.2f}",
                f"{min(prices):.2f}",
                f"{max(prices):.2f}",
            ),
        ),
        *_deterministic_chats(),
    ]


def kernels_gain() -> float:
    """How many times as fast plain decoding is in our kernels, on the released model."""
    plain = data("deterministic-smollm2")["plain"]["ms_per_token"]
    return plain["usual"]["median"] / plain["deterministic"]["median"]


def kernels_beside(page: str) -> Claim:
    """What stands beside ratios to the default's plain decoding; with AMX: one run, no file."""
    return Claim(
        page,
        "our own kernels' plain decoding, the default since, is {:.1f} times (with AMX 3.4 times) "
        "as fast as what it is compared with",
        lambda: [kernels_gain()],
    )


def _deterministic_chats() -> list[Claim]:
    """The same of the released model: its best hierarchy in the mode and without."""
    found = data("deterministic-smollm2")
    best = found["hierarchies"]["suffix > copy"]
    plain = found["plain"]
    calls = found["ms_of_a_call"]

    def said(one: dict[str, Any]) -> str:
        return PairedRatio.model_validate(one).format()

    return [
        Claim(
            PAGE,
            "{} of {} greedy texts of four hierarchies, and {} without the mode",
            lambda: (found["equal"]["deterministic"], found["runs"], found["equal"]["usual"]),
        ),
        Claim(
            PAGE,
            "Plain decoding takes {:.1f} ms a token in it and {:.1f} without",
            lambda: [plain["ms_per_token"][k]["median"] for k in ("deterministic", "usual")],
        ),
        Claim(
            PAGE,
            "a suffix look-up below the 4-bit copy {:.1f} and {:.1f}, {} its own plain decoding "
            "and {} the usual one",
            lambda: (
                *(best["ms_per_token"][k]["median"] for k in ("deterministic", "usual")),
                said(best["speedup_over_plain"]["deterministic"]),
                said(best["over_usual_plain"]),
            ),
        ),
        Claim(
            PAGE,
            "a call for eight rows {:.1f} ms and {:.1f}",
            lambda: [calls[k]["8"] for k in ("deterministic", "usual")],
        ),
    ]


MATCH = [
    Claim(
        PAGE,
        "are kept with {}, between {} and {}; {} of {} texts",
        lambda: (
            *(
                f"{data('match')['acceptance']['small'][key]:.3f}"
                for key in ("match", "bound", "tokenwise")
            ),
            data("match")["equal"],
            data("match")["runs"],
        ),
    )
]
REPRODUCIBLE = _deterministic() + MATCH
