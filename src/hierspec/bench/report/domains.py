"""Methods by domain of the prompts, for a terminal: median milliseconds a token and speed-up."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from hierspec.bench.method_records import MethodRecord
from hierspec.bench.records import TemperatureRecord
from hierspec.bench.report.columns import category_names, fastest_first
from hierspec.utils.terminal import borderless


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
        overall = _cell(row.final_summary.ms_per_token.median, row.median_speedup)
        table.add_row(Text(row.name), *(_in_domain(row, name) for name in names), overall)
    yield table


def _in_domain(method: MethodRecord, domain: str) -> Text:
    medians = method.final_summary.by_category.get(domain)
    return Text("–") if medians is None else _cell(medians.ms_per_token, medians.speedup)


def _cell(ms: float | None, speedup: float | None) -> Text:
    parts = ["" if ms is None else f"{ms:.1f}", "" if speedup is None else f"{speedup:.2f}×"]
    return Text(" ".join(filter(None, parts)) or "–")
