"""``hierspec zoo``: build the shipped models, list them, show their card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierspec.errors import HierspecError

from .options import Threads

app = typer.Typer(help="The small model family that ships with hierspec.", no_args_is_help=True)


@app.command("train")
def train(
    out: Annotated[Path, typer.Argument(help="Folder to write the family to.")],
    seed: Annotated[int, typer.Option(help="Decides everything that is random.")] = 0,
    trunk_steps: Annotated[int | None, typer.Option(help="Training steps of the trunk.")] = None,
    student_steps: Annotated[int | None, typer.Option(help="Steps of mid and small.")] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Default: OUT/.training")] = None,
    resume: Annotated[bool, typer.Option(help="Continue from checkpoints found there.")] = True,
    quick: Annotated[bool, typer.Option(help="Tiny and useless, in seconds; for tests.")] = False,
    threads: Threads = None,
) -> None:
    """Rebuild the family from this Python's standard library (about an hour on two cores)."""
    from rich.console import Console

    from hierspec.training.family import build
    from hierspec.utils.threads import use as use_threads

    use_threads(threads)
    metrics = build.train(out, seed, trunk_steps, student_steps, checkpoints, resume, quick)
    losses = metrics["evaluation"]["held_out_loss"]
    worth = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    Console().print(f"Wrote {out}. Held-out loss in nats per token: {worth}")


@app.command("list")
def list_models() -> None:
    """The names that can stand where a model is asked for."""
    from hierspec.utils.terminal import borderless, console
    from hierspec.zoo.registry import ENTRIES

    table = borderless(("name", "what it is"))
    for entry in ENTRIES:
        table.add_row(entry.name, entry.about)
    console(columns=True).print(table)


@app.command("card")
def card(
    plain: Annotated[bool, typer.Option(help="Markdown as it is, without formatting.")] = False,
) -> None:
    """The model card: data, sizes, losses, and which model accepts how much of which."""
    from rich.console import Console
    from rich.markdown import Markdown

    from hierspec.zoo.registry import DATA

    path = DATA / "MODEL_CARD.md"
    if not path.is_file():
        raise HierspecError("there is no model card yet: run `hierspec zoo train`")
    text = path.read_text(encoding="utf-8")
    typer.echo(text) if plain else Console().print(Markdown(text))
