"""P4 Table A.4: what share of decoding is verification, on the models at hand and at V = 152k."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.floor import bandwidth
from ..bench.ours import HierarchyMethod
from ..bench.runs import Run
from .lab import Lab, draft_level
from .p4_lab import DRAFT_LENGTH, drafter, measured, temperatures
from .p4_vocabulary import QWEN_VOCAB, RULES, SIZES, floor_ms, shares, timing
from .tables import Cell, Reproduction, Row, Table

LENGTHS = (4, 8, 10, 15)

# P4 Table A.4, Qwen2.5 0.5B → 72B (8 bit) on an H200: ms a token and per cent, blockwise and HSD.
TABLE_A4 = {
    "Total": ("34.168", "100.00", "33.788", "100.00"),
    "Prefill": ("0.913", "2.67", "0.915", "2.71"),
    "Draft Forward": ("8.210", "24.03", "7.865", "23.28"),
    "Target Forward": ("24.690", "72.26", "24.695", "73.09"),
    "Logits Processing": ("0.093", "0.27", "0.103", "0.31"),
    "Verification": ("0.160", "0.47", "0.127", "0.37"),
    "Other": ("0.025", "0.08", "0.012", "0.03"),
}


def measure(
    lab: Lab, length: int = DRAFT_LENGTH, vocab: int = QWEN_VOCAB, lengths: Sequence[int] = LENGTHS
) -> Reproduction:
    """The parts of decoding time by tokenwise and block, at every temperature above 0.

    Args:
        length: of the drafts on the models at hand.
        vocab, lengths: of the rounds on made-up scores (:mod:`.p4_vocabulary`).

    Raises:
        ValueError: there is nothing to draft with, no prompt, or only greedy decoding.
    """
    chosen, model = temperatures(lab, "p4-cost"), drafter(lab, "p4-cost")
    tables = []
    for temperature in chosen:
        methods = [
            HierarchyMethod(rule, lab.models, [draft_level(model, length)], verify=rule)
            for rule in RULES
        ]
        runs = measured(lab, methods, temperature, "p4-cost")
        tables.append(_table(dict(zip(RULES, runs, strict=True)), length, temperature))
    return Reproduction(
        "p4-cost",
        (*tables, _computed(lab, vocab, lengths)),
        measured_on={**lab.to_dict(), "draft": model, "temperatures": chosen},
    )


def parts(runs: Sequence[Run]) -> dict[str, float]:
    """Milliseconds a token by the rows of Table A.4, all prompts together."""
    tokens = sum(run.num_tokens for run in runs)
    total = sum(run.seconds for run in runs)
    decode = sum(run.decode_seconds or 0.0 for run in runs)
    every = [part for run in runs for part in (*run.levels, run.target)]
    draft = sum(part["forward_seconds"] for run in runs for part in run.levels)
    target = sum(run.target["forward_seconds"] for run in runs)
    verification = sum(part["verify_seconds"] for part in every)
    inside = sum(part["seconds"] for part in every)
    seconds = {
        "Total": total,
        "Prefill": total - decode,
        "Draft Forward": draft,
        "Target Forward": target,
        "Logits Processing": inside - draft - target - verification,
        "Verification": verification,
        "Other": decode - inside,
    }
    return {name: 1e3 * value / tokens for name, value in seconds.items()}


def _table(runs: dict[str, list[Run]], length: int, temperature: float) -> Table:
    block, tokenwise = parts(runs["block"]), parts(runs["tokenwise"])
    rows = []
    for name, printed in TABLE_A4.items():
        ms, share = block[name], 100.0 * block[name] / block["Total"]
        cells = [Cell(text, value) for text, value in zip(printed, (ms, share) * 2, strict=True)]
        extra = (tokenwise[name], 100.0 * tokenwise[name] / tokenwise["Total"])
        rows.append(Row(name, tuple(cells), extra))
    return Table(
        "Table A.4" if temperature == 1.0 else f"Table A.4 at temperature {temperature:g}",
        f"where decoding time goes, drafts of {length} tokens",
        "component",
        ("Blockwise, ms/token", "Blockwise, %", "HSD, ms/token", "HSD, %"),
        tuple(rows),
        ("tokenwise, ms/token", "tokenwise, %"),
        {"length": length, "temperature": temperature},
        compared=False,
        notes=(
            "One measurement of block stands beside both printed rules. Logits Processing: laws "
            "and draws of draft tokens. Prefill: everything before the first token.",
            "KV Cache Input and Output (printed: at most 0.20 %) have no counterpart here: a cache "
            "is rewound by setting its length.",
            "Forwards run asynchronously on an accelerator; there, time spent waiting for one "
            "shows under Logits Processing, whose first step reads a number back.",
        ),
    )


def _computed(lab: Lab, vocab: int, lengths: Sequence[int]) -> Table:
    import torch

    speed = bandwidth(torch.device("cpu"))
    draft_ms, target_ms = (floor_ms(SIZES[name], speed) for name in ("0.5B", "7B"))
    rows = []
    for done, n in enumerate(lengths, 1):
        found = timing(vocab, n)
        for rule in RULES:
            share = shares(found, rule, n, draft_ms, target_ms)
            figures = (
                found.verification[rule],
                found.laws,
                found.drafting,
                n * draft_ms + target_ms,
                100.0 * share["verification"],
                100.0 * share["sampling"],
            )
            rows.append(Row(f"{rule}, {n}", (), figures))
        lab.report(f"p4-cost, V = {vocab}", done / len(lengths))
    return Table(
        f"V = {vocab:,}",
        "ms a round on this processor, made-up scores; forwards at the floor of memory bandwidth",
        "rule, n",
        (),
        tuple(rows),
        (
            "verification",
            "laws",
            "drafting",
            "forwards, floor",
            "verification, %",
            "sampling, %",
        ),
        {"vocab": vocab, "bytes_per_second": speed, "draft": "0.5B", "target": "7B"},
        compared=False,
        notes=(
            "Forwards, floor: n passes over the weights of a 0.5B draft and one over those of a 7B "
            f"target, bfloat16, at {speed / 1e9:.1f} GB/s as measured here: nothing was run at "
            "those sizes. Real forwards take longer, so the shares are upper bounds.",
            "Sampling: laws and draws of target and draft, softmax for the most part.",
        ),
    )
