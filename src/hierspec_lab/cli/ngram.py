"""``hierspec ngram``: build n-gram tables, the cheapest drafters there are."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from hierspec.cli.options import MODEL, AsJson, load_tokenizer
from hierspec.errors import HierspecError

from .options import output_option

app = typer.Typer(
    name="ngram",
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
        str,
        typer.Option(
            help=f"The target, or another model with its tokenizer: {MODEL}. N-grams are "
            "counted in its tokens."
        ),
    ],
    output: Annotated[Path, output_option()],
    max_order: Annotated[
        int, typer.Option(min=2, help="Longest n-gram, the predicted token included.")
    ] = 3,
    max_entries: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of n-grams kept of each length; default: 90000 of two tokens, "
            "150000 of three, 50000 of more.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Count n-grams in texts, and write a table that drafts.

    The best texts are like those to be generated: the project's own code, earlier answers.

    Example:

      hierspec ngram build src docs --tokenizer zoo:smollm2 -o table.safetensors
    """
    from hierspec.cli.rendering import interruptible, notes, progress, say
    from hierspec_lab.training import ngrams

    loaded_tokenizer = load_tokenizer(tokenizer)
    if loaded_tokenizer is None:
        raise HierspecError(f"no tokenizer at {tokenizer!r}: name the model that is to be sped up")
    console = notes()
    with (
        interruptible(console, lambda: "nothing was written"),
        progress(console, "n-gram table") as report,
    ):
        summary = ngrams.build(
            texts,
            loaded_tokenizer,
            output,
            max_order=max_order,
            max_entries=max_entries,
            report_progress=report,
        )
    if as_json:
        print(json.dumps({**dataclasses.asdict(summary), "path": str(summary.path)}))
        return 0
    example = {"method": "ngram_table", "table": str(output), "num_speculative_tokens": 3}
    say(
        console,
        f"written to {output}: {summary.tokens} tokens of {summary.texts} texts, orders up to "
        f"{summary.max_order}, {summary.entries} entries; as a level: {json.dumps(example)}",
    )
    return 0
