"""The commands of exit heads and their options. What they do lives elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated  # typer reads annotations at run time

import typer

from .root import MODEL, app

heads = typer.Typer(
    help="Heads that make a model's early exits draft better, trained on its frozen layers.",
    no_args_is_help=True,
)


@heads.command("train")
def train(
    more: Annotated[
        list[Path] | None,
        typer.Argument(help="Further texts, as after --texts.", metavar="TEXTS"),
    ] = None,
    *,
    model: Annotated[str, typer.Option(help=f"The model, which stays as it is: {MODEL}.")],
    exits: Annotated[str, typer.Option(help="After which layers, as in 2,4,8.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File to write; default: exit_heads.safetensors in the model's directory. "
            "An interrupted training goes on.",
        ),
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Texts to learn from, one or several: text files, .jsonl files, folders. "
            "Default: what the shipped family learnt from; for other models, what they write.",
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="transform: a d x d matrix before the model's own head; full: a V x d head.",
        ),
    ] = "transform",
    epochs: Annotated[float, typer.Option(help="Passes over the texts.")] = 2,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps, instead of --epochs.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of text to use.")] = 131_072,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate after the warm-up.")] = 2e-4,
    rows: Annotated[int, typer.Option(min=1, help="Windows of text in a batch.")] = 2,
    width: Annotated[int, typer.Option(min=1, help="Tokens in a window.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Decides everything that is random.")] = 0,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the file if there is one, and give up an interrupted training of other "
            "settings.",
        ),
    ] = False,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, …")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Train heads for early exits to match the last layer's law, the model left as it is.

    Example:

      hierspec heads train --model zoo:mid --exits 1,2 -o heads.safetensors
    """
    from hierspec.training.heads.settings import HeadsSettings

    from .heads import layers, run

    return run(
        model,
        HeadsSettings(
            exits=layers(exits),
            kind=kind,
            learning_rate=lr,
            epochs=epochs,
            steps=steps,
            tokens=tokens,
            rows=rows,
            width=width,
            seed=seed,
        ),
        output,
        [*(texts or ()), *(more or ())],
        dtype=dtype,
        device=device,
        overwrite=overwrite,
        threads=threads,
        as_json=as_json,
    )


@heads.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A file of heads, or the folder it lies in.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say what heads a file holds, and how much better they draft than the exits without."""
    from .heads import show

    return show(file, as_json)


app.add_typer(heads, name="heads")
