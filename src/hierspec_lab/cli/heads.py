"""``hierspec heads``: drafters on a model's frozen layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierspec.cli.options import AsJson, Command

from .heads_train import train

app = typer.Typer(
    name="heads",
    help="Drafters on a model's frozen layers: heads for its early exits, EAGLE-3 networks.",
    no_args_is_help=True,
)


app.command("train", cls=Command)(train)


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A file of heads, or its folder.")],
    as_json: AsJson = False,
) -> int:
    """Show what heads a file contains, and how much better they draft than the exits without."""
    from hierspec.config.exit_heads import read
    from hierspec_lab.acceptance import files

    from .heads_output import show_acceptance_head, show_exit_heads

    if files.is_acceptance_head(files.locate(file)):
        head = files.read(file)
        files.load(head)  # read and checked
        show_acceptance_head(head, as_json)
        return 0
    heads = read(file)
    for layer in heads.exits:
        heads.tensors(layer)  # read and checked
    show_exit_heads(heads, as_json)
    return 0
