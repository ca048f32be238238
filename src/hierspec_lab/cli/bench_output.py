"""``hierspec bench`` on a terminal: its methods, its results, and files of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hierspec.cli.rendering import say
from hierspec.utils import terminal
from hierspec_lab.plotting.tables import borderless

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec_lab.bench.methods.entry import MethodEntry
    from hierspec_lab.bench.records import BenchResults
    from hierspec_lab.bench.spec_bench import SpecBenchQuestion

    from .bench_files import BenchFiles


def show_methods(methods: Mapping[str, MethodEntry], as_json: bool) -> None:
    """Print the methods that ``--methods`` chooses from, as a table or a JSON list."""
    keys = ("name", "title", "group", "source", "summary", "lossless")
    if as_json:
        print(
            json.dumps([{key: getattr(entry, key) for key in keys} for entry in methods.values()])
        )
        return
    table = borderless(("method", "group", "source", ""))
    for entry in methods.values():
        lossy = "" if entry.lossless else " (not lossless)"
        row = (entry.name, entry.group, entry.source, f"{entry.summary}{lossy}")
        table.add_row(*map(Text, row))
    terminal.console().print(table)


def show(
    data: BenchResults,
    files: BenchFiles,
    tokenizer: Any,
    questions: Sequence[SpecBenchQuestion],
    console: Console,
) -> None:
    """Print the results as a table or an object, and write the files that options name.

    Args:
        tokenizer: the target's, for Spec-Bench's answers.
        questions: of Spec-Bench, behind the prompts; empty for other prompts.
    """
    from hierspec_lab.bench import spec_bench
    from hierspec_lab.bench.report import page, pictures, table

    if files.as_json:
        print(json.dumps(data.to_dict()))
    else:
        output = terminal.console()
        for part in table.rendered(data):
            output.print(part)
    if files.plots is not None:
        for path in pictures.draw(data, files.plots):
            say(console, f"drawn: {path}")
    if files.report is not None:
        page.write(data, files.report)
        say(console, f"written: {files.report}")
    if files.spec_bench is not None:
        paths = spec_bench.write(data, files.spec_bench, tokenizer, questions)
        example = f", such as {paths[0]}" if paths else ""
        say(console, f"written: {len(paths)} answer files{example}")
