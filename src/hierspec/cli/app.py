"""The commands and their options. What they do lives elsewhere; heavy imports wait until used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any  # typer reads annotations at run time

import typer

from .. import __version__

app = typer.Typer(
    name="hierspec",
    help="Generate faster with large language models, without changing what they would write: "
    "a stack of models in which each level drafts for the one above and verifies the one below.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hierspec {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback on errors (anywhere on the line).")
    ] = False,
) -> None:
    pass


_MODEL = "directory, hub id, or zoo:NAME"
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
            "speculative, hierarchy, hispec, branch, dynamic-windows, interleaved, horizontal, "
            "prompt-lookup, auto (measures once, then plans).",
            rich_help_panel=_MODELS,
        ),
    ] = "hierarchy",
    target: Annotated[
        str | None,
        typer.Option(help=f"Target model of a preset: {_MODEL}.", rich_help_panel=_MODELS),
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
        typer.Option("--allow-inconclusive", help="Let a horizon pass that may hide lossy rules."),
    ] = False,
) -> int:
    """Compute the exact law of a hierarchy's output by enumeration, and compare it.

    Exit status 0 when the output has the target's law, 1 when it has not (total variation
    distance above 1e-9) or the horizon is too short to tell.
    """
    from .certify import run

    return run(case, as_json=as_json, law=law, allow_inconclusive=allow_inconclusive)


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


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say what hierspec finds here: versions, devices, threads, caches, fast paths."""
    from .doctor import run

    return run(as_json=as_json)


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="p1-tables, p1-simulation or p2-orders.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write the JSON object to this file as well.")
    ] = None,
) -> int:
    """Compute a paper's tables again, beside what was printed.

    Cells that differ are marked, and why is said below; the exit status is 0 all the same.

    Example:

      hierspec reproduce p1-tables
    """
    from .reproduce import run

    return run(what, as_json, output)


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
    target: Annotated[str, typer.Option(help=f"Target model: {_MODEL}.")] = "zoo:large",
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What may draft, one or several: {_MODEL}, exit:LAYER, ngram, prompt-lookup; "
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
    from ..config import TargetConfig
    from ..profiling.measure import Settings
    from .profile import run

    return run(
        TargetConfig(model=target, dtype=dtype, device=device),
        [word for text in (*(candidates or ()), *(more or ())) for word in _words(text)],
        prompts,
        output,
        temperature or [0.0, 1.0],
        Settings(
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
        typer.Option(help=f"Whose tokenizer tells the tokens' texts: {_MODEL}."),
    ] = None,
) -> int:
    """Draw a generation: which level called when, and what became of every drafted token.

    Example:

      hierspec generate "def quicksort(items):" --trace t.jsonl

      hierspec timeline t.jsonl -o t.html --tokenizer zoo:large
    """
    from .timeline import Options, run

    return run(Options(trace, output, sequence, tokenizer))


def _words(text: str) -> list[str]:
    """Several candidates in one word; JSON is one."""
    return [text] if text.lstrip().startswith("{") else text.split()


def _mount_zoo() -> None:
    from ..zoo.cli import app as zoo

    app.add_typer(zoo, name="zoo", help="The small model family that ships with hierspec.")


_mount_zoo()

__all__: list[Any] = ["app"]
