"""README: plain decoding beside llama.cpp's."""

from __future__ import annotations

from .base import Claim
from .ground import SMALL, llama_cpp_rows, milliseconds

README_PAGE = "README.md"

README = [
    Claim(
        README_PAGE,
        "a token of SmolLM2-135M takes {:.1f} ms in bfloat16 and {:.1f} ms in Q4_0, where "
        "llama.cpp takes {:.1f} and {:.1f}",
        lambda: (
            milliseconds(SMALL, kind, who)
            for who in ("ours", "llama.cpp")
            for kind in ("BF16", "Q4_0")
        ),
    ),
    Claim(README_PAGE, "in turns with llama.cpp on two Zen 4 cores, behind 128 tokens"),
    *llama_cpp_rows(README_PAGE),
]
