"""Results as tables for a terminal: one per temperature, the fastest method first.

Every number has a column of its own where all of them fit; in a narrow terminal each method is a
paragraph instead, so that nothing is squeezed to a few letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from hierspec.bench.records import (
    BenchResults,
    LevelShape,
    MethodRecord,
    PairedRatio,
    Roofline,
    TemperatureRecord,
    level_shapes,
)
from hierspec.bench.report.domains import by_domain
from hierspec.utils.terminal import borderless

_DASH = "–"
_LEAST = 30  # characters of the column with names and configurations
_OPTIONS = 64  # characters of another engine's configuration


def rendered(results: BenchResults) -> Iterable[RenderableType]:
    """Everything that ``hierspec bench`` prints on results, finished or not."""
    settings = results.settings
    head = f"{settings.target}, {settings.dtype}, {settings.num_prompts} prompts × "
    head += f"{settings.max_new_tokens} tokens, batch size {settings.batch_size}"
    yield Text(head if results.finished else f"{head} (unfinished)", style="bold")
    for note in results.notes:
        yield Text(f"• {note}", style="dim")
    for cell in results.cells:
        yield Text("")
        yield MethodTable(cell)
        yield from by_domain(cell)
        yield from _below(cell, results.roofline)


@dataclass(frozen=True)
class MethodTable:
    """The methods measured at a temperature: columns where the console has room for them all."""

    cell: TemperatureRecord

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        methods = sorted(self.cell.measured, key=_speedup, reverse=True)
        rows = [(_about(method), _numbers(self.cell, method)) for method in methods]
        title = f"temperature {self.cell.temperature:g}"
        heads = list(rows[0][1]) if rows else []
        grid = borderless(["method"], heads, title)
        grid.columns[0].min_width = _LEAST
        for name, column in zip(heads, grid.columns[1:], strict=True):
            column.min_width = max(len(name), *(len(numbers[name]) for _, numbers in rows))
        for about, numbers in rows:
            grid.add_row(about, *numbers.values())
        if Measurement.get(console, options.update(width=999), grid).minimum <= options.max_width:
            yield grid
            return
        yield Text(title, "italic")
        for about, numbers in rows:
            yield about
            words = [Text(" ").join((value, Text(name))) for name, value in numbers.items()]
            yield Padding(Text(", ").join(words), (0, 0, 0, 4))


def _about(method: MethodRecord) -> Group:
    """The name, and below it what it runs with."""
    configured = Text(short(method.configuration), style="dim")
    return Group(Text(method.name), *([Padding(configured, (0, 0, 0, 2))] if configured else []))


def _numbers(cell: TemperatureRecord, method: MethodRecord) -> dict[str, Text]:
    """A method's row, by the column's head."""
    found = method.summed
    ms, overhead = found.ms_per_token, found.overhead_ms_per_token
    best = found.speedup_over_best_transformers
    numbers = {
        "median ms/token": f"{ms.median:.2f} [{ms.q1:.2f}, {ms.q3:.2f}]",
        "tokens/s": f"{found.tokens_per_second:.1f}",
        "over plain": _times(found.speedup),
        "over transf.": f"{best.median:.2f}×" if best else _DASH,
        "a call": _number(found.mean_acceptance_length),
        "overhead": _number(overhead and overhead.median),
    }
    judged = ("as plain", equality(cell, method)) if cell.greedy else _likelihood(method)
    return {name: Text(text) for name, text in numbers.items()} | dict([judged])


def _below(cell: TemperatureRecord, roofline: Roofline | None) -> Iterable[Text]:
    if roofline:
        yield Text(
            f"estimated roofline of plain decoding: {roofline.ms_per_token:.2f} ms/token, "
            f"{roofline.weight_bytes / 2**20:.0f} MiB of weights at "
            f"{roofline.bytes_per_second / 2**30:.1f} GiB/s ({roofline.sampled})",
            style="dim",
        )
    waiting = [method.name for method in cell.unmeasured if method.skipped is None]
    if waiting:
        yield Text(f"not finished: {', '.join(waiting)}", style="dim")
    for method in cell.methods:
        if method.skipped is not None:
            yield Text(f"skipped {method.name}: {method.skipped}", style="yellow")


def short(configuration: Mapping[str, Any] | None) -> str:
    """A hierarchy in a few words: levels smallest first with their budgets, and the rule."""
    if not configuration:
        return ""
    if "levels" not in configuration:
        text = ", ".join(_leaves(configuration))
        return text if len(text) <= _OPTIONS else f"{text[: _OPTIONS - 1]}…"
    levels = level_shapes(configuration)
    if not levels:
        return ""
    text = f"{_chain(levels)}, {configuration.get('verify', 'block')}"
    return text + (", online" if configuration.get("online") else "")


def _leaves(options: Mapping[str, Any]) -> Iterable[str]:
    """Another engine's options, without what they are nested in."""
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
    """Greedy outputs against plain decoding's: equal, near-tie, or wrong."""
    found = cell.compared(method)
    if not method.lossless:
        return Text(f"lossy: equal {found.equal}/{found.runs}", style="dim")
    if found.wrong:
        return Text(f"WRONG {found.wrong}/{found.runs}", style="bold red")
    if found.near_ties:
        return Text(f"equal {found.equal}, near-tie {found.near_ties}", style="yellow")
    return Text(f"equal {found.equal}/{found.runs}", style="green")


def _likelihood(method: MethodRecord) -> tuple[str, Text]:
    head, found = "likelihood", method.summed.logprob
    if found is None:
        return head, Text(_DASH)
    text = f"{found.mean:.3f} ({found.difference_from_plain:+.3f})"
    if found.within_noise or not method.lossless:
        return head, Text(text, style="green" if method.lossless else "dim")
    return head, Text(f"OTHER LAW {text}", style="bold red")


def _speedup(method: MethodRecord) -> float:
    found = method.summed.speedup
    return found.median if found else 0.0


def _times(ratio: PairedRatio | None) -> str:
    return f"{ratio.median:.2f}× [{ratio.low95:.2f}, {ratio.high95:.2f}]" if ratio else _DASH


def _number(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"
