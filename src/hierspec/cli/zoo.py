"""``hierspec zoo``: models with names of their own."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="zoo", help="Models with names of their own, zoo:NAME.", no_args_is_help=True
)


@app.command("list")
def list_models() -> None:
    """List the names that can be given wherever a model is asked for."""
    from hierspec.utils.terminal import borderless, console
    from hierspec.zoo.registry import entries

    table = borderless(("name", "what it is"))
    for name, entry in entries().items():
        table.add_row(name, entry.description)
    console().print(table)
