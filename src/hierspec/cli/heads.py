"""``hierspec heads``: train heads for early exits, and say what a file of them holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hierspec.config.exit_heads import HeadsFile, read
from hierspec.errors import HierspecError
from hierspec.training.heads.settings import HeadsSettings
from hierspec.utils.threads import use as use_threads

from .profile import progress


def layers(text: str) -> tuple[int, ...]:
    """``2,4,8`` as numbers.

    Raises:
        ValueError: it is no list of whole numbers.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise HierspecError(
            f"--exits takes layer numbers with commas between, as in 2,4; got {text!r}"
        )
    return tuple(sorted({int(word) for word in words}))


def run(
    model: str,
    settings: HeadsSettings,
    output: Path | None,
    texts: Sequence[Path],
    *,
    dtype: str,
    device: str,
    overwrite: bool,
    threads: int | None,
    as_json: bool,
) -> int:
    """Train and write heads; what an interrupted run left there is continued.

    Returns:
        0, or 130 when the user cut it short.
    """
    from hierspec.training.heads.train import train

    use_threads(threads)
    notes = Console(stderr=True)
    try:
        with progress(notes, f"heads for {model}") as report:
            file = train(
                model,
                settings,
                output,
                texts,
                dtype=dtype,
                device=device,
                overwrite=overwrite,
                report=report,
            )
    except KeyboardInterrupt:
        _say(notes, "interrupted: the same command goes on where it was")
        return 130
    _print(file, as_json)
    before, after = file.info.get("before", {}), file.info.get("after", {})
    if worse := [n for n, row in after.items() if row["kl"] > before[n]["kl"]]:
        _say(
            notes,
            f"the exits after layers {', '.join(worse)} got worse on held-out text: give more or "
            "more varied texts (--tokens), or a smaller --lr",
        )
    if not as_json:
        example = {"method": "early_exit", "exit_layer": file.exits[-1], "head": str(file.path)}
        _say(notes, f"written to {file.path}; as a level: {json.dumps(example)}")
    return 0


def show(path: Path, as_json: bool) -> int:
    """Print what a file of heads holds, every number of it read and checked."""
    file = read(path)
    for layer in file.exits:
        file.tensors(layer)
    _print(file, as_json)
    return 0


def _print(file: HeadsFile, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"file": str(file.path), **file.info}))
        return
    info = file.info
    each = info.get("parameters", 0) / len(file.exits)
    table = Table(
        title=f"{escape(info['model'])}: {file.kind}, {each / 1e6:.2f} M parameters each",
        title_justify="left",
        box=None,
    )
    table.add_column("exit after layer", justify="right")
    for name in ("acceptance", "equal argmax", "KL, nats"):
        table.add_column(name, justify="right")
    for layer in file.exits:
        before, after = (info.get(when, {}).get(str(layer), {}) for when in ("before", "after"))
        cells = [_change(before, after, key) for key in ("acceptance", "agreement", "kl")]
        table.add_row(str(layer), *cells)
    console = Console()
    console.print(table)
    texts = info.get("texts", {})
    console.print(
        f"before → after, on held-out text; {info.get('steps', '?')} steps over "
        f"{texts.get('tokens', '?')} tokens: {escape(str(texts.get('name', '?')))}",
        style="dim",
        highlight=False,
    )


def _change(before: dict[str, float], after: dict[str, float], key: str) -> str:
    values = (row.get(key) for row in (before, after))
    return " → ".join("?" if value is None else f"{value:.3f}" for value in values)


def _say(notes: Console, text: str) -> None:
    """A line as it is: names may hold brackets, and paths must not be broken."""
    notes.print(text, highlight=False, markup=False, soft_wrap=True)
