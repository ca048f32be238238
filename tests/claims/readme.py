"""README: the released model, and what is shown below its table."""

from __future__ import annotations

from .base import Claim, data
from .benches import (
    EVERY,
    TRANSFORMERS,
    both_temperatures,
    chats_ties,
    every_settings,
    over,
    speedup,
    table_cell,
    useless,
)
from .reproducible import kernels_beside, kernels_gain

README_PAGE = "README.md"


def _readme_table() -> list[Claim]:
    """The main rows of that table, each with where the method is from."""
    rows = {
        "| planned: levels and budgets computed; the 4-bit copy drafts | here, P1 |": "planned",
        "| planned, adapted while text is written | here |": "online",
        "| a copy in 4 bits drafts | QuantSpec |": "alone-quantized-4",
        "| a copy in 8 bits drafts | QuantSpec |": "alone-quantized",
        "| three levels, the best of all stacks | P1 |": "hierarchy",
        "| llama.cpp, plain decoding of the 4-bit file | |": "llama.cpp-file",
        "| suffix look-up | SuffixDecoding |": "alone-suffix",
        "| a small sibling, trained for half an hour | |": "alone-smollm2-sibling",
        "| EAGLE-3, trained for an hour | EAGLE-3 |": "alone-smollm2-eagle3",
        "| one early exit with a trained head | LayerSkip |": "layerskip",
        "| two early exits with trained heads | P3 |": "hispec",
        "| transformers, prompt look-up | |": "transformers-prompt-lookup",
        "| transformers, plain `generate` | |": "transformers",
    }

    def cell(name: str, temperature: float) -> str:
        return table_cell(name, temperature).rpartition(" · ")[0]

    plain = (
        "| **plain decoding, bfloat16**; our own kernels' is "
        f"{kernels_gain():.1f} times (with AMX 3.4 times) as fast "
        "| | {:.1f} · 1× | {:.1f} · 1× |"
    )
    return both_temperatures(README_PAGE, rows, plain, cell)


README = [
    Claim(
        README_PAGE,
        "it is {} as fast as its own plain decoding and {} as fast as the fastest of transformers' "
        "ways",
        lambda: (
            speedup(EVERY[0.0], 0.0, "planned"),
            over(0.0, TRANSFORMERS, "planned"),
        ),
    ),
    kernels_beside(README_PAGE),
    Claim(
        README_PAGE,
        "two Zen 5 cores, bfloat16, {} chat prompts of {} domains, answers of {} tokens at most",
        every_settings,
    ),
    *_readme_table(),
    Claim(
        README_PAGE,
        "On it {} of {} greedy texts diverge from plain decoding's at a near-tie.",
        lambda: (chats_ties(EVERY[0.0])[2], chats_ties(EVERY[0.0])[0]),
    ),
    Claim(
        README_PAGE,
        "In wider types {} of {} are equal.",
        lambda: (data("equality")["equal"], data("equality")["outputs"]),
    ),
    Claim(
        README_PAGE,
        "Where every draft is useless, adapting costs {} over 64 tokens.",
        lambda: (useless(64),),
    ),
]
