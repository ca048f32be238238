"""``hierspec zoo``: the names and the card of the shipped models."""

from __future__ import annotations

from typing import Annotated

import typer

from hierspec.errors import HierspecError

app = typer.Typer(
    name="zoo", help="The small model family that ships with hierspec.", no_args_is_help=True
)


@app.command("list")
def list_models() -> None:
    """List the names that can be given wherever a model is asked for."""
    from hierspec.utils.terminal import borderless, console
    from hierspec.zoo.registry import ENTRIES

    table = borderless(("name", "what it is"))
    for entry in ENTRIES.items():
        table.add_row(*entry)
    console().print(table)


@app.command("card")
def card(
    plain: Annotated[bool, typer.Option(help="Print Markdown as it is.")] = False,
) -> None:
    """Show the model card: data, sizes, losses, and acceptance rates between the models."""
    from rich.console import Console
    from rich.markdown import Markdown

    from hierspec.zoo.registry import DATA

    path = DATA / "MODEL_CARD.md"
    if not path.is_file():
        raise HierspecError("there is no model card yet: run `hierspec zoo train`")
    text = path.read_text(encoding="utf-8")
    typer.echo(text) if plain else Console().print(Markdown(text))
