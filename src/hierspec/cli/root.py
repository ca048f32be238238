"""The command line's root: its name, its help, and the options that stand before a command."""

from __future__ import annotations

from typing import Annotated  # typer reads annotations at run time

import typer

from hierspec import __version__

MODEL = "directory, hub id, or zoo:NAME"

app = typer.Typer(
    name="hierspec",
    help="Generate faster with large language models, without changing what they would write: "
    "a stack of models in which each level drafts for the one above and verifies the one below.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hierspec {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback on errors (anywhere on the line).")
    ] = False,
) -> None:
    pass
