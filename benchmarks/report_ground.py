"""The sections of ``docs/results.md`` on what a token and a command take: see :mod:`report`."""

from __future__ import annotations

from typing import Any

from common import provenance
from paper_evidence.computed import markdown_table


def _median(cell: dict[str, Any] | None) -> str:
    return (
        ""
        if cell is None
        else f"{cell['median']:.1f}"
        if cell["median"] < 1e3
        else f"{cell['median']:.0f}"
    )


def ground(data: dict[str, Any]) -> str:
    parts = [
        "## The ground",
        "`python benchmarks/ground.py`: milliseconds of a call, all ways in turns. The floor is "
        "the time in which a loop in C, in the same turns, reads as many bytes as the weights "
        "have; its share is that of a row behind the shortest text. Weights of `llama-1.2b` "
        "and `llama-1.1b` are random; runs without a share are of earlier the same day.",
    ]
    for run in data["runs"]:
        settings, times = run["settings"], run["milliseconds"]
        columns = [(context, rows) for context, by_rows in times.items() for rows in by_rows]
        shortest = next(iter(times.values())).get("1", {})
        lines = []
        for name in run["ways"]:
            floor = run["floor_milliseconds"].get(name)
            share = f"{100 * floor / shortest[name]['median']:.0f} %" if floor else ""
            lines.append([name, *(_median(times[c][r].get(name)) for c, r in columns), share])
        what = "whole prompts" if settings["prompts"] else "rows behind so many tokens"
        heads = [f"{c}" if r == "prompt" else f"{r} behind {c}" for c, r in columns]
        parts += [
            f"{settings['target']}, {settings['threads']} thread(s), {what}. {provenance(run)}",
            markdown_table(["way", *heads, "of the floor"], lines),
        ]
        notes = {way["note"] for way in run["ways"].values() if "llama-cpp" in way["note"]}
        parts += sorted(f"Built as: {note}." for note in notes)
    return "\n\n".join(parts)


def memory(data: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{cell['seconds']['median']:.1f}",
            f"{cell['peak_bytes'] / 2**20:.0f}" if "peak_bytes" in cell else "",
            f"{cell['peak_over_weights']:.2f}" if "peak_over_weights" in cell else "",
        ]
        for name, cell in data["commands"].items()
    ]
    return "\n\n".join(
        [
            "## Start and memory",
            "`python benchmarks/memory.py`: whole commands, imports and loading included, "
            f"{data['settings']['tokens']} tokens where not the first alone; files are in the "
            "system's memory. Resident memory at its peak, libraries included, and as a multiple "
            "of the weights as they are stored.",
            provenance(data),
            markdown_table(["command", "seconds", "peak, MiB", "times the weights"], rows),
        ]
    )


def auto(data: dict[str, Any]) -> str:
    parts = [
        "## auto",
        "`python benchmarks/auto.py`: whole commands with `--hierarchy auto`, in seconds, when "
        "there was a first plan, and at which second each estimate of the time left would have "
        "ended; then its plan, other chains and plain decoding in turns, on prompts that were not "
        "profiled.",
    ]
    for run in data["runs"]:
        settings = run["settings"]
        parts.append(f"{settings['target']}, {settings['dtype']}. {provenance(run)}")
        for temperature, cell in run["temperatures"].items():
            if "ways" in cell:
                rows = [
                    [
                        name,
                        f"{row['ms']['median']:.2f}",
                        f"{row['plan_gains']['median']:.2f} [{row['plan_gains']['low95']:.2f}, "
                        f"{row['plan_gains']['high95']:.2f}]",
                        f"{row['gains_in_all']:.2f}",
                        f"{row['loses_to_plain']:.2f}",
                    ]
                    for name, row in cell["ways"].items()
                ]
                head = ["ms a token", "over the plan's", "in all", "over plain decoding's in all"]
                parts += [f"Temperature {temperature}, planned: {cell['plan']}."]
                parts.append(markdown_table(["chain", *head], rows))
            else:
                uses = ", ".join(f"{use} {c['seconds']:.1f}" for use, c in cell.items())
                ends = ", ".join(f"{end:.0f}" for end in cell["first"]["promised"])
                plan = cell["first"].get("first_plan_seconds")
                first = "" if plan is None else f"; first plan {plan:.1f}"
                parts.append(
                    f"Temperature {temperature}: {uses}{first}; estimated ends {ends or 'none'}."
                )
    return "\n\n".join(parts)
