"""``hierspec profile``: measure rates and costs once, for the planner."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hierspec.config.schema import TargetConfig
from hierspec.profiling.settings import ProfileSettings, Report
from hierspec.utils.checks import temperature as check_temperature
from hierspec.utils.threads import use as use_threads


def run(
    target: TargetConfig,
    candidates: Sequence[str],
    prompts: Path | None,
    output: Path,
    temperatures: Sequence[float],
    settings: ProfileSettings,
    threads: int | None,
    as_json: bool,
) -> int:
    """Measure and write the profile; what an interrupted run left there is continued.

    Returns:
        0, or 130 when the user cut it short.
    """
    from hierspec.profiling.auto import default_candidates
    from hierspec.profiling.candidates import parse
    from hierspec.profiling.measure import measure
    from hierspec.profiling.texts import builtin
    from hierspec.utils.prompts import read_prompt_file

    for value in temperatures:
        check_temperature(value, "--temperature")
    use_threads(threads)
    chosen = [parse(text) for text in candidates] or default_candidates(target.model)
    source: dict[str, Any] = {"name": "built in"}
    lines: Sequence[str] = builtin(target.model)
    if prompts is not None:
        file = read_prompt_file(prompts)
        lines, source = file.prompts, {"name": file.name, "sha256": file.sha256}
    notes = Console(stderr=True)
    try:
        with progress(notes, f"profiling {target.model}") as report:
            data = measure(
                target,
                chosen,
                lines,
                temperatures,
                settings,
                path=output,
                source=source,
                report=report,
            )
    except KeyboardInterrupt:
        _say(notes, "interrupted: the same command goes on where it was")
        return 130
    if as_json:
        print(json.dumps(data))
    else:
        show(data, Console())
        _say(notes, f"written to {output}; next: hierspec plan {output}")
    return 0


def _say(notes: Console, text: str) -> None:
    """A line as it is: names may hold brackets, and paths must not be broken."""
    notes.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def progress(notes: Console, title: str) -> Iterator[Report]:
    """A bar on a terminal; a line per stage elsewhere."""
    if not notes.is_terminal:
        last = ""

        def tell(stage: str, share: float) -> None:
            nonlocal last
            if stage != last:
                _say(notes, f"{title}: {100 * share:3.0f} %  {stage}")
            last = stage

        yield tell
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[stage]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(title, total=1.0, stage="")
        yield lambda stage, share: bar.update(task, completed=share, stage=stage)


def show(data: dict[str, Any], console: Console) -> None:
    """Costs and acceptances as tables."""
    from rich.markup import escape
    from rich.table import Table

    names = [escape(name) for name in _short([model["name"] for model in data["models"]])]
    for label, measured in data["temperatures"].items():
        alone = {row["verifier"]: row for row in measured["costs"] if row["drafter"] is None}
        pairs = {(pair["drafter"], pair["verifier"]): pair for pair in measured["pairs"]}
        table = Table(title=f"temperature {float(label):g}", title_justify="left", box=None)
        table.add_column("model", overflow="fold")
        table.add_column("ms a call", justify="right")
        for name in names[1:]:
            table.add_column(f"kept by {name}", justify="right", overflow="fold")
        for i, name in enumerate(names):
            ms = f"{alone[i]['check']['0']['mean']:.2f}" if i in alone else "–"
            kept = [_kept(pairs.get((i, k))) for k in range(1, len(names))]
            table.add_row(name, ms, *kept)
        console.print(table)


def _short(names: list[str]) -> list[str]:
    """Folders by their last part, where that tells them apart."""
    last = [name.rsplit("/", 1)[-1] if name[0] in "/.~" else name for name in names]
    return last if len(set(last)) == len(last) else names


def _kept(pair: dict[str, Any] | None) -> str:
    """The share of first draft tokens kept, and tokens a call at the largest budget."""
    if pair is None:
        return ""
    return f"{pair['survival']['block'][1]:.2f}  ({pair['tokens_per_call']:.1f} a call)"
