"""``hierspec generate``: continue prompts through a hierarchy, as streamed text or JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError, errors_in

from . import options

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.api import Hierarchy
    from hierspec.config.schema import HierarchyConfig, TargetConfig
    from hierspec.engine.results import GenerationResult


def generate(
    ctx: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="Text to continue; - reads standard input.")
    ] = None,
    hierarchy: Annotated[
        str | None,
        options.hierarchy_option(f"Presets: {options.PRESETS}, auto (measures once, then plans). "),
    ] = None,
    target: Annotated[
        str | None,
        options.target_option(
            "Default: that of --hierarchy; without one zoo:smollm2, or the shipped family where "
            "its packages are not installed."
        ),
    ] = None,
    draft: options.DraftsOption = None,
    tokenizer: options.TokenizerOption = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    threads: options.Threads = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Instead of PROMPT: a .jsonl file, a prompt a line (a string, token ids, or an "
            "object with prompt, text, question, turns or messages), line i, from 0, with the seed "
            "--seed + i; any other file is ONE prompt."
        ),
    ] = None,
    batch_size: options.BatchSize = 1,
    prompt_option: Annotated[
        str | None, typer.Option("-p", "--prompt", help="The same as PROMPT.")
    ] = None,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.TemperatureOption = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            help="Above 1: makes tokens that are in the text less likely (as in transformers)."
        ),
    ] = 1.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    presence_penalty: options.PresencePenalty = 0.0,
    seed: options.FreshSeed = None,
    stop: options.StopOption = None,
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Keep the stop string in the text.")
    ] = False,
    stop_token_id: options.StopTokenId = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Do not stop at an end-of-text token.")
    ] = False,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Apply the model's chat template, and print the answer alone. Default: only where "
            "no model is named and zoo:smollm2 runs.",
        ),
    ] = None,
    chat_template_kwargs: options.ChatTemplateKwargs = None,
    ids: Annotated[
        bool,
        typer.Option("--ids", help="Prompts are token ids, as in 1 2 3, and so is the output."),
    ] = False,
    logprobs: Annotated[
        bool,
        typer.Option(
            "--logprobs", help="Report the target's log-probability of each token (with --json)."
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Decode with the target alone as well, and compare text and speed."
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write every draft and verdict to this file, for hierspec timeline."),
    ] = None,
    deterministic: options.Deterministic = False,
    measure_again: options.MeasureAgain = False,
    as_json: Annotated[
        bool,
        options.json_option(
            "Print one JSON object (one a line with --prompts) instead of streaming; its levels "
            "and target count the whole batch of --batch-size prompts."
        ),
    ] = False,
) -> int:
    """Continue a prompt through a hierarchy of models, streaming the text.

    Without a model, the released chat model zoo:smollm2 answers if its package is installed;
    otherwise the shipped code family continues the text. A token's colour says which level wrote
    it.

    Examples:

      hierspec generate "Why is the sky blue?" --compare

      hierspec generate --hierarchy hierarchy "def quicksort(items):"

      hierspec generate --target ./Llama-8B --draft ./Llama-1B --hierarchy speculative "Once"
    """
    import click

    if logprobs and not as_json:
        raise HierspecError(
            "--logprobs are printed with --json only: add it, or leave --logprobs out"
        )
    if as_json and trace is not None and str(trace) == "-":
        raise HierspecError("--json and --trace - both write to standard output: trace to a file")
    variables = options.parse_template_kwargs(chat_template_kwargs)
    if ids and (chat or stop or variables):
        raise HierspecError(
            "--ids takes and writes token ids: leave --chat, --chat-template-kwargs and --stop out"
        )
    if (prompt, prompt_option, prompts).count(None) < 2:
        # One may be the value of an unknown option: -md FILE is read as -m d and FILE.
        raise click.UsageError("give a PROMPT, --prompt or --prompts FILE, not both")
    texts, places = _read_prompts(prompt if prompt_option is None else prompt_option, prompts, ids)

    from hierspec.config import arguments, model_defaults
    from hierspec.config.drafts import is_method
    from hierspec.presets import defaults
    from hierspec.presets.registry import AUTO, TOKENIZER_WITH_AUTO, read_hierarchy
    from hierspec.sampling.parameters import SamplingParams
    from hierspec.utils.threads import use_threads

    from .rendering import notes, say

    # Nothing here loads torch, so mistakes on the command line are reported at once.
    sampling = SamplingParams.make(
        **{name: value for name, value in ctx.params.items() if name in arguments.SAMPLING}
    )
    first = secrets.randbits(32) if seed is None else seed
    arguments.seed(first)
    # Behind the last seed of 64 bits comes the first, 0.
    seeds = [s if (s := first + n) < 2**64 else s - 2**64 for n in range(len(texts))]
    drafts, console, note = tuple(options.split_values(draft)), notes(), ""
    mode_is_open = chat is None and not ids  # whether prompts are questions
    if hierarchy is None and (not drafts or any(map(is_method, drafts))):
        default = defaults.choose_default(target, drafts, dtype, device)
        config, note = default.config, default.note
        chat = default.chat and not ids if chat is None else chat
    elif hierarchy == AUTO:
        config = None
    else:
        preset = "hierarchy" if hierarchy is None else hierarchy
        config = read_hierarchy(preset, target, drafts, dtype, device)
        if drafts and not target:
            note = f"hierspec: note: no --target is named: it is {config.target.model}"
    if variables and not chat and any(isinstance(text, str) for text in texts):
        raise HierspecError("--chat-template-kwargs are for the chat template: add --chat")
    if measure_again and config is not None:
        raise HierspecError("--measure-again is for --hierarchy auto: nothing else is measured")
    if tokenizer is not None and config is None:
        raise HierspecError(TOKENIZER_WITH_AUTO)
    use_threads(threads)
    truncation = {"--top-p": top_p, "--top-k": top_k, "--min-p": min_p}
    unused = ", ".join(name for name, value in truncation.items() if value is not None)
    if unused and sampling.greedy:
        say(console, f"hierspec: note: {unused}: no effect without --temperature above 0")
    if note:
        say(console, note)
    if config is None:
        from hierspec.lm.native import compiler
        from hierspec.zoo.registry import DEFAULT_TARGET

        auto_target = options.target_config(target or DEFAULT_TARGET, dtype, device)
        compiler.begin()  # beside all that comes before the first model
        _validate_lengths(texts, auto_target.model, tokenizer, bool(chat), variables)
        if deterministic:
            auto_target = dataclasses.replace(auto_target, backend="deterministic")
        measuring = {"temperature": temperature, "chat": bool(chat), "measure_again": measure_again}
        models = _plan(auto_target, drafts, measuring, as_json, console)
    else:
        config = dataclasses.replace(config, deterministic=deterministic or config.deterministic)
        _validate_lengths(texts, config.target.model, tokenizer, bool(chat), variables)
        models = _load(config, tokenizer, as_json, console, any(isinstance(t, str) for t in texts))
    from hierspec.config.call import validate_ids

    for place, prompt_ids in zip(places, texts, strict=False):  # before any is answered
        with errors_in(place):
            validate_ids(prompt_ids, models.root.model.vocab_size)
    if not as_json and (unread := model_defaults.ignored_sampling(models.config.target.model)):
        say(
            console,
            f"hierspec: note: of the model's generation_config {', '.join(unread)} is not applied: "
            "give it as options where you want it",
        )

    if mode_is_open and not (as_json or chat) and getattr(models.tokenizer, "chat_template", None):
        say(console, "hierspec: note: the text is continued; --chat asks it as a question")

    from .rendering.generation import Painter, print_results, run

    request: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "stop": tuple(stop or ()),
        "include_stop_str": include_stop,
        "stop_token_ids": stop_token_id,
        "ignore_eos": ignore_eos,
        "chat": bool(chat),
        "chat_template_kwargs": variables,
        "logprobs": logprobs,
        "sampling": sampling,
    }
    plain = _without_levels(models) if compare else None
    with _open_tracer(trace) as tracer:
        for start in range(0, len(texts), batch_size):
            batch, own_seeds = texts[start:][:batch_size], seeds[start:][:batch_size]
            generation = models.start(batch, tracer=tracer, seed=own_seeds, **request)
            painter = None
            if not as_json and len(batch) == 1:
                shows_prompt = ids or (not chat and isinstance(batch[0], str))
                painter = Painter(generation, ids)
                painter.legend()
                painter.prompt(batch[0] if shows_prompt and generation.continues_prompts else "")
            cancelled = run(generation, painter)
            references: Sequence[GenerationResult] = ()
            if plain is not None and not cancelled:
                references = plain.generate_batch(batch, seed=own_seeds, **request)
            print_results(generation, references, as_json, ids, console)
            if cancelled:
                return 130
    return 0


def _read_prompts(prompt: str | None, file: Path | None, ids: bool) -> tuple[list[Any], list[str]]:
    """Return the prompts, and where each stands if they are token ids."""
    from hierspec.utils.prompts import parse_ids, read_ids, read_prompts, read_stdin
    from hierspec.utils.validation import HALF_CHARACTERS

    if file is not None:
        if not ids:
            return read_prompts(file, conversations=True), []
        found = read_ids(file)
        return list(found.values()), list(found)
    if prompt is None:
        raise HierspecError(
            'give a prompt: hierspec generate "def add(a, b):", - or --prompts FILE'
        )
    text = read_stdin() if prompt == "-" else prompt
    if HALF_CHARACTERS.search(text):  # Python decodes bytes that are not UTF-8 to these
        raise HierspecError("the prompt is not UTF-8 text")
    if not text:
        raise HierspecError("the prompt is empty: give at least one token to continue")
    if not ids:
        return [text], []
    return [parse_ids(text, "the prompt")], ["--ids"]


def _validate_lengths(
    prompts: list[Any], model: str, tokenizer: str | None, chat: bool, variables: Any
) -> None:
    """Refuse a prompt that is longer than a model's context, before the model is loaded."""
    from hierspec.config.arguments import prompt_ids
    from hierspec.config.call import validate_length
    from hierspec.config.target import model_config
    from hierspec.lm.hf.support import longest_context

    try:
        limit = longest_context(model_config(model))
    except HierspecError:
        return  # loading says why
    # A token has a byte at least.
    long = [prompt for prompt in prompts if limit and len(repr(prompt).encode()) >= limit]
    if not long:
        return
    own_tokenizer = options.load_tokenizer(tokenizer or model)
    for prompt in long:
        place = f" at place {prompts.index(prompt)}" if len(prompts) > 1 else ""
        validate_length(prompt_ids(prompt, own_tokenizer, chat, None, variables), limit, place)


def _load(
    config: HierarchyConfig,
    tokenizer: str | None,
    quiet: bool,
    console: Console,
    reads_texts: bool,
) -> Hierarchy:
    from .rendering import warnings_as_notes

    status = contextlib.nullcontext()
    if not quiet and console.is_terminal:
        status = console.status(f"loading {config.target.model}")
    with status, warnings_as_notes(console):
        return options.load_hierarchy(config, tokenizer, reads_texts)


def _plan(
    target: TargetConfig,
    drafts: tuple[str, ...],
    measuring: dict[str, Any],
    quiet: bool,
    console: Console,
) -> Hierarchy:
    from hierspec.api import Hierarchy

    from .rendering import interruptible, progress, say, warnings_as_notes
    from .rendering.generation import describe_plan

    bar = progress(console, f"measuring {target.model} (once)")
    with interruptible(console), warnings_as_notes(console), bar as report:
        models = Hierarchy.auto(target, drafts, report=report, **measuring)
    if not quiet:
        plan = models.plan
        assert plan is not None  # Hierarchy.auto sets it
        say(console, f"auto: {describe_plan(plan, models.controller)}")
        if plan.three_levels_note:
            say(console, plan.three_levels_note)
    return models


def _without_levels(hierarchy: Hierarchy) -> Hierarchy:
    """Return a hierarchy of the target alone, on the same weights."""
    from hierspec.api import Hierarchy
    from hierspec.config.build import Built

    root = dataclasses.replace(hierarchy.root, index=0, below=None)
    return Hierarchy(Built(root, hierarchy.tokenizer, hierarchy.config, hierarchy.eos_ids))


@contextlib.contextmanager
def _open_tracer(path: Path | None) -> Iterator[Any]:
    """Open a tracer that writes line by line, so that an interrupted run leaves its trace."""
    from hierspec.engine.trace import JsonLinesTracer, is_event
    from hierspec.utils.files import text_stream

    if path is None:
        yield None
    elif str(path) == "-":
        yield JsonLinesTracer(sys.stdout)
    else:
        if path.is_file():  # and what cannot be read, opening it for writing says why
            with (
                contextlib.suppress(OSError),
                path.open(encoding="utf-8", errors="replace") as file,
            ):
                line = next((line for line in file if line.strip()), "")
                if line and not is_event(line):
                    raise HierspecError(f"{path} is not a trace: choose another file")
        with text_stream(path, "the trace") as stream:
            yield JsonLinesTracer(stream)
