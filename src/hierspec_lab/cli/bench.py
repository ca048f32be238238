"""``hierspec bench``: methods side by side, as a table, a results file, a page and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.cli.options import (
    METHODS,
    SHIPPED_DRAFTS,
    BatchSize,
    Device,
    Dtype,
    Seed,
    ShowList,
    Target,
    Threads,
    draft_option,
    json_option,
    load_tokenizer,
    split_values,
    target_config,
)
from hierspec.errors import HierspecError
from hierspec.utils.terminal import counted

from .bench_files import BenchFiles
from .options import PromptsOption, Temperatures, options_used, output_option, parse_temperatures

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.config.schema import TargetConfig
    from hierspec_lab.bench.methods.entry import MethodEntry
    from hierspec_lab.bench.prompt_split import Prompts
    from hierspec_lab.bench.records import BenchResults, BenchSettings
    from hierspec_lab.bench.spec_bench import SpecBenchQuestion

_SEED_LIMIT = 2**63  # prompt i uses seed + i, and generators take 64 bits
_OPTIONS_WITH_FROM = ("--from", "--report", "--plots", "--spec-bench", "--json")


def bench(
    context: typer.Context,
    target: Target = "zoo:large?eps=0.2",
    draft: Annotated[
        list[str] | None,
        draft_option(f"Also a method that needs no further model: {METHODS}. {SHIPPED_DRAFTS}"),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Names (--list shows them), hierarchy files, or groups: all, papers, baselines, "
            "peers, alone (each drafter by itself); commas between, or repeated. Default: all."
        ),
    ] = None,
    prompts: PromptsOption = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts to measure on, a multiple of --batch-size. Default: 16 of a file, or all "
            "built-in ones but those for --tune-prompts, rounded down to whole batches.",
        ),
    ] = None,
    tune_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts to tune on: those after the measured ones. Default: 4, or "
            "the next multiple of --batch-size.",
        ),
    ] = None,
    tune_tokens: Annotated[int, typer.Option(min=2, help="Tokens to write while tuning.")] = 64,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="Tokens that every method writes per prompt.")
    ] = 128,
    temperature: Temperatures = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Prompts are chats, in the target's chat template, every turn a prompt; --prompts "
            "may be a folder with a file for each domain; equally many prompts are taken of each.",
        ),
    ] = False,
    until_eos: Annotated[
        bool,
        typer.Option("--until-eos", help="Stop at end of text; else all outputs are equally long."),
    ] = False,
    batch_size: BatchSize = 1,
    seed: Seed = 0,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    output: Annotated[
        Path | None,
        output_option(
            "Results file, written as the bench goes on; the same command continues an interrupted "
            "one."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Measure anew, although the file of -o exists.")
    ] = False,
    stop_after: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="MINUTES",
            help="Start no prompt after MINUTES, and sum up what was measured (one prompt at each "
            "temperature at least). 0 sums up an interrupted bench.",
        ),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: show this results file.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a page on the results: FILE.html.")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw the results into this folder.")] = None,
    spec_bench: Annotated[
        Path | None,
        typer.Option(
            help="Write answers as Spec-Bench reads them, a file per method: FILE.jsonl becomes "
            "FILE-METHOD-temperature-T.jsonl."
        ),
    ] = None,
    show_list: ShowList = False,
    as_json: Annotated[
        bool, json_option("Print the results, one JSON object, instead of tables.")
    ] = False,
) -> int:
    """Measure decoding methods side by side: ours, the papers' systems, other engines.

    Methods take turns on every prompt; those with settings to choose are tuned on other prompts
    first. Outputs are checked against plain decoding's, or against the target's distribution.
    With --batch-size above 1, methods that decode one prompt at a time are left out.

    Examples:

      hierspec bench --methods speculative,hierarchy,transformers -o results.json

      hierspec bench --from results.json --report report.html --plots plots
    """
    from hierspec.cli.rendering import interruptible, notes, say

    from .bench_output import show, show_methods

    target_settings, console = target_config(target, dtype, device), notes()
    files = BenchFiles(
        results=output,
        overwrite=overwrite,
        source=from_,
        prompts=prompts,
        report=report,
        plots=plots,
        spec_bench=spec_bench,
        as_json=as_json,
    )
    with interruptible(console, lambda: files.next_step()):
        from hierspec_lab.bench.methods.catalogue import catalogue, select

        available = catalogue(split_values(draft))
        if show_list:
            show_methods(available, as_json)
            return 0
        if from_ is not None:
            _show_file(from_, files, options_used(context), console)
            return 0
        files.validate()
        temperatures = parse_temperatures(temperature)
        if seed >= _SEED_LIMIT:
            raise HierspecError(f"--seed must be at least 0 and below 2**63, not {seed}")

        from hierspec.utils.threads import use_threads
        from hierspec_lab.bench.prompt_split import choose
        from hierspec_lab.bench.records import BenchSettings

        use_threads(threads)
        drafts = _default_drafts(target_settings) if draft is None else tuple(split_values(draft))
        chosen = choose(target, prompts, num_prompts, tune_prompts, batch_size, chat)
        entries = select(methods or ["all"], catalogue(drafts))
        settings = BenchSettings(
            target=target,
            dtype=target_settings.dtype,
            device=target_settings.device,
            drafts=drafts,
            methods=tuple(entry.name for entry in entries),
            temperatures=temperatures,
            max_new_tokens=max_new_tokens,
            num_prompts=len(chosen.measured),
            tune_prompts=len(chosen.tuning),
            tune_tokens=tune_tokens,
            seed=seed,
            batch_size=batch_size,
            prompts=chosen.identity,
            chat=chat,
            until_eos=until_eos,
        )
        if output is None:
            size = ", ".join(
                (counted(len(entries), "method"), counted(len(temperatures), "temperature"))
            )
            say(console, f"hierspec: note: {size}; -o FILE keeps the results, --methods chooses")
        seconds = None if stop_after is None else 60 * stop_after
        data, tokenizer = _measure(
            settings, entries, chosen, files, draft is not None, seconds, console
        )
        if output is not None:
            say(console, f"written to {output}")
        show(data, files, tokenizer, chosen.questions, console)
        return 0


def _default_drafts(target: TargetConfig) -> tuple[str, ...]:
    from hierspec.profiling.candidates import default_names
    from hierspec.zoo.registry import is_smollm2
    from hierspec_lab.bench.methods.ours import shipped_drafts

    if is_smollm2(target.model):
        return tuple(default_names(target))
    return shipped_drafts(target.model)


def _show_file(path: Path, files: BenchFiles, options: Sequence[str], console: Console) -> None:
    """Show the results in a file; refuse ``options`` that only a measurement reads."""
    from hierspec_lab.bench import results

    from .bench_output import show

    ignored = [name for name in options if name not in _OPTIONS_WITH_FROM]
    if files.spec_bench is not None and "--prompts" in ignored:  # the questions behind answers
        ignored.remove("--prompts")
    if ignored:
        raise HierspecError(f"--from {path} measures nothing: leave {' and '.join(ignored)} out")
    files.validate()
    data = results.read(path)
    files.next_step = files.say_how_to_show
    tokenizer, questions = None, ()
    if files.spec_bench is not None:
        questions = _spec_bench_questions(files.prompts, data.settings)
        tokenizer = load_tokenizer(data.settings.target)
    show(data, files, tokenizer, questions, console)


def _spec_bench_questions(
    path: Path | None, settings: BenchSettings
) -> tuple[SpecBenchQuestion, ...]:
    """Return the questions behind the prompts of a results file; none without ``--prompts``.

    Raises:
        HierspecError: other prompts were measured.
    """
    from hierspec_lab.bench.prompt_split import choose

    if path is None or settings.chat:
        return ()
    prompts = choose(settings.target, path, settings.num_prompts, settings.tune_prompts)
    if prompts.identity["sha256"] != settings.prompts["sha256"]:
        raise HierspecError(
            f"{path} does not hold the measured prompts ({settings.prompts['file']}): "
            "give that file, or leave --prompts out"
        )
    return prompts.questions


def _measure(
    settings: BenchSettings,
    entries: Sequence[MethodEntry],
    prompts: Prompts,
    files: BenchFiles,
    load_drafts: bool,
    seconds: float | None,
    console: Console,
) -> tuple[BenchResults, Any]:
    """Measure, or resume a measurement; return the results and the target's tokenizer.

    The results file is not written until all models are loaded.
    """
    from hierspec.cli.rendering import progress, warnings_as_notes
    from hierspec.lm import dtypes
    from hierspec_lab.bench import results
    from hierspec_lab.bench.environment import environment
    from hierspec_lab.bench.methods import planned
    from hierspec_lab.bench.methods.ours import BenchModels
    from hierspec_lab.bench.prompt_ids import encode
    from hierspec_lab.bench.run import Bench

    notes = [*_target_notes(settings.target), *prompts.notes]
    fresh = results.make(settings, environment(), notes)
    with results.locked(files.results):
        data = results.resume(files.results, fresh, files.overwrite)
        if data is not fresh:
            files.next_step = files.say_how_to_resume
        title = f"bench of {settings.target}"
        with warnings_as_notes(console), progress(console, title) as bar:

            def report(stage: str, share: float) -> None:
                bar(stage if console.is_terminal else stage.partition(" · ")[0], share)

            report("loading the target", 0.0)
            target = target_config(settings.target, settings.dtype, settings.device)
            models = BenchModels(target, settings.drafts)
            tokenizer = models.tokenizer  # before the drafts, which would be blamed for the target
            if load_drafts:
                report("loading the drafts", 0.0)
                models.load_drafts()
            measured = encode(models, prompts.measured, settings.max_new_tokens)
            longest = max(
                settings.tune_tokens, settings.max_new_tokens
            )  # a warm-up decodes them to that length
            tuning = encode(models, prompts.tuning, longest)
            note = f"weights in {dtypes.weight_dtype_name(models.plain.root.model)}"
            if settings.dtype == "auto" and note not in data.notes:
                data.notes.append(note)
            files.begin(data)
            files.next_step = files.say_how_to_resume
            further = prompts.profiling[len(prompts.tuning) :]
            profiled = [*tuning, *encode(models, further, longest, skip_too_long=True)]
            effort = planned.settings(len(profiled), settings.max_new_tokens, settings.until_eos)
            models.planning = planned.Planning(models, profiled, effort, files.profile)
            Bench(
                models=models,
                settings=settings,
                entries=entries,
                measured=measured,
                tuning=tuning,
                data=data,
                categories=prompts.categories,
                path=files.results,
                seconds=seconds,
                report=report,
            ).run()
    files.next_step = files.say_how_to_show
    return data, tokenizer


def _target_notes(target: str) -> list[str]:
    """Return notes for the results of a synthetic target."""
    from hierspec_lab.families.code import DATA
    from hierspec_lab.families.synthetic import DEFAULT_EPS

    if not target.startswith("zoo:large"):
        return []
    eps = target.partition("eps=")[2].partition("&")[0]
    try:
        value = float(eps) if eps else DEFAULT_EPS
    except ValueError:  # loading the target refuses it, and says how to mend it
        return []
    measured = json.loads((DATA / "metrics.json").read_text(encoding="utf-8"))["evaluation"][
        "large"
    ]
    rates = measured.get(f"{value:g}")  # by temperature
    alpha = f", α(trunk, large) = {rates['1']:.2f}" if rates else ""
    return [f"zoo:large is a synthetic cost with a real distribution (eps {value:g}{alpha})"]
