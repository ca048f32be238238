"""``hierspec timeline``: a picture of a generation from its trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierspec.cli.options import MODEL, load_tokenizer
from hierspec.errors import HierspecError

from .options import output_option

if TYPE_CHECKING:
    from hierspec_lab.timeline.drawing import TokenText

SUFFIXES = (".svg", ".html", ".json")


def timeline(
    trace: Annotated[Path, typer.Argument(help="What hierspec generate --trace wrote.")],
    output: Annotated[
        Path,
        output_option(
            "File to write: a picture (.svg), a page (.html), or a trace for Perfetto and "
            "chrome://tracing (.json)."
        ),
    ],
    sequence: Annotated[
        int | None, typer.Option(min=0, help="Which sequence a .svg shows; default: the first.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help=f"The target, or another model with its tokenizer: {MODEL}. Text is shown "
            "only with this option."
        ),
    ] = None,
) -> int:
    """Draw a generation: which level called when, and what became of every drafted token.

    Example:

      hierspec generate "Why is the sky blue?" --trace t.jsonl

      hierspec timeline t.jsonl -o t.html --tokenizer zoo:smollm2
    """
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise HierspecError(f"{str(output)!r}: a timeline ends in {', '.join(SUFFIXES)}")
    if sequence is not None and suffix != ".svg":
        raise HierspecError("--sequence goes with .svg: the other forms show every sequence")
    if output.resolve() == trace.resolve():
        raise HierspecError(f"{output} is the trace itself: choose another output")
    if not (folder := output.parent).is_dir():
        raise HierspecError(f"cannot write {output}: there is no folder {folder}")

    from hierspec.utils.files import write_atomically
    from hierspec_lab.timeline import chrome, html, svg, timelines
    from hierspec_lab.timeline.events import read_records

    events = read_records(trace)
    texts = None if tokenizer is None else _texts(tokenizer)
    if suffix == ".svg":
        out = svg(events, sequence or 0, texts)
    elif suffix == ".html":
        out = html(events, texts)
    else:
        out = json.dumps(chrome(events, texts)) + "\n"
    write_atomically(output, out, "the timeline")
    sequences = timelines(events)
    calls = sum(len(timeline.calls) for timeline in sequences)
    number = "1 sequence" if len(sequences) == 1 else f"{len(sequences)} sequences"
    print(f"wrote {output}; the trace holds {number}, {calls} calls")
    return 0


def _texts(model: str) -> TokenText:
    """Return token id → text, by the tokenizer of a model.

    Raises:
        HierspecError: there is no tokenizer.
    """
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise HierspecError(f"no tokenizer at {model!r}: name the target, as --target takes it")
    return lambda token: tokenizer.decode([token], clean_up_tokenization_spaces=False)
