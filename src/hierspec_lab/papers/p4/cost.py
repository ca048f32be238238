"""P4 Table A.4: the share of decoding that is verification, on the models at hand and at V = 152k.

At a large vocabulary (:func:`timing`) rounds run on made-up scores, and three parts are timed
separately: *distributions* (n + 1 of them from the target's scores, a softmax), *drafting* (the
drafter's scores → a distribution and a token, n times), and *verification* by a rule. Only the last
differs between rules; the others belong to sampling and are needed without drafts too, once a
token. A forward is at least one pass over the model's weights: that time is taken for it, so the
shares are upper bounds for models of that size on that machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions, concatenate, draw
from hierspec.core.proposals import Proposal
from hierspec.core.rng import PhiloxRng
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.scores import ScoreRows, distributions
from hierspec.verifiers import registry
from hierspec.verifiers.verify import verify_batch
from hierspec_lab.bench.methods.base import Run
from hierspec_lab.bench.methods.ours import HierarchyMethod
from hierspec_lab.bench.roofline import bandwidth, ms_to_read
from hierspec_lab.papers.lab import Lab, draft_level
from hierspec_lab.papers.measured import uncompared_table
from hierspec_lab.papers.tables import Cell, Reproduction, Table, TableRow

from .lab import DRAFT_LENGTH, measure_methods, sampling_setup

QWEN_VOCAB = 151_936
RULES = ("tokenwise", "block")
# Parameters of Qwen2.5 that a token reads (its two smaller ones tie the embeddings to the head).
SIZES = {"0.5B": 494_000_000, "7B": 7_070_000_000}
_PARTS = (
    "verification",
    "distributions",
    "drafting",
    "forwards, roofline",
    "verification, %",
    "sampling, %",
)
_NOISE = 0.5  # of the draft's scores against the target's; it sets the acceptance
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


@dataclass(frozen=True, slots=True)
class Timing:
    """Median milliseconds of a round's parts, for a whole batch.

    Attributes:
        distributions: the target's, from its scores.
        drafting: the drafter's distributions and tokens.
        verification: by rule.
        kept: drafted tokens kept, mean over rounds, by rule.
    """

    distributions: float
    drafting: float
    verification: dict[str, float]
    kept: dict[str, float]


def random_scores(
    rows: int, vocab: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw scores of target and draft, each [rows, V]: a few likely tokens over a long tail."""
    target = 2.5 * torch.randn(rows, vocab, generator=generator)
    best = torch.randint(0, vocab, (rows, 4), generator=generator)
    peaks = 14.0 + 2.0 * torch.randn(rows, 4, generator=generator)
    target.scatter_add_(1, best, peaks)
    draft = target + _NOISE * torch.randn(rows, vocab, generator=generator)
    draft.scatter_add_(1, best, 2 * _NOISE * torch.randn(rows, 4, generator=generator))
    return target.to(dtype), draft.to(dtype)


def timing(
    vocab: int, length: int, batch: int = 1, dtype: torch.dtype = torch.float32, rounds: int = 20
) -> Timing:
    """Time rounds of drafts of ``length`` tokens for ``batch`` sequences.

    Args:
        dtype: of the models' scores.
        rounds: that count; two more come before them to warm up.
    """
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in ("distributions", "drafting", *RULES)}
    kept: dict[str, list[float]] = {rule: [] for rule in RULES}
    for number in range(rounds + 2):
        target, draft = random_scores(batch * (length + 1), vocab, generator, dtype)
        rng = [PhiloxRng(number, i) for i in range(batch)]
        steps = draft.reshape(batch, length + 1, vocab).unbind(1)[:length]
        began = time.perf_counter()
        proposals = _draft(steps, rng, vocab)
        drafted = time.perf_counter()
        p = distributions([_job(vocab, length + 1)] * batch, target)
        distributed = time.perf_counter()
        seconds["drafting"].append(drafted - began)
        seconds["distributions"].append(distributed - drafted)
        # The second rule finds the rows in the processor's caches, so the rules take turns.
        for rule in RULES if number % 2 else RULES[::-1]:
            verifier = registry.get(rule)
            own = [PhiloxRng(number, batch + i) for i in range(batch)]
            began = time.perf_counter()
            verdicts = verify_batch(verifier, proposals, p, own)
            seconds[rule].append(time.perf_counter() - began)
            kept[rule].append(statistics.mean(v.num_accepted for v in verdicts))
    ms = {name: 1e3 * statistics.median(values[2:]) for name, values in seconds.items()}
    return Timing(
        ms["distributions"],
        ms["drafting"],
        {rule: ms[rule] for rule in RULES},
        {rule: statistics.mean(values[2:]) for rule, values in kept.items()},
    )


def _draft(steps: Any, rngs: list[PhiloxRng], vocab: int) -> list[Proposal]:
    """Draft as the runtime does: a distribution and a token for every sequence, step by step."""
    tokens: list[list[int]] = [[] for _ in rngs]
    rows: list[list[Distributions]] = [[] for _ in rngs]
    for step in steps:
        q = distributions([_job(vocab, 1)] * len(rngs), step)
        dense = torch.cat([row.dense(vocab) for row in q])
        drawn_tokens = draw(dense, [float(rng.take(1)[0]) for rng in rngs])
        for own_rows, row, ids, token in zip(rows, q, tokens, drawn_tokens, strict=True):
            own_rows.append(row)
            ids.append(token)
    owners = (0,) * len(steps)
    return [
        Proposal(tuple(ids), concatenate(own_rows), owners, owners, (float("nan"),) * len(ids))
        for ids, own_rows in zip(tokens, rows, strict=True)
    ]


def _job(vocab: int, num_rows: int) -> ScoreRows:
    return ScoreRows(SamplingParams(temperature=1.0), Context([0]), 1, num_rows, 1, vocab)


def shares(
    times: Timing, rule: str, length: int, draft_ms: float, target_ms: float
) -> dict[str, float]:
    """Return shares of a round's time: ``verification``, ``sampling`` and ``forwards``.

    Args:
        draft_ms, target_ms: milliseconds of one forward of the drafter and of the target.
    """
    parts = {
        "verification": times.verification[rule],
        "sampling": times.distributions + times.drafting,
        "forwards": length * draft_ms + target_ms,
    }
    total = sum(parts.values())
    return {name: ms / total for name, ms in parts.items()}


def roofline_ms(parameters: float, bytes_per_second: float) -> float:
    """Return the milliseconds in which all weights, in bfloat16, can be read once."""
    return ms_to_read(2 * parameters, bytes_per_second)


def measure(
    lab: Lab, length: int = DRAFT_LENGTH, vocab: int = QWEN_VOCAB, lengths: Sequence[int] = LENGTHS
) -> Reproduction:
    """Measure the parts of decoding time by tokenwise and block, at every temperature above 0.

    Args:
        length: of the drafts on the models at hand.
        vocab, lengths: of the rounds on made-up scores (:func:`timing`).

    Raises:
        HierspecError: there is nothing to draft with, no prompt, or only greedy decoding.
    """
    chosen, model, record = sampling_setup(lab, "p4-cost")
    tables = []
    for temperature in chosen:
        methods = [
            HierarchyMethod(rule, lab.models, [draft_level(model, length)], verify=rule)
            for rule in RULES
        ]
        runs = measure_methods(lab, methods, temperature, "p4-cost")
        tables.append(_table(dict(zip(RULES, runs, strict=True)), length, temperature))
    return Reproduction("p4-cost", (*tables, _computed(lab, vocab, lengths)), measured_on=record)


def ms_by_part(runs: Sequence[Run]) -> dict[str, float]:
    """Return milliseconds a token by the rows of Table A.4, all prompts together."""
    tokens = sum(run.num_tokens for run in runs)
    total = sum(run.seconds for run in runs)
    decode = sum(run.decode_seconds or 0.0 for run in runs)
    every = [part for run in runs for part in run.counters]
    draft = sum(part.forward_seconds for run in runs for part in run.levels)
    target = sum(run.counters[-1].forward_seconds for run in runs)
    verification = sum(part.verify_seconds or 0.0 for part in every)
    inside = sum(part.seconds for part in every)
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
    block, tokenwise = ms_by_part(runs["block"]), ms_by_part(runs["tokenwise"])
    rows = []
    for name, printed in TABLE_A4.items():
        ms, share = block[name], 100.0 * block[name] / block["Total"]
        cells = [Cell(text, value) for text, value in zip(printed, (ms, share) * 2, strict=True)]
        extra = (tokenwise[name], 100.0 * tokenwise[name] / tokenwise["Total"])
        rows.append(TableRow(name, tuple(cells), extra))
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
            "One measurement of block is compared with both printed rules. Logits Processing: "
            "distributions and draws of draft tokens. Prefill: everything before the first token.",
            "KV Cache Input and Output (printed: at most 0.20 %) have no counterpart here: a cache "
            "is rewound by setting its length.",
            "Forwards run asynchronously on an accelerator; there, time spent waiting for one "
            "shows under Logits Processing, whose first step reads a number back.",
        ),
    )


def _computed(lab: Lab, vocab: int, lengths: Sequence[int]) -> Table:
    speed = bandwidth(torch.device("cpu"))
    draft_ms, target_ms = (roofline_ms(SIZES[name], speed) for name in ("0.5B", "7B"))
    rows = []
    for count, n in enumerate(lengths, 1):
        times = timing(vocab, n)
        for rule in RULES:
            share = shares(times, rule, n, draft_ms, target_ms)
            figures = (
                times.verification[rule],
                times.distributions,
                times.drafting,
                n * draft_ms + target_ms,
                100.0 * share["verification"],
                100.0 * share["sampling"],
            )
            rows.append((f"{rule}, {n}", figures))
        lab.report(f"p4-cost, V = {vocab}", count / len(lengths))
    return uncompared_table(
        f"V = {vocab:,}",
        "ms a round on this processor, made-up scores; forwards at the memory roofline",
        "rule, n",
        rows,
        _PARTS,
        {"vocab": vocab, "bytes_per_second": speed, "draft": "0.5B", "target": "7B"},
        notes=(
            "Forwards, roofline: n passes over the weights of a 0.5B draft and one over those of a "
            f"7B target, bfloat16, at {speed / 1e9:.1f} GB/s as measured here: nothing was run at "
            "those sizes. Real forwards take longer, so the shares are upper bounds.",
            "Sampling: distributions and draws of target and draft, softmax for the most part.",
        ),
    )
