"""The sections of ``docs/results.md`` on planning; :mod:`report` puts the page together."""

from __future__ import annotations

import statistics
from typing import Any

from common import provenance
from paper_evidence.computed import markdown_table


def search(data: dict[str, Any]) -> str:
    aims = {(32, "exact"): 500, (80, "exact"): 2000, (80, "corollary"): 50}
    rows = [
        [
            str(cell["candidates"]),
            cell["latency_model"],
            f"{1e3 * cell['seconds']['median']:.0f}",
            f"{1e3 * cell['slowest_seconds']:.0f}",
            str(aims.get((cell["candidates"], cell["latency_model"]), "")),
            f"{cell['percent_above_lower_bound']['median']:.1f} %",
        ]
        for cell in data["searches"]
    ]
    return "\n\n".join(
        [
            "## Search",
            "`python benchmarks/search.py`: random problems with budgets up to 15, one thread; "
            "milliseconds of processor time for the plan, runners-up and the lower bound together.",
            provenance(data),
            markdown_table(
                [
                    "candidates",
                    "latency model",
                    "median",
                    "slowest",
                    "aim",
                    "above the lower bound",
                ],
                rows,
            ),
        ]
    )


def predict(data: dict[str, Any]) -> str:
    return _predicted(
        "## Predicted against measured",
        "`python benchmarks/predict.py --prompts humaneval.jsonl`: the models are profiled on "
        "every other prompt, and the hierarchies run interleaved on those between, ",
        data,
    )


def predict_chats(data: dict[str, Any]) -> str:
    (target,) = data["targets"]
    return _predicted(
        f"## Predicted against measured, {target}",
        f"`python benchmarks/predict.py --chats FOLDER --targets {target} --lengths 4 --tokens "
        f"{data['tokens']} --num-prompts {data['prompts']}`: the models are profiled on some "
        "chats, and the hierarchies run interleaved on others, ",
        data,
    )


def _predicted(title: str, how: str, data: dict[str, Any]) -> str:
    parts = [
        title,
        f"{how}{data['tokens']} tokens each. Milliseconds a token, decoding.",
        provenance(data),
    ]
    errors = [
        abs(row["error"])
        for cells in data["targets"].values()
        for cell in cells.values()
        if isinstance(cell, dict)
        for row in cell["hierarchies"].values()
    ]
    parts.append(
        f"Of all {len(errors)} predictions the median error is "
        f"{100 * statistics.median(errors):.1f} %, the worst {100 * max(errors):.1f} %; "
        f"{sum(error <= 0.12 for error in errors)} lie within 12 %. Costs are timed again between "
        "the runs, since the machine drifts; the file has the errors with the profile's own costs, "
        "some minutes old, as well."
    )
    for target, cells in data["targets"].items():
        for temperature, cell in cells.items():
            if not isinstance(cell, dict):
                continue
            rows = [
                [
                    name,
                    f"{row['predicted_ms']:.2f}",
                    f"{row['measured_ms']:.2f}",
                    f"{100 * row['error']:+.1f} %",
                    f"{row['predicted_tokens_per_call']:.2f} / "
                    f"{row['measured_tokens_per_call']:.2f}",
                    f"{row['planned_over_this']['median']:.2f} "
                    f"[{row['planned_over_this']['low95']:.2f}, "
                    f"{row['planned_over_this']['high95']:.2f}]",
                ]
                for name, row in cell["hierarchies"].items()
            ]
            planned = cell["planned"]
            chain = " > ".join(
                f"{name} {budget}"
                for name, budget in zip(
                    planned["names"], planned["num_speculative_tokens"], strict=False
                )
            )
            faster = ", ".join(cell["faster_than_planned"]) or "none"
            parts += [
                f"### {target}, temperature {temperature}",
                f"Median error {100 * cell['median_error']:.1f} %, worst "
                f"{100 * cell['worst_error']:.1f} %. Planned: {chain or 'plain decoding'}. "
                f"Measured faster than the plan, beyond the interval: {faster}.",
                markdown_table(
                    ["hierarchy", "predicted", "measured", "error", "tokens a call",
                     "planned over this, paired [95 %]"],
                    rows,
                ),
            ]  # fmt: skip
    return "\n\n".join(parts)


def harmless(data: dict[str, Any]) -> str:
    rows = []
    for label, cell in data["useless"].items():
        for method in ("static", "online"):
            ratio = cell[method]["over_plain"]
            rows.append(
                [
                    label,
                    method,
                    f"{ratio['median']:.3f} [{ratio['low95']:.3f}, {ratio['high95']:.3f}]",
                    f"{cell[method]['mean_over_plain']:.3f}",
                ]
            )
    mixed = data["mixed"]
    ratio = mixed["online_over_best_static"]
    methods = [
        [
            name,
            f"{cell['over_plain']['median']:.3f} [{cell['over_plain']['low95']:.3f}, "
            f"{cell['over_plain']['high95']:.3f}]",
            f"{cell['mean_over_plain']:.3f}",
        ]
        for name, cell in mixed["methods"].items()
    ]
    head = ["time over plain decoding, paired median [95 %]", "sum over sum"]
    return "\n\n".join(
        [
            "## Online control",
            "`python benchmarks/harmless.py --prompts humaneval.jsonl --other-prompts "
            "gsm8k.jsonl --num-prompts 8`: "
            "drafts that the estimates praise and the text does not bear out (temperature 2; "
            "drafters with random weights), then code and prose prompts mixed at temperature 1.",
            provenance(data),
            markdown_table(["useless drafts", "method", *head], rows),
            "Mixed prompts; the best static plan is the fastest of those listed, found on the very "
            "same prompts:",
            markdown_table(["method", *head], methods),
            f"Online control over the best static plan ({mixed['best_static']}): "
            f"{ratio['median']:.3f} [{ratio['low95']:.3f}, {ratio['high95']:.3f}] per prompt, "
            f"{mixed['mean_online_over_best_static']:.3f} sum over sum.",
        ]
    )
