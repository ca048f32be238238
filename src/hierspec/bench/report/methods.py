"""The table of methods at one temperature: speed, acceptance, and whether the text is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .columns import COLUMNS, Column, Method, Shown, signed
from .details import listing, text
from .records import (
    GROUPS,
    called,
    compared,
    described,
    interval,
    ran,
    skipped,
    speedup,
    why_skipped,
)


def table(cell: Mapping[str, Any]) -> str:
    """Fastest first; methods that did not run stand below, with the reason."""
    methods = sorted(ran(cell), key=lambda method: -(speedup(method) or {"median": 0})["median"])
    every = (*COLUMNS, _verdicts(cell))
    columns = [c for c in every if any(c.show(method) is not None for method in methods)]
    heads = ['<th data-kind="words" data-first="ascending"><button>method</button></th>']
    heads += [
        f'<th data-first="{"descending" if column.largest_first else "ascending"}">'
        f'<button title="{text(column.explained)}">{text(column.title)}</button></th>'
        for column in columns
    ]
    lines = [_row(method, columns) for method in methods]
    lines += [
        f'<tr class="skipped {text(m["group"])}">{_name(m)}'
        f'<td class="words" colspan="{max(1, len(columns))}">not run: {text(why_skipped(m))}</td>'
        "</tr>"
        for m in skipped(cell)
    ]
    return (
        '<div class="scroll"><table class="sortable"><thead><tr>'
        + "".join(heads)
        + "</tr></thead><tbody>\n"
        + "\n".join(lines)
        + "\n</tbody></table></div>\n<details><summary>What the columns say</summary>"
        + listing({column.title: column.explained for column in columns})
        + "</details>"
    )


def fastest(cell: Mapping[str, Any]) -> str:
    """The fastest lossless method in a sentence; empty where there is none.

    One whose text the check has found to be another's is not called lossless, whatever it claims.
    """
    found = [
        (ratio["median"], ratio, method)
        for method in ran(cell)
        if method.get("lossless") and (ratio := speedup(method)) and method["group"] != "plain"
        if (judged := verdict(cell, method)) is None or judged[2] != "bad"
    ]
    if not found:
        return ""
    _, ratio, method = max(found, key=lambda entry: entry[0])
    ends = interval(ratio)
    range_ = "" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]"
    times = f"{ratio['median']:.2f}×"
    return f"Fastest lossless method: {called(method)}, {times} plain decoding{range_}."


def verdict(cell: Mapping[str, Any], method: Method) -> tuple[float, str, str] | None:
    """Is the text the target's? → a number to sort by, words, and ``good``, ``soft`` or ``bad``.

    Greedy: runs that equal plain decoding token for token; ``soft`` if all others part from it at
    near-ties. Otherwise: the difference of the mean log-likelihood per token from plain decoding's.
    """
    summary, runs = method["summary"], method["runs"]
    if method["name"] == "plain":
        return None
    if summary.get("same_as_plain") is not None and runs:
        found = compared(cell, method)
        ties = f", near-tie {found.near_ties}" if found.near_ties else ""
        mark = "bad" if found.wrong else "soft" if found.near_ties else "good"
        return found.equal / found.runs, f"{found.equal} of {found.runs} equal{ties}", mark
    likelihood = summary.get("logprob")
    if likelihood is None or likelihood.get("difference_from_plain") is None:
        return None
    difference, error = likelihood["difference_from_plain"], likelihood.get("standard_error")
    words = signed(difference, 3) + ("" if error is None else f" ± {error:.3f}")
    return difference, words, "good" if likelihood.get("within_noise") else "bad"


def by_category(cell: Mapping[str, Any]) -> str:
    """Speed-ups (or ms a token) per category of prompts, where the results have them."""
    rows = [(m, found) for m in ran(cell) if (found := m["summary"].get("by_category"))]
    if not rows:
        return ""
    names = list(dict.fromkeys(name for _, found in rows for name in found))
    heads = "".join(f"<th><button>{text(name)}</button></th>" for name in names)
    lines = []
    for method, found in rows:
        cells = "".join(_number(found.get(name)) for name in names)
        lines.append(f'<tr class="{text(method["group"])}">{_name(method)}{cells}</tr>')
    return (
        "<h3>By category of prompts: median speed-up over plain decoding</h3>\n"
        '<div class="scroll"><table class="sortable"><thead><tr>'
        f'<th data-kind="words"><button>method</button></th>{heads}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def _number(found: Any) -> str:
    """A category's speed-up: a number, a spread, or a summary that holds one."""
    if isinstance(found, Mapping):
        found = found.get("speedup", found.get("median"))
    if isinstance(found, Mapping):
        found = found.get("median")
    return "<td></td>" if found is None else f'<td data-value="{found:.6g}">{found:.2f}×</td>'


def _row(method: Method, columns: Sequence[Column]) -> str:
    cells = []
    for column in columns:
        shown = column.show(method)
        cells.append("<td></td>" if shown is None else _cell(*shown))
    return f'<tr class="{text(method["group"])}">{_name(method)}{"".join(cells)}</tr>'


def _cell(value: float, html: str) -> str:
    return f'<td data-value="{value:.6g}">{html}</td>'


def _name(method: Method) -> str:
    name = method["name"]
    about = ", ".join(
        part
        for part in (
            described(method),
            GROUPS.get(method["group"], method["group"]),
            method.get("source"),
        )
        if part
    )
    badge = "" if method.get("lossless", True) else '<span class="badge bad">lossy</span>'
    return (
        f'<td class="words" data-value="{text(name)}"><span class="dot"></span>{text(name)}'
        f"{badge}<br/><small>{text(about)}</small></td>"
    )


def _verdicts(cell: Mapping[str, Any]) -> Column:
    def show(method: Method) -> Shown:
        found = verdict(cell, method)
        return found and (found[0], f'<span class="{found[2]}">{text(found[1])}</span>')

    greedy = (
        "runs that equal plain decoding token for token; near-ties part where the target scores "
        "both tokens alike, as far as its data type can tell"
    )
    sampled = "mean log-likelihood per token less plain decoding's, with its standard error"
    return Column("text as plain decoding's", greedy if cell["temperature"] == 0 else sampled, show)
