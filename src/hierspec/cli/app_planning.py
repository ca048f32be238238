"""The planning commands and their options. What they do lives elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated  # typer reads annotations at run time

import typer

from .root import MODEL, app


@app.command()
def profile(
    more: Annotated[
        list[str] | None,
        typer.Argument(help="Further candidates, as after --candidates.", metavar="CANDIDATES"),
    ] = None,
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write; an interrupted run goes on.")
    ],
    target: Annotated[str, typer.Option(help=f"Target model: {MODEL}.")] = "zoo:large",
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What may draft, one or several: {MODEL}, exit:LAYER, ngram, prompt-lookup; "
            "options after commas: zoo:small,temperature=0.8 or zoo:mid,window=entropy. "
            "Default: the shipped family.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file, a prompt a line; default: some built in.")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="To measure at; repeatable. Default: 0 and 1.")
    ] = None,
    max_speculative_tokens: Annotated[
        int, typer.Option(min=1, max=32, help="Largest budget to know about.")
    ] = 15,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts to use.")] = 16,
    tokens: Annotated[
        int, typer.Option(min=8, help="Tokens of its own that the target adds to each prompt.")
    ] = 128,
    places: Annotated[
        int, typer.Option(min=1, help="Places along each text where drafts are tried.")
    ] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="How often each cost is timed.")] = 6,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, …")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as well.")] = False,
) -> int:
    """Measure how often models agree and what their calls cost here, for hierspec plan.

    Example:

      hierspec profile --target zoo:large --candidates ngram zoo:small zoo:trunk -o p.json
    """
    from hierspec.config.schema import TargetConfig
    from hierspec.profiling.settings import ProfileSettings

    from .profile import run

    return run(
        TargetConfig(model=target, dtype=dtype, device=device),
        [word for text in (*(candidates or ()), *(more or ())) for word in _words(text)],
        prompts,
        output,
        temperature or [0.0, 1.0],
        ProfileSettings(
            max_speculative_tokens=max_speculative_tokens,
            tokens=tokens,
            places=places,
            prompts=num_prompts,
            repeats=repeats,
        ),
        threads,
        as_json,
    )


@app.command()
def plan(
    file: Annotated[
        Path,
        typer.Argument(help="A profile, or PROBLEM.json: costs and acceptance rates of models."),
    ],
    latency_model: Annotated[
        str | None,
        typer.Option(
            help="exact (default): overshoot is handed up; corollary: P1's formula.",
        ),
    ] = None,
    max_models: Annotated[
        int | None, typer.Option(min=1, help="Most models to stack, the target included.")
    ] = None,
    max_speculative_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens a level is asked for; default: 15.")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(help="Most weights, such as 2GiB or 500MB.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Of a profile: plan for this temperature; default: 0, greedy."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Use a profile that was measured on something else.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Hierarchies to show, the best included.")] = 5,
    to: Annotated[
        str | None,
        typer.Option(help="Also the best that vllm or transformers can express, in its own form."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the plan: a .svg or .png file.")
    ] = None,
    heat_map: Annotated[
        Path | None,
        typer.Option(
            "--map",
            help="Draw a heat map, .svg or .png: the speed-up over pairs of early exits, or over "
            "cost and acceptance of a further model.",
        ),
    ] = None,
    simulate: Annotated[
        int | None,
        typer.Option(min=2, help="Also run each hierarchy so many simulated rounds of the target."),
    ] = None,
    acceptances: Annotated[
        str | None,
        typer.Option(
            help="Of --simulate: iid, curves (measured; the default for a profile) or recorded."
        ),
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(help="Of --simulate: real (default), or artificial: a constant per call."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Find the hierarchy that serves a token fastest, or say that plain decoding does.

    Example:

      hierspec plan problem.json --max-models 3
    """
    from .plan import Options, run

    return run(
        Options(
            file=file,
            as_json=as_json,
            top=top,
            latency_model=latency_model,
            max_models=max_models,
            memory_budget=memory_budget,
            max_speculative_tokens=max_speculative_tokens,
            temperature=temperature,
            force=force,
            to=to,
            picture=picture,
            map=heat_map,
            simulate=simulate,
            acceptances=acceptances,
            costs=costs,
        )
    )


def _words(text: str) -> list[str]:
    """Several candidates in one word; JSON is one."""
    return [text] if text.lstrip().startswith("{") else text.split()
