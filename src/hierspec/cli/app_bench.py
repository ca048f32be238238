"""``hierspec bench`` and its options. What it does lives elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated  # typer reads annotations at run time

import typer

from .root import MODEL, app

_MODELS = "Models"
_PROMPTS = "Prompts"
_OUTPUT = "Output"


@app.command()
def bench(
    context: typer.Context,
    target: Annotated[
        str, typer.Option(help=f"Target model: {MODEL}.", rich_help_panel=_MODELS)
    ] = "zoo:large?eps=0.2",
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft model, or ngram or prompt-lookup; repeat it, smallest first. Default for "
            "the shipped family: zoo:small and zoo:trunk.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Names (--list shows them) or groups: all, papers, baselines, peers; "
            "separated by commas, or repeated. Default: all.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A .jsonl file, a prompt a line; default: some built in.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts to measure on, a multiple of --batch-size. Default: 16, or those built "
            "in but for --tune-prompts; whole batches of them.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    tune_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts to tune and profile on: those after the measured ones. Default: 4, or "
            "the next multiple of --batch-size.",
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    tune_tokens: Annotated[
        int, typer.Option(min=2, help="Tokens to write while tuning.", rich_help_panel=_PROMPTS)
    ] = 64,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="Tokens that every method writes per prompt.")
    ] = 128,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="To measure at, 0 is greedy; repeatable. Default: 0 and 1."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts decoded together; methods without batches sit out.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness, below 2**63.")] = 0,
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16, …; default: as the checkpoint.", rich_help_panel=_MODELS
        ),
    ] = "auto",
    device: Annotated[
        str,
        typer.Option(help="cpu, cuda, …; default: as found.", rich_help_panel=_MODELS),
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads; default: all cores.", rich_help_panel=_MODELS),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Results file, written as the bench goes on; the same command continues an "
            "interrupted one.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Measure anew where -o is there.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Measure nothing: show this results file.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page on the results: FILE.html.", rich_help_panel=_OUTPUT),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Draw the results into this folder.", rich_help_panel=_OUTPUT),
    ] = None,
    spec_bench: Annotated[
        Path | None,
        typer.Option(
            help="Write answers as Spec-Bench reads them, a file per method: FILE.jsonl becomes "
            "FILE-METHOD-temperature-T.jsonl.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the methods, and measure nothing.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the whole results object instead.", rich_help_panel=_OUTPUT
        ),
    ] = False,
) -> int:
    """Measure decoding methods side by side: ours, the papers' systems, other engines.

    Methods take turns on every prompt; those with something to choose are tuned on other prompts
    first. Outputs are checked against plain decoding's, or against the target's law.

    Examples:

      hierspec bench --methods speculative,hierarchy,transformers -o results.json

      hierspec bench --from results.json --report report.html --plots plots
    """
    from .bench import Options, run

    return run(
        Options(
            target=target,
            drafts=None if draft is None else tuple(draft),
            methods=tuple(methods or ("all",)),
            prompts=prompts,
            num_prompts=num_prompts,
            tune_prompts=tune_prompts,
            tune_tokens=tune_tokens,
            max_new_tokens=max_new_tokens,
            temperatures=tuple(temperature or (0.0, 1.0)),
            batch_size=batch_size,
            seed=seed,
            dtype=dtype,
            device=device,
            threads=threads,
            output=output,
            overwrite=overwrite,
            from_file=from_,
            report=report,
            plots=plots,
            spec_bench=spec_bench,
            show_list=show_list,
            as_json=as_json,
            given=_given(context),
        )
    )


def _given(context: typer.Context) -> tuple[str, ...]:
    """The options that the command line names."""
    return tuple(
        param.opts[0]
        for param in context.command.params
        if (source := context.get_parameter_source(param.name or "")) and source.name != "DEFAULT"
    )
