"""``hierspec bench`` on a terminal: its methods, and its results with the files drawn from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hierspec.utils import terminal

from . import say

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.bench.methods.entry import MethodEntry
    from hierspec.bench.records import BenchResults
    from hierspec.bench.spec_bench import SpecBenchQuestion
    from hierspec.cli.bench_files import BenchFiles


def show_methods(known: Mapping[str, MethodEntry], as_json: bool) -> None:
    """Print the methods that ``--methods`` chooses from, as a table or a JSON list."""
    keys = ("name", "title", "group", "source", "summary", "lossless")
    if as_json:
        print(json.dumps([{key: getattr(entry, key) for key in keys} for entry in known.values()]))
        return
    table = terminal.borderless(("method", "group", "source", ""))
    for entry in known.values():
        lossy = "" if entry.lossless else " (not lossless)"
        row = (entry.name, entry.group, entry.source, f"{entry.summary}{lossy}")
        table.add_row(*map(Text, row))
    # A list folds into COLUMNS where they are set; a table of results that is piped never does.
    terminal.console(columns=True).print(table)


def show(
    data: BenchResults,
    files: BenchFiles,
    tokenizer: Any,
    asked: Sequence[SpecBenchQuestion],
    console: Console,
) -> None:
    """Print the results as a table or an object, and write the files that options name.

    Args:
        tokenizer: the target's, for Spec-Bench's answers.
        asked: Spec-Bench's questions behind the prompts; empty where they are not its.
    """
    from hierspec.bench import spec_bench
    from hierspec.bench.report import page, pictures, table

    if files.as_json:
        print(json.dumps(data.to_dict()))
    else:
        shown = terminal.console()
        for part in table.rendered(data):
            shown.print(part)
    if files.plots is not None:
        for path in pictures.draw(data, files.plots):
            say(console, f"drawn: {path}")
    if files.report is not None:
        page.write(data, files.report)
        say(console, f"written: {files.report}")
    if files.spec_bench is not None:
        written = spec_bench.write(data, files.spec_bench, tokenizer, asked)
        example = f", such as {written[0]}" if written else ""
        say(console, f"written: {len(written)} answer files{example}")
