"""Trained heads on a terminal: how well an exit drafts with its head, and without it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from hierspec.utils import terminal

if TYPE_CHECKING:
    from hierspec.config.acceptance_head import HeadFile as AcceptanceFile
    from hierspec.config.exit_heads import HeadsFile


def show_exit_heads(file: HeadsFile, as_json: bool) -> None:
    """Print how well each exit drafts without its head and with it, or the whole record."""
    info = file.info
    if as_json:
        print(json.dumps({"file": str(file.path), **info}))
        return
    parameters = info.get("parameters", 0) / len(file.exits)
    title = f"{info['model']}: {file.kind}, {parameters / 1e6:.2f} M parameters each"
    num_scored = info.get("vocabulary_size")
    title += "" if num_scored is None else f", {num_scored} of {info['vocab_size']} tokens"
    columns = ("exit after layer", "acceptance", "equal argmax", "KL, nats")
    table = terminal.borderless((), columns, title)
    for layer in file.exits:
        rows = [info.get(key, {}).get(str(layer), {}) for key in ("before", "after")]
        table.add_row(
            str(layer), *(_change(rows, key) for key in ("acceptance", "agreement", "kl"))
        )
    console = terminal.console()
    console.print(table)
    texts = info.get("texts", {})
    console.print(
        f"before → after, on held-out text; {info.get('steps', '?')} steps over "
        f"{texts.get('tokens', '?')} tokens: {escape(str(texts.get('name', '?')))}",
        style="dim",
        highlight=False,
    )


def _change(rows: Sequence[dict[str, float]], key: str) -> str:
    values = (row.get(key) for row in rows)
    return " → ".join("?" if value is None else f"{value:.3f}" for value in values)


def show_acceptance_head(file: AcceptanceFile, as_json: bool) -> None:
    """Print how well an acceptance head predicts on held-out text, or its whole record."""
    info = file.info
    if as_json:
        print(json.dumps({"file": str(file.path), **info}))
        return
    scores = info.get("held_out", {})
    terminal.console().print(
        f"what {info['target']} keeps of {info['model']}: on {scores.get('samples', '?')} held-out "
        f"tokens loss {scores.get('loss', '?')} (best constant "
        f"{scores.get('constant_loss', '?')}), AUC {scores.get('auc', '?')}",
        markup=False,
        highlight=False,
    )
