"""The sections of ``docs/results.md`` on methods side by side, batches, verification and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import provenance
from figures import times
from paper_evidence.computed import markdown_table

from hierspec_lab.bench.method_records import MethodRecord
from hierspec_lab.bench.records import BenchResults, TemperatureRecord
from hierspec_lab.bench.report.page import command
from hierspec_lab.bench.report.table import equality, short
from hierspec_lab.bench.summary import ratio

PICTURES = "pictures/bench-eps-0.2"  # of the results that have them, below docs/
SHOWN = {
    "speedup-t0": "Speed-ups, greedy",
    "speedup-t1": "Speed-ups, temperature 1",
    "time-t1": "Where the time goes, temperature 1",
    "tokens-per-call-t1": "Tokens per target call, temperature 1",
}
# As hierspec_lab.bench chooses: ``tune`` among configurations, ``judge`` among methods.
BEST = (
    "Best, at each temperature, is the smallest median of ms a token: of transformers' methods, "
    "and of the single drafts (`branch`, `speculative`), on the prompts measured; of each "
    "method's configurations, on other prompts. Ratios are paired per prompt: median "
    "[95 % bootstrap interval]."
)


def title(data: BenchResults) -> str:
    settings, cpu = data.settings, data.environment.cpu or ""
    maker = next((name for name in ("Intel", "AMD") if name in cpu), cpu)
    return (
        f"{settings.target}, {settings.num_prompts} prompts × {settings.max_new_tokens} tokens, "
        f"{maker}"
    )


def bench(file: str, data: BenchResults) -> str:
    """Write up one ``hierspec bench`` file: a table per temperature, and the comparisons."""
    rerun = command(data).replace("results.json", f"benchmarks/results/{file}")
    assert data.roofline is not None
    roofline = f" Roofline of plain decoding: {data.roofline.ms_per_token:.1f} ms a token."
    parts = [
        f"## Methods side by side: {title(data)}",
        *data.notes,
        f"`{rerun}`",
        provenance(data.to_dict()) + roofline,
        BEST,
    ]
    if not data.finished:
        parts.append("Interrupted: temperatures that are not here were not measured.")
    for cell in data.cells:
        if not cell.measured:
            continue
        parts.append(f"### Temperature {cell.temperature:g}")
        records = sorted(cell.measured, key=lambda record: -(record.median_speedup or 0.0))
        rows = [_row(cell, record) for record in records]
        parts.append(markdown_table(list(_HEAD), rows))
        skipped = [f"{r.name} ({r.skipped})" for r in cell.methods if r.skipped]
        if skipped:
            parts.append("Not run: " + "; ".join(skipped) + ".")
        if comparisons := _comparisons(records):
            parts.append("; ".join(comparisons) + ".")
    if file == "bench-eps-0.2.json":
        parts += [f"![{name}]({PICTURES}/{stem}.svg)" for stem, name in SHOWN.items()]
    return "\n\n".join(parts)


_HEAD = (
    "method",
    "configuration",
    "ms a token",
    "tokens/s",
    "over plain",
    "over transformers' best",
    "tokens a target call",
    "ms outside forward passes",
    "predicted ms",
    "text",
)


def _row(cell: TemperatureRecord, record: MethodRecord) -> list[str]:
    summary = record.final_summary
    ms, speedup = summary.ms_per_token, summary.speedup
    best, overhead = summary.speedup_over_best_transformers, summary.overhead_ms_per_token
    text = equality(cell, record).plain
    if summary.logprob is not None:
        ok = "same law" if summary.logprob.within_noise else "OTHER LAW"
        text = f"{ok} ({summary.logprob.difference_from_plain:+.2f} nats)"
    return [
        record.name,
        short(record.configuration),
        f"{ms.median:.2f} ± {ms.standard_error:.2f}",
        f"{summary.tokens_per_second:.0f}",
        speedup.format() if speedup else "",
        f"{best.median:.2f}×" if best else "",
        _number(summary.mean_acceptance_length),
        _number(overhead and overhead.median),
        _number(record.predicted_ms_per_token),
        text,
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _comparisons(records: Sequence[MethodRecord]) -> list[str]:
    """Compare, paired per prompt, chains of all drafts and the plan with the best single draft."""
    by_name = {record.name: record for record in records}
    out = []
    singles = [by_name[name] for name in ("branch", "speculative") if name in by_name]
    if singles:
        single = min(singles, key=lambda record: record.final_summary.ms_per_token.median)
        for name in ("hierarchy", "planned"):
            if name in by_name:
                comparison = ratio(times(single), times(by_name[name]))
                out.append(
                    f"{name} over the best single draft ({single.name}) {comparison.format()}"
                )
    return out


def batch(data: dict[str, Any]) -> str:
    size = str(data["batch_size"])
    rows = []
    for temperature, cell in data["temperatures"].items():
        for name, measured in cell.items():
            gain, speed = measured["throughput_gain"], measured["tokens_per_second"]
            single, batched = (short({"levels": measured["levels"][b]}) for b in ("1", size))
            rows.append(
                [
                    temperature,
                    name,
                    f"{speed['1']:.0f}",
                    f"{speed[size]:.0f}",
                    f"{gain['median']:.2f}×",
                    f"{single} / {batched}" if single else "",
                ]
            )
    head = ["temperature", "method", "tokens/s alone", f"tokens/s, {size} together", "gain", "best"]
    return "\n\n".join(
        [
            "## Eight sequences together",
            f"`python benchmarks/batch.py --prompts humaneval.jsonl`: {data['target']}, prompts of "
            "different lengths, wall time with the reading of the prompts; each batch size with "
            "the best budgets of the same grid: the least time a token, on other prompts.",
            provenance(data),
            markdown_table(head, rows),
        ]
    )


def heads(data: dict[str, Any]) -> str:
    rows = [
        [
            model["model"],
            model["kind"],
            layer,
            f"{untrained['acceptance']:.3f}",
            f"{model['held_out']['after'][layer]['acceptance']:.3f}",
        ]
        for model in data["results"]
        for layer, untrained in model["held_out"]["before"].items()
    ]
    return "\n\n".join(
        [
            "## Exit heads",
            "`python benchmarks/heads.py --prompts humaneval.jsonl`: acceptance of an early exit's "
            "tokens on held-out text at temperature 1, before and after its head was trained.",
            provenance(data),
            markdown_table(["model", "kind", "exit", "before", "after"], rows),
        ]
    )


def verification(data: dict[str, Any]) -> str:
    shares_by_case: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for row in data["rows"]:
        for rule, shares in row["shares"].items():
            pair = (100 * shares["verification"], 100 * shares["sampling"])
            shares_by_case.setdefault((row["batch"], rule, row["dtype"]), []).append(pair)
    rows = []
    for (size, rule, dtype), shares in shares_by_case.items():
        verifying, sampling = zip(*shares, strict=True)
        rows.append(
            [
                str(size),
                rule,
                dtype,
                f"{min(verifying):.2f}–{max(verifying):.2f} %",
                f"{min(sampling):.1f}–{max(sampling):.1f} %",
            ]
        )
    return "\n\n".join(
        [
            "## Verification at a vocabulary of 151,936",
            "`python benchmarks/verification.py`: share of a round's time, where forwards cost "
            "what reading their weights once costs (a draft of 0.5 B and a target of 7 B "
            "parameters), for drafts of 4 to 15 tokens.",
            provenance(data),
            markdown_table(["sequences", "rule", "scores", "verification", "laws and draws"], rows),
        ]
    )


def waiting(data: dict[str, Any]) -> str:
    rows = [
        [name, kind, *(f"{ms:.1f}" for ms in by_rows.values())]
        for name, kinds in data["ms"].items()
        for kind, by_rows in kinds.items()
    ]
    return "\n\n".join(
        [
            "## How threads wait",
            f"`python benchmarks/waiting.py`: milliseconds of a forward of {data['target']} on two "
            "threads, by what OpenMP's threads do between pieces of work.",
            markdown_table(["waiting", "processes", "one row", "twelve rows"], rows),
        ]
    )


def cold(data: dict[str, Any]) -> str:
    rows = [
        [name, f"{times['cold']:.0f}", f"{times['warm']:.1f}"]
        for name, times in data["microseconds"].items()
    ]
    return "\n\n".join(
        [
            "## Work between forwards, with cold and with warm caches",
            f"`python benchmarks/cold.py`: median microseconds right after a forward of "
            f"{data['target']} and repeated at once, at a vocabulary of {data['vocab_size']}.",
            provenance(data),
            markdown_table(["work", "after a forward", "repeated"], rows),
        ]
    )
