"""Results as tables for a terminal, the fastest method first: by temperature, and by domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hierspec.utils.terminal import counted
from hierspec_lab.bench.method_records import LevelShape, MethodRecord, PairedRatio, level_shapes
from hierspec_lab.bench.records import BenchResults, Roofline, TemperatureRecord
from hierspec_lab.plotting.tables import borderless

from .columns import category_names, fastest_first, prediction_errors

_DASH = "–"


def rendered(results: BenchResults) -> Iterable[RenderableType]:
    """Yield everything that ``hierspec bench`` prints on results, finished or not."""
    settings = results.settings
    head = (
        f"{settings.target}, dtype {settings.dtype}, {counted(settings.num_prompts, 'prompt')} × "
    )
    head += f"{settings.max_new_tokens} tokens, batch size {settings.batch_size}"
    yield Text(head if results.finished else f"{head} (unfinished)", style="bold")
    for note in results.notes:
        yield Text(f"• {note}", style="dim")
    for cell in results.cells:
        yield Text("")
        yield method_table(cell)
        yield from by_domain(cell)
        yield from _remarks(cell, results.roofline)


def method_table(cell: TemperatureRecord) -> Table:
    """Make the table of the methods measured at a temperature."""
    methods = sorted(cell.measured, key=_speedup, reverse=True)
    rows = [(_name_and_configuration(method), _numbers(cell, method)) for method in methods]
    grid = borderless(["method"], rows[0][1] if rows else (), f"temperature {cell.temperature:g}")
    for name, numbers in rows:
        grid.add_row(name, *numbers.values())
    return grid


def _name_and_configuration(method: MethodRecord) -> Group:
    """Return the method's name with its configuration below it."""
    configured = Text(short(method.configuration), style="dim")
    return Group(Text(method.name), *([Padding(configured, (0, 0, 0, 2))] if configured else []))


def _numbers(cell: TemperatureRecord, method: MethodRecord) -> dict[str, Text]:
    """Return a method's row, by the heads of the columns."""
    summary = method.final_summary
    ms, overhead = summary.ms_per_token, summary.overhead_ms_per_token
    best = summary.speedup_over_best_transformers
    numbers = {
        "median ms/token": f"{ms.median:.2f} [{ms.q1:.2f}, {ms.q3:.2f}]",
        "tokens/s": f"{summary.tokens_per_second:.1f}",
        "over plain": _times(summary.speedup),
        "over transf.": f"{best.median:.2f}×" if best else _DASH,
        "a call": _number(summary.mean_acceptance_length),
        "overhead": _number(overhead and overhead.median),
    }
    judged = ("as plain", equality(cell, method)) if cell.greedy else _likelihood(method)
    return {name: Text(text) for name, text in numbers.items()} | dict([judged])


def _remarks(cell: TemperatureRecord, roofline: Roofline | None) -> Iterable[Text]:
    if roofline:
        yield Text(
            f"estimated roofline of plain decoding: {roofline.ms_per_token:.2f} ms/token, "
            f"{roofline.weight_bytes / 2**20:.0f} MiB of weights at "
            f"{roofline.bytes_per_second / 2**30:.1f} GiB/s ({roofline.samples_text})",
            style="dim",
        )
    if errors := prediction_errors(cell):
        yield Text(errors, style="dim")
    waiting = [method.name for method in cell.unmeasured if method.skipped is None]
    if waiting:
        yield Text(f"not finished: {', '.join(waiting)}", style="dim")
    for method in cell.methods:
        if method.skipped is not None:
            yield Text(f"skipped {method.name}: {method.skipped}", style="yellow")


def short(configuration: Mapping[str, Any] | None) -> str:
    """Describe a hierarchy in a line: levels with their budgets, smallest first, and the rule."""
    if not configuration:
        return ""
    if "levels" not in configuration:
        return ", ".join(_leaves(configuration))
    levels = level_shapes(configuration)
    if not levels:
        return ""
    text = f"{_chain(levels)}, {configuration.get('verify', 'block')}"
    return text + (", online" if configuration.get("online") else "")


def _leaves(options: Mapping[str, Any]) -> Iterable[str]:
    """Yield another engine's options, flattened, as ``key value``."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif value is not None:
            yield f"{key} {value}"


def _chain(levels: Sequence[LevelShape]) -> str:
    return " > ".join(map(_level, levels))


def _level(level: LevelShape) -> str:
    if level.parts is not None:
        parts = " + ".join(map(_chain, level.parts))
        return f"({parts})" + (f" × {level.repeat}" if level.repeat > 1 else "")
    name = (level.model or level.method).removeprefix("zoo:").rsplit("/", 1)[-1]
    if level.method == "early_exit":
        name = f"exit {level.exit_layer}"
    return f"{name} {level.num_speculative_tokens}"


def equality(cell: TemperatureRecord, method: MethodRecord) -> Text:
    """Count greedy outputs by how they compare with plain decoding's: equal, near-tie, wrong."""
    counts = cell.compare(method)
    if not method.lossless:
        return Text(f"lossy: equal {counts.equal}/{counts.runs}", style="dim")
    if counts.wrong:
        return Text(f"WRONG {counts.wrong}/{counts.runs}", style="bold red")
    if counts.near_ties:
        return Text(f"equal {counts.equal}, near-tie {counts.near_ties}", style="yellow")
    return Text(f"equal {counts.equal}/{counts.runs}", style="green")


def _likelihood(method: MethodRecord) -> tuple[str, Text]:
    head, test = "likelihood", method.final_summary.logprob
    if test is None:
        return head, Text(_DASH)
    text = f"{test.mean:.3f} ({test.difference_from_plain:+.3f})"
    if test.within_noise or not method.lossless:
        return head, Text(text, style="green" if method.lossless else "dim")
    return head, Text(f"OTHER DISTRIBUTION {text}", style="bold red")


def _speedup(method: MethodRecord) -> float:
    speedup = method.final_summary.speedup
    return speedup.median if speedup else 0.0


def _times(ratio: PairedRatio | None) -> str:
    return ratio.format() if ratio else _DASH


def _number(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def by_domain(cell: TemperatureRecord) -> Iterable[Table | Text]:
    """Yield a table of methods, fastest first, by domain; nothing where prompts have no domains."""
    rows = [method for method in fastest_first(cell) if method.final_summary.by_category]
    if not rows:
        return
    names = category_names(cell.measured)
    yield Text("")
    title = f"by domain, temperature {cell.temperature:g}: median ms a token, times plain decoding"
    table = borderless(["method"], [*names, "all"], title)
    for row in rows:
        overall = _ms_and_speedup(row.final_summary.ms_per_token.median, row.median_speedup)
        table.add_row(Text(row.name), *(_in_domain(row, name) for name in names), overall)
    yield table


def _in_domain(method: MethodRecord, domain: str) -> Text:
    medians = method.final_summary.by_category.get(domain)
    return _ms_and_speedup(medians.ms_per_token, medians.speedup) if medians else Text(_DASH)


def _ms_and_speedup(ms: float | None, speedup: float | None) -> Text:
    parts = ["" if ms is None else f"{ms:.1f}", "" if speedup is None else f"{speedup:.2f}×"]
    return Text(" ".join(filter(None, parts)) or _DASH)
