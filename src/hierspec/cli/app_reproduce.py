"""``hierspec reproduce`` and its options. What it does lives elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated  # typer reads annotations at run time

import typer

from hierspec_papers import COMPUTED, MEASURED

from .root import MODEL, app

_LAB = "Of what is measured"
_OUTPUT = "Output"
_WHAT = (
    f"Computed from printed numbers: {', '.join(COMPUTED)}. Measured on models: "
    f"{', '.join(MEASURED) or 'none yet'}. Or all."
)


@app.command()
def reproduce(
    what: Annotated[str | None, typer.Argument(help=_WHAT)] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List what there is, and do nothing else.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help=f"Target model: {MODEL}. Default: zoo:large?eps=0.2.", rich_help_panel=_LAB
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft model; repeat it, smallest first. Default for the shipped family: "
            "zoo:small and zoo:trunk.",
            rich_help_panel=_LAB,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A .jsonl file, a prompt a line; default: some built in.", rich_help_panel=_LAB
        ),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1, help="Prompts to use, the first ones. Default: 8.", rich_help_panel=_LAB
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens written after each prompt. Default: 64.", rich_help_panel=_LAB
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            help="To measure at, 0 is greedy; repeatable. Default: 0 and 1.", rich_help_panel=_LAB
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, …; default: as the checkpoint.", rich_help_panel=_LAB
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, …; default: as found.", rich_help_panel=_LAB)
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads; default: all cores.", rich_help_panel=_LAB),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of all randomness. Default: 0.", rich_help_panel=_LAB),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Draw the figures into this folder.", rich_help_panel=_OUTPUT),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the JSON object to this file as well; of all: a folder for a file each.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUTPUT)
    ] = False,
) -> int:
    """Compute or measure the papers' tables and figures again, beside what was printed.

    Computed cells that differ from the printed ones are marked, and why is said below. What is
    measured runs on your models. The exit status is 0 all the same.

    Examples:

      hierspec reproduce p1-tables

      hierspec reproduce all --output reproduced --figures reproduced
    """  # fmt: skip
    from .reproduce import LabOptions, Options, run

    return run(
        Options(
            what=what,
            show_list=show_list,
            lab=LabOptions(
                target=target,
                drafts=None if draft is None else tuple(draft),
                prompts=prompts,
                num_prompts=num_prompts,
                max_new_tokens=max_new_tokens,
                temperatures=None if temperature is None else tuple(temperature),
                dtype=dtype,
                device=device,
                threads=threads,
                seed=seed,
            ),
            figures=figures,
            output=output,
            as_json=as_json,
        )
    )
