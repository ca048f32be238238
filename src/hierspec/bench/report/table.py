"""Results as tables for people: one per temperature, the fastest method first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from .records import compared, ran, sampled

_DASH = "–"


def pictures(results: Mapping[str, Any]) -> Iterable[Table | Text]:
    """Everything that ``hierspec bench`` prints on a results object, finished or not."""
    settings = results["settings"]
    head = f"{settings['target']}, {settings['dtype']}, {settings['num_prompts']} prompts × "
    head += f"{settings['max_new_tokens']} tokens, batch size {settings['batch_size']}"
    yield Text(head if results["finished"] else f"{head} (unfinished)", style="bold")
    for note in results["notes"]:
        yield Text(f"• {note}", style="dim")
    for cell in results["cells"]:
        yield Text("")
        yield _table(cell, results)
        yield from _below(cell, results)


def _table(cell: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    greedy = cell["temperature"] == 0
    grid = Table(
        title=f"temperature {cell['temperature']:g}",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    grid.add_column("method", no_wrap=True)
    grid.add_column("levels", overflow="fold", max_width=34)
    names = ("median ms/token", "tokens/s", "over plain", "over transf.", "a call", "overhead")
    for name in (*names, "as plain" if greedy else "likelihood"):
        grid.add_column(name, justify="right", no_wrap=True)
    for record in sorted(ran(cell), key=_speedup, reverse=True):
        found = record["summary"]
        ms, overhead = found["ms_per_token"], found["overhead_ms_per_token"]
        grid.add_row(
            Text(record["name"]),
            Text(short(record["configuration"]), style="dim"),
            Text(f"{ms['median']:.2f} [{ms['q1']:.2f}, {ms['q3']:.2f}]"),
            Text(f"{found['tokens_per_second']:.1f}"),
            Text(_times(found["speedup"])),
            Text(_times(found["speedup_over_best_transformers"], False)),
            Text(_number(found["mean_acceptance_length"])),
            Text(_number(overhead and overhead["median"])),
            equality(cell, record) if greedy else _likelihood(record),
        )
    return grid


def _below(cell: Mapping[str, Any], results: Mapping[str, Any]) -> Iterable[Text]:
    floor = results["floor"]
    if floor:
        gib = floor["bytes_per_second"] / 2**30
        yield Text(
            f"estimated floor of plain decoding: {floor['ms_per_token']:.2f} ms/token, "
            f"{floor['weight_bytes'] / 2**20:.0f} MiB of weights at {gib:.1f} GiB/s "
            f"({sampled(floor)})",
            style="dim",
        )
    waiting = [r["name"] for r in cell["methods"] if r["skipped"] is None and not r["summary"]]
    if waiting:
        yield Text(f"not finished: {', '.join(waiting)}", style="dim")
    for record in cell["methods"]:
        if record["skipped"] is not None:
            yield Text(f"skipped {record['name']}: {record['skipped']}", style="yellow")


def short(configuration: Any) -> str:
    """A hierarchy in a few words: levels smallest first with their budgets, and the rule."""
    if not isinstance(configuration, Mapping):
        return ""
    if "levels" not in configuration:
        text = ", ".join(_leaves(configuration))
        return text if len(text) <= 64 else f"{text[:63]}…"
    levels = [_level(level) for level in configuration["levels"]]
    if not levels:
        return ""
    text = " > ".join(levels) + f", {configuration.get('verify', 'block')}"
    return text + (", online" if configuration.get("online") else "")


def _leaves(options: Mapping[str, Any]) -> Iterable[str]:
    """Another engine's options, without what they are nested in."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif value is not None:
            yield f"{key} {value}"


def _level(level: Mapping[str, Any]) -> str:
    if level["method"] == "concatenate":
        parts = [" > ".join(map(_level, part)) for part in level["parts"]]
        times = level.get("repeat", 1)
        return f"({' + '.join(parts)})" + (f" × {times}" if times > 1 else "")
    name = str(level.get("model", level["method"])).removeprefix("zoo:").rsplit("/", 1)[-1]
    if level["method"] == "early_exit":
        name = f"exit {level['exit_layer']}"
    return f"{name} {level['num_speculative_tokens']}"


def equality(cell: Mapping[str, Any], record: Mapping[str, Any]) -> Text:
    """Greedy outputs held against plain decoding's: equal, near-tie, or wrong."""
    found = compared(cell, record)
    if found.wrong:
        return Text(f"WRONG {found.wrong}/{found.runs}", style="bold red")
    if found.near_ties:
        return Text(f"equal {found.equal}, near-tie {found.near_ties}", style="yellow")
    return Text(f"equal {found.equal}/{found.runs}", style="green")


def _likelihood(record: Mapping[str, Any]) -> Text:
    found = record["summary"]["logprob"]
    if found is None:
        return Text(_DASH)
    text = f"{found['mean']:.3f} ({found['difference_from_plain']:+.3f})"
    if found["within_noise"]:
        return Text(text, style="green")
    return Text(f"OTHER LAW {text}", style="bold red")


def _speedup(record: Mapping[str, Any]) -> float:
    found = record["summary"]["speedup"]
    return found["median"] if found else 0.0


def _times(ratio: Mapping[str, float] | None, interval: bool = True) -> str:
    if not ratio:
        return _DASH
    text = f"{ratio['median']:.2f}×"
    return f"{text} [{ratio['low95']:.2f}, {ratio['high95']:.2f}]" if interval else text


def _number(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"
