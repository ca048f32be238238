"""Trained heads on a terminal: how well an exit drafts with its head, and without it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from hierspec.utils import terminal
from hierspec_lab.plotting.tables import borderless

if TYPE_CHECKING:
    from hierspec.config.exit_heads import ExitFigures, HeadsFile
    from hierspec_lab.acceptance.files import AcceptanceHeadFile


def show_exit_heads(file: HeadsFile, as_json: bool) -> None:
    """Print how well each exit drafts without its head and with it, or the whole record."""
    info = file.info
    if as_json:
        print(json.dumps({"file": str(file.path), **info.to_dict()}))
        return
    parameters = info.parameters / len(file.exits)
    title = f"{info.model}: {file.kind}, {parameters / 1e6:.2f} M parameters each"
    if info.vocabulary_size:
        title += f", {info.vocabulary_size} of {info.vocab_size} tokens"
    columns = ("exit after layer", "acceptance", "equal argmax", "KL, nats")
    table = borderless((), columns, title)

    def add(name: str, *rows: ExitFigures | None) -> None:
        table.add_row(name, *(_change(rows, key) for key in ("acceptance", "agreement", "kl")))

    for layer in map(str, file.exits):
        add(layer, info.before.get(layer), info.after.get(layer))
    for layer, after in info.by_teacher.get("after", {}).items():
        before = info.by_teacher.get("before", {}).get(layer)
        add(f"{layer} for {info.settings.get('teacher')}", before, after)
    console = terminal.console()
    console.print(table)
    console.print(
        f"before → after, on held-out text; {_known(info.steps)} steps over "
        f"{_known(info.texts.tokens)} tokens: {escape(_known(info.texts.name))}",
        style="dim",
        highlight=False,
    )


def _known(value: object) -> str:
    return "?" if value is None else str(value)


def _change(rows: Sequence[ExitFigures | None], key: str) -> str:
    values = (None if row is None else getattr(row, key) for row in rows)
    return " → ".join("?" if value is None else f"{value:.3f}" for value in values)


def show_acceptance_head(file: AcceptanceHeadFile, as_json: bool) -> None:
    """Print how well an acceptance head predicts on held-out text, or its whole record."""
    info = file.info
    if as_json:
        print(json.dumps({"file": str(file.path), **info.to_dict()}))
        return
    scores = info.held_out
    terminal.console().print(
        f"what {info.target} keeps of {info.model}: on {_known(scores.samples)} held-out tokens "
        f"loss {_known(scores.loss)} (best constant {_known(scores.constant_loss)}), "
        f"AUC {_known(scores.auc)}",
        markup=False,
        highlight=False,
    )
