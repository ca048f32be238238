"""``hierspec zoo card``: what the code family was trained on, and how well it predicts."""

from __future__ import annotations

from typing import Annotated

import typer

from hierspec.errors import HierspecError


def card(
    plain: Annotated[bool, typer.Option(help="Print Markdown as it is.")] = False,
) -> None:
    """Show the code family's card: data, sizes, losses, and acceptance between its models."""
    from rich.console import Console
    from rich.markdown import Markdown

    from hierspec_lab.families.code import DATA

    path = DATA / "MODEL_CARD.md"
    if not path.is_file():
        raise HierspecError("there is no model card yet: run `hierspec zoo train`")
    text = path.read_text(encoding="utf-8")
    typer.echo(text) if plain else Console().print(Markdown(text))
