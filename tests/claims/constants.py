"""What looks like a measured figure and is none: settings, sizes, what others have printed."""

from __future__ import annotations

import re

# Of the measured parts of README and docs/measured.md, where every digit must be accounted for.
SETTINGS = (
    "(pictures/bench-eps-0.2/speedup-t1.svg)", "116 M parameters", "eps 0.2", "temperature 1",
    "P1", "P2", "P3", "P4", "P5", "95 %", "Zen 5", "Zen 4", "float32", "float64", "bfloat16",
    "80 candidates", "SmolLM2-135M-Instruct", "in 4 bits", "in 8 bits", "4-bit", "8-bit", "EAGLE-3",
    "Q4_0", "Q8_0", "Q4_K_M", "BF16", "SmolLM2-135M", "1.24 B", "16 bits", "Q4_1",
    "(`zoo:smollm2`)", "(smollm2.md)", "(`smollm2-greedy.json`",
    "`smollm2-sampled.json`",
)  # fmt: skip

_FIGURE = re.compile(
    r"\d[\d.,]*\s?(?:×(?!\s?\d)|%|ms\b|s\b|[kKMG]i?B\b|nats|tokens a call|tokens/s|tokens a second)"
    r"|(?<![\w.\d/-])\d*\.\d+\b(?!\.\d)"
    r"|\b\d[\d,]* of (?:the )?\d[\d,]*"
)
_NO_FIGURE = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|<[^>]*>|arXiv \d+\.\d+"
    r"|(?:§|Theorem|Corollary|Cor\.|Python|transformers|gguf|Llama|Qwen|below) ?\d+(?:\.\d+)+"
)

CONSTANTS: dict[str, tuple[str, ...]] = {  # page → what stands on it
    "README.md": ("(93 MB)", "a Llama of 1.24 B |"),
    "CHANGELOG.md": ("up to 256 MB", "1e-9 nats", '"1 s", not "1e+03 ms"'),
    "docs/bench.md": ("95 % bootstrap interval", "512 MiB"),
    "docs/cluster.md": ("every 5 s", "about 1 GB"),
    "docs/eagle3.md": ("above 15 MiB", "over the last 45 %", "4.6 kB a token"),
    "docs/gpu.md": (
        "(0.1 unless said;", "`reproduce` take 0.2)", "what it needs, 3 MB", "below 60 MB, which",
        "Python ≥ 3.11", "transformers ≥ 5.16", "at 70 % of the read",
        "16 rows at 1.15 times", "three levels 1.1 times", "(torch 2.11,",
    ),
    "docs/heads.md": ("5 % linear warm-up", "15 % of a text's tokens"),
    "docs/hierarchy-files.md": (
        "(default 0.75)", "about 130 MB", "shares below 0.25",
        "| 1000, 300, 0.95 |",
    ),
    "docs/install.md": ("about 65 MB",),
    "docs/math.md": (
        "α=.8, β=.5, c=c_s=.1", "costs (1e-5, .003, .01, .25, 4, 33)", "α_CB + 0.5 − 1",
    ),
    "docs/measured.md": ("[95 %]", "eps 0.2"),
    "docs/papers/README.md": ("95 % bootstrap interval",),
    "docs/papers/p2.md": ("α = .8, β = .5, c = c_s = .1",),
    # as the paper prints it
    "docs/papers/p4.md": ("The printed 3.40 → 3.55 tokens", "a row is 0.6 MB"),
    "docs/papers/p5.md": ("on V100s",),
    "docs/peers.md": (
        "the threshold is .4 by default", "| 5.23 |", "gguf 0.19", "not seen in 5.23",
    ),
    "docs/presets.md": (
        "drafters at temperature 0.5, for requests at 0.6", "without 45 % of its attentions",
        "[25, stops below 0.8]", "At requests below 0.5",
    ),
    "docs/profiles.md": ("longer than 30 ms uses",),
    "docs/python.md": ("temperature of 0.7 with", "top-p 0.9", "of 1.1;"),
    "docs/quantized.md": ("within 8 nats of the best",),
    "docs/smollm2.md": ("temperatures 0, 0.7 and 1", "8,192 of 49,152 tokens"),
    "docs/tutorial.md": ("is 93 MB", "1.00 means", "3.00 that"),
}  # fmt: skip


def figures(text: str) -> list[str]:
    """Return what looks like a measured figure, with what stands around it."""
    text = _NO_FIGURE.sub(" ", text)
    return [text[max(0, m.start() - 40) : m.end() + 20] for m in _FIGURE.finditer(text)]
