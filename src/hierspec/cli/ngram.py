"""``hierspec ngram``: n-gram tables of one's own, the cheapest level there is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from hierspec.errors import HierspecError

from .options import MODEL, AsJson, load_tokenizer

app = typer.Typer(
    help="Tables of n-grams, which draft for any model with the tokenizer they were counted in.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    pass


@app.command("build")
def build(
    texts: Annotated[
        list[Path],
        typer.Argument(help="Text files, .jsonl files (a text a line), or folders of them."),
    ],
    tokenizer: Annotated[
        str, typer.Option(help=f"Whose tokenizer to count in, the target's: {MODEL}.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    max_order: Annotated[
        int, typer.Option(min=2, help="Longest n-gram, the predicted token included.")
    ] = 3,
    max_entries: Annotated[
        int | None,
        typer.Option(min=1, help="Most pairs kept of each order; default: 90000, then 150000."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Count n-grams in texts, and write a table that drafts.

    Texts like those to be written serve best: the project's own code, earlier answers.

    Example:

      hierspec ngram build src docs --tokenizer zoo:smollm2 -o table.safetensors
    """
    from hierspec.training import ngram

    from .rendering import interruptible, notes, progress, say

    found = load_tokenizer(tokenizer)
    if found is None:
        raise HierspecError(f"no tokenizer at {tokenizer!r}: name the model that is to be sped up")
    console = notes()
    with (
        interruptible(console, lambda: "nothing was written"),
        progress(console, "n-gram table") as report,
    ):
        made = ngram.build(
            texts, found, output, max_order=max_order, max_entries=max_entries, report=report
        )
    if as_json:
        print(json.dumps({**dataclasses.asdict(made), "path": str(made.path)}))
        return 0
    example = {"method": "ngram_table", "table": str(output), "num_speculative_tokens": 3}
    say(
        console,
        f"written to {output}: {made.tokens} tokens of {made.texts} texts, orders up to "
        f"{made.max_order}, {made.entries} entries; as a level: {json.dumps(example)}",
    )
    return 0
