"""The commands and their options. What they do lives elsewhere; heavy imports wait until used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any  # typer reads annotations at run time

import typer

from .root import MODEL, app

_SAMPLING = "Sampling"
_MODELS = "Models"
_OUTPUT = "Output"


@app.command()
def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="Text to continue; - reads standard input."),
    ] = None,
    hierarchy: Annotated[
        str,
        typer.Option(
            help="A preset name, a .json or .toml file, or inline JSON. Presets: autoregressive, "
            "speculative, hierarchy, self-speculative, horizontal-tail, tempered, hispec, "
            "layerskip, branch, naive, multi-draft, multi-draft-tokenwise, dynamic-windows, "
            "self-verify, pre-verify, pre-self-verify, interleaved, horizontal, prompt-lookup, "
            "swift, adadecode, lookahead, auto (measures once, then plans).",
            rich_help_panel=_MODELS,
        ),
    ] = "hierarchy",
    target: Annotated[
        str | None,
        typer.Option(help=f"Target model of a preset: {MODEL}.", rich_help_panel=_MODELS),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft model of a preset; repeat it, smallest first.", rich_help_panel=_MODELS
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, …; default: as the checkpoint.", rich_help_panel=_MODELS
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, …; default: as found.", rich_help_panel=_MODELS),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads; default: all cores.", rich_help_panel=_MODELS),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Instead of PROMPT: a .jsonl file, a prompt a line; any other file is ONE prompt."
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts of --prompts decoded together.")
    ] = 1,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens to generate per prompt.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_p: Annotated[
        float | None,
        typer.Option(help="Keep the smallest set of this mass.", rich_help_panel=_SAMPLING),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Keep the k likeliest tokens.", rich_help_panel=_SAMPLING),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Keep tokens above this share of the likeliest.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="As in transformers.", rich_help_panel=_SAMPLING)
    ] = 1.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="As in vLLM.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="As in vLLM.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of all randomness, below 2**64; default: a fresh one.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text that ends the output; repeatable."),
    ] = None,
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Keep the stop string in the text.")
    ] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after an end-of-text token.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    logprobs: Annotated[
        bool,
        typer.Option(
            "--logprobs",
            help="Report the target's log-probability of each token (with --json).",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Then decode plainly with the same target, and compare.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write every draft and verdict as JSON lines.", rich_help_panel=_OUTPUT),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object (one a line with --prompts) instead of streaming; its "
            "levels and target count the whole batch of batch_size sequences.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
) -> int:
    """Continue a prompt through a hierarchy of models, streaming the text.

    Without options it runs the shipped models. The colour of the text says which level wrote it.

    Examples:

      hierspec generate "def quicksort(items):" --compare

      hierspec generate --target ./Llama-8B --draft ./Llama-1B --hierarchy speculative "Once"
    """
    from .generate import Options, run

    return run(
        Options(
            prompt=prompt,
            hierarchy=hierarchy,
            target=target,
            drafts=tuple(draft or ()),
            dtype=dtype,
            device=device,
            threads=threads,
            prompts=prompts,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            sampling={
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "min_p": min_p,
                "repetition_penalty": repetition_penalty,
                "frequency_penalty": frequency_penalty,
                "presence_penalty": presence_penalty,
            },
            seed=seed,
            stop=tuple(stop or ()),
            include_stop=include_stop,
            ignore_eos=ignore_eos,
            chat=chat,
            logprobs=logprobs,
            compare=compare,
            trace=trace,
            as_json=as_json,
        )
    )


@app.command()
def certify(
    case: Annotated[Path, typer.Argument(help="CASE.json: tabular models and levels.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    law: Annotated[bool, typer.Option("--law", help="Print the whole law as well.")] = False,
    allow_inconclusive: Annotated[
        bool,
        typer.Option("--allow-inconclusive", help="Let pass what was not seen to be lossy."),
    ] = False,
) -> int:
    """Compute the exact law of a hierarchy's output by enumeration, and compare it.

    Exit status 0 when the output is proved to have the target's law, by one round from every
    state that a generation can be in; 1 when it has not (total variation distance above 1e-9),
    when the states are too many, or when the horizon is too short.
    """
    from .certify import run

    return run(case, as_json=as_json, law=law, allow_inconclusive=allow_inconclusive)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say what hierspec finds here: versions, devices, threads, caches, fast paths."""
    from .doctor import run

    return run(as_json=as_json)


@app.command()
def timeline(
    trace: Annotated[Path, typer.Argument(help="What hierspec generate --trace wrote.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="A picture (.svg), a page (.html), or a trace for Perfetto and "
            "chrome://tracing (.json).",
        ),
    ],
    sequence: Annotated[
        int | None, typer.Option(min=0, help="Which sequence a .svg shows; default: the first.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help=f"Whose tokenizer tells the tokens' texts: {MODEL}."),
    ] = None,
) -> int:
    """Draw a generation: which level called when, and what became of every drafted token.

    Example:

      hierspec generate "def quicksort(items):" --trace t.jsonl

      hierspec timeline t.jsonl -o t.html --tokenizer zoo:large
    """
    from .timeline import Options, run

    return run(Options(trace, output, sequence, tokenizer))


def _mount() -> None:
    from . import app_bench, app_heads, app_planning, app_reproduce  # noqa: F401  their commands
    from .zoo import app as zoo

    app.add_typer(zoo, name="zoo", help="The small model family that ships with hierspec.")


_mount()

__all__: list[Any] = ["app"]
