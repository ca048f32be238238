"""docs/several-drafts.md: random pairs of models, and trees on the released model."""

from __future__ import annotations

from typing import Any

from .base import Claim, data, short

PAGE = "docs/several-drafts.md"


def _several_drafts() -> list[Claim]:
    """The table of random pairs in the page about several drafts."""
    names = ("one draft, block", "block-rrs", "traversal", "induced-block", "optimum")

    def figures(cell: dict[str, Any]) -> list[object]:
        means = [f"{cell['mean_tokens'][name]:.3f}" for name in names]
        wins = cell["wins"]
        more, less = "induced-block over traversal", "traversal over induced-block"
        shape = (cell["vocab"], cell["length"], cell["num_drafts"])
        return [*shape, *means, wins[more], wins[less]]

    def kept(number: int) -> list[object]:
        cells = [some[number] for some in data("several-drafts")["one_token"].values()]
        means = (cell["mean_kept"][name] for cell in cells for name in many)
        return [cells[0]["num_drafts"], *map(short, means)]

    def sampled(cell: dict[str, Any]) -> list[object]:
        shape = (cell["vocab"], cell["length"], cell["num_drafts"])
        return [*shape, *(f"{cell['mean_tokens'][name]:.2f}" for name in names[1:])]

    many = ("rrs", "rrs-without-replacement", "induced-block", "optimum")
    row = "| {}, {}, {} | {} | {} | {} | {} | {} | {} : {} |"
    one_token = "| {} | {} | {} | {} | {} | {} | {} | {} | {} |"
    counts = range(len(data("several-drafts")["one_token"]["random"]))
    return [
        *(
            Claim(PAGE, row, lambda cell=cell: figures(cell))
            for cell in data("several-drafts")["cells"]
        ),
        *(Claim(PAGE, one_token, lambda number=number: kept(number)) for number in counts),
        *(
            Claim(
                PAGE,
                "| {}, {}, {} | {} | {} | {} | {} |",
                lambda cell=cell: sampled(cell),
            )
            for cell in data("several-drafts")["longer"]
        ),
    ]


def _trees() -> list[Claim]:
    """The table of trees on the released model."""
    shown = {
        "1 drafts": "one draft",
        "4 drafts": "trees of four drafts",
        "8 drafts": "trees of eight",
        "8 drafts, a slot each": "eight drafts, a slot each",
    }

    def figures(name: str) -> list[str]:
        rows = [by[name] for by in data("token-trees-smollm2")["temperatures"].values()]
        return [
            f"{row[key]['median']:.2f}" for row in rows for key in ("tokens_per_call", "over_plain")
        ]

    return [
        Claim(
            PAGE,
            f"| {title} | {{}} | {{}}× | {{}} | {{}}× |",
            lambda name=name: figures(name),
        )
        for name, title in shown.items()
    ]


SEVERAL_DRAFTS = _several_drafts() + _trees()
