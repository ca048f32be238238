"""What ``hierspec bench`` was asked for, and refusals of what would fail after minutes.

What ``hierspec bench`` shows: methods, the table, and results in other forms.

``hierspec bench``: methods side by side, as a table, a results file, a page and pictures.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierspec.bench import prompts as questions
from hierspec.bench import results as files
from hierspec.bench.methods.catalogue import catalogue, select
from hierspec.bench.methods.entry import Entry
from hierspec.bench.methods.ours import Models
from hierspec.bench.methods.planned import Planning
from hierspec.bench.methods.planned import settings as profiling
from hierspec.bench.prompts import Prompts, choose
from hierspec.bench.report.table import pictures
from hierspec.bench.results import is_finished
from hierspec.bench.run import Bench, Settings, locked
from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.utils.checks import temperature as check_temperature
from hierspec.utils.files import probe, probe_folder
from hierspec.utils.machine import environment
from hierspec.utils.threads import use as use_threads
from hierspec.zoo.registry import shipped_drafts

from .profile import progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line's; ``None`` where it says nothing."""

    target: str
    drafts: tuple[str, ...] | None = None
    methods: tuple[str, ...] = ("all",)
    prompts: Path | None = None
    num_prompts: int | None = None
    tune_prompts: int | None = None
    tune_tokens: int = 64
    max_new_tokens: int = 128
    temperatures: tuple[float, ...] = (0.0, 1.0)
    batch_size: int = 1
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    output: Path | None = None
    overwrite: bool = False
    from_file: Path | None = None
    report: Path | None = None
    plots: Path | None = None
    spec_bench: Path | None = None
    show_list: bool = False
    as_json: bool = False
    given: tuple[str, ...] = ()  # options that the command line names, as it is typed


def check_from(options: Options) -> None:
    """Refuse what has no effect where nothing is measured."""
    used = ("--from", "--report", "--plots", "--spec-bench", "--json")
    ignored = [name for name in options.given if name not in used]
    if options.spec_bench is not None and "--prompts" in ignored:  # the questions behind answers
        ignored.remove("--prompts")
    if ignored:
        raise HierspecError(
            f"--from {options.from_file} measures nothing: leave {' and '.join(ignored)} out"
        )


def check_outputs(options: Options) -> None:
    """Refuse what would fail after minutes of measuring."""
    if options.output is not None:
        probe(options.output, "results")
    if options.report is not None:
        regular = options.report.is_file() or not options.report.exists()
        if regular and options.report.suffix.lower() not in (".html", ".htm"):
            raise HierspecError(
                f"--report writes a page: give it a name that ends in .html, not {options.report}"
            )
        if options.output and options.report.resolve() == options.output.resolve():
            raise HierspecError(f"-o and --report both name {options.report}: choose two files")
        probe(options.report, "a page")
    if options.spec_bench is not None:
        probe(options.spec_bench, "answers")
    if options.plots is not None:
        from hierspec.plotting.figures import plotting

        plotting()
        probe_folder(options.plots, options.plots, "pictures")


def profile_path(options: Options) -> Path | None:
    """Beside the results file."""
    return options.output and options.output.with_suffix(".profile.json")


def nothing_measured(options: Options) -> str:
    return "nothing was measured"


def to_go_on(options: Options) -> str:
    """How to measure what is missing; as :func:`to_show_again` where nothing is."""
    if options.output is None:
        return "-o FILE keeps it"
    if is_finished(options.output):  # the same command would be refused
        return to_show_again(options)
    same = "the same command without --overwrite" if options.overwrite else "the same command"
    return f"{same} goes on where it was"


def to_show_again(options: Options) -> str:
    """Where the results are, and the command that makes the files which were asked for."""
    path = options.from_file or options.output
    if path is None:
        return "the results are measured, but in no file; -o FILE keeps them"
    words = ["hierspec", "bench", "--from", str(path)]
    for name in ("report", "plots", "spec_bench"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if options.spec_bench is not None and options.prompts is not None:
        words += ["--prompts", str(options.prompts)]
    if options.as_json:
        words.append("--json")
    return f"the results are in {path}; {shlex.join(words)} shows them"


_WIDTH = 140  # where nobody says how wide the output is


def show_list(known: Mapping[str, Entry], as_json: bool) -> int:
    keys = ("name", "title", "group", "source", "summary", "lossless")
    if as_json:
        print(json.dumps([{key: getattr(entry, key) for key in keys} for entry in known.values()]))
        return 0
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("method", "group", "source", ""):
        grid.add_column(column, overflow="fold")
    for entry in known.values():
        lossy = "" if entry.lossless else " (not lossless)"
        row = (entry.name, entry.group, entry.source, f"{entry.summary}{lossy}")
        grid.add_row(*map(Text, row))
    _console(listing=True).print(grid)
    return 0


def show(
    data: dict[str, Any],
    options: Options,
    tokenizer: Any,
    asked: Sequence[questions.Question],
) -> int:
    """The table or the object, and whatever files were asked for."""
    notes = Console(stderr=True)
    if options.as_json:
        print(json.dumps(data))
    else:
        console = _console()
        for part in pictures(data):
            console.print(part)
    if options.plots is not None:
        from hierspec.bench.report.pictures import draw

        for path in draw(data, options.plots):
            say(notes, f"drawn: {path}")
    if options.report is not None:
        from hierspec.bench.report.page import write as write_page

        write_page(data, options.report)
        say(notes, f"written: {options.report}")
    if options.spec_bench is not None:
        written = questions.write(data, options.spec_bench, tokenizer, asked)
        example = f", such as {written[0]}" if written else ""
        say(notes, f"written: {len(written)} answer files{example}")
    return 0


def _console(listing: bool = False) -> Console:
    """As wide as the terminal. A table that is piped keeps all its columns, whatever ``COLUMNS``
    says; a list folds."""
    console = Console()
    known = console.is_terminal or (listing and os.environ.get("COLUMNS", "").isdigit())
    return console if known else Console(width=_WIDTH)


def say(notes: Console, text: str) -> None:
    """A line as it is: names may hold brackets, and paths must not be broken."""
    notes.print(text, highlight=False, markup=False, soft_wrap=True)


SEEDS = 2**63  # prompt i has the seed + i, and generators take 64 bits
# α(trunk, large) by eps at temperature 1, from the shipped family's model card.
_AGREEMENT = {0.05: 0.98, 0.1: 0.96, 0.2: 0.92}


@dataclass(slots=True)
class _Interrupted:
    """What is to be said where the user cuts it short now; found out when it happens, because the
    file may have been finished a moment ago."""

    how: Callable[[Options], str] = nothing_measured


def run(options: Options) -> int:
    """Measure, or show what was measured.

    Returns:
        0, or 130 when the user cut it short.
    """
    interrupted = _Interrupted()
    try:
        return _run(options, interrupted)
    except KeyboardInterrupt:
        say(Console(stderr=True), f"interrupted: {interrupted.how(options)}")
        return 130


def _run(options: Options, interrupted: _Interrupted) -> int:
    known = catalogue()
    if options.show_list:
        return show_list(known, options.as_json)
    if options.from_file is not None:
        check_from(options)
    check_outputs(options)
    if options.from_file is not None:
        data = files.read(options.from_file)
        interrupted.how = to_show_again
        tokenizer, asked = None, ()
        if options.spec_bench is not None:
            asked = _asked(options, data["settings"])
            tokenizer = _tokenizer(data["settings"]["target"])
        return show(data, options, tokenizer, asked)
    for value in options.temperatures:
        check_temperature(value, "--temperature")
    if not 0 <= options.seed < SEEDS:
        raise HierspecError(f"--seed must be at least 0 and below 2**63, not {options.seed}")
    use_threads(options.threads)
    prompts = choose(
        options.target,
        options.prompts,
        options.num_prompts,
        options.tune_prompts,
        options.batch_size,
    )
    entries = select(options.methods, known)
    drafts = shipped_drafts(options.target) if options.drafts is None else options.drafts
    settings = Settings(
        target=options.target,
        dtype=options.dtype,
        device=options.device,
        drafts=drafts,
        methods=tuple(entry.name for entry in entries),
        temperatures=tuple(dict.fromkeys(t + 0.0 for t in options.temperatures)),
        max_new_tokens=options.max_new_tokens,
        num_prompts=len(prompts.measured),
        tune_prompts=len(prompts.tuning),
        tune_tokens=options.tune_tokens,
        seed=options.seed,
        batch_size=options.batch_size,
        prompts=prompts.identity,
    )
    fresh = files.make(settings.to_dict(), environment(), _notes(options, prompts))
    notes = Console(stderr=True)
    with locked(options.output):
        data = files.resume(options.output, fresh, options.overwrite)
        if data is not fresh:
            interrupted.how = to_go_on
        tokenizer = _measure(options, settings, entries, prompts, data, notes, interrupted)
    interrupted.how = to_show_again
    if options.output is not None:
        say(notes, f"written to {options.output}")
    return show(data, options, tokenizer, prompts.asked)


def _measure(
    options: Options,
    settings: Settings,
    entries: Sequence[Entry],
    prompts: Prompts,
    data: dict[str, Any],
    notes: Console,
    interrupted: _Interrupted,
) -> Any:
    """Load and run; returns the target's tokenizer. A file is begun when all models are there."""
    title = f"bench of {settings.target}"
    with progress(notes, title) as tell:

        def report(stage: str, share: float) -> None:
            tell(stage if notes.is_terminal else stage.partition(" · ")[0], share)

        report("loading the target", 0.0)
        target = TargetConfig(model=settings.target, dtype=settings.dtype, device=settings.device)
        models = Models(target, settings.drafts)
        if options.drafts is not None:
            report("loading the drafts", 0.0)
            models.load_drafts()
        measured = _token_ids(models, prompts.measured, settings.max_new_tokens)
        longest = max(settings.tune_tokens, settings.max_new_tokens)  # methods warm up on them
        tuning = _token_ids(models, prompts.tuning, longest)
        _begin(options, data)
        interrupted.how = to_go_on
        models.planning = Planning(
            models,
            prompts.tuning,
            profiling(len(tuning), max(8, min(128, 2 * settings.tune_tokens))),
            path=profile_path(options),
        )
        Bench(
            models=models,
            settings=settings,
            entries=entries,
            measured=measured,
            tuning=tuning,
            data=data,
            categories=[question.category for question in prompts.asked],
            path=options.output,
            report=report,
        ).run()
    return models.tokenizer


def _begin(options: Options, data: dict[str, Any]) -> None:
    """The file is there before minutes of work; a profile that is to be measured anew is gone."""
    if options.output is None:
        return
    files.write(options.output, data)
    if options.overwrite and (profile := profile_path(options)) is not None:
        profile.unlink(missing_ok=True)  # planned methods are measured anew as well


def _token_ids(models: Models, prompts: Sequence[str], tokens: int) -> list[list[int]]:
    """As ``generate`` would read them; each with room for what is to be written."""
    if models.tokenizer is None:
        raise HierspecError(
            "the target has no tokenizer beside it, and prompts are texts: save one into its folder"
        )
    longest = models.plain.root.model.max_length
    found = []
    for text in prompts:
        ids = models.tokenizer(text, verbose=False)["input_ids"]
        if not ids or len(ids) + tokens > longest:
            raise HierspecError(
                f"prompt {text[:40]!r} has {len(ids)} tokens; with {tokens} more it must fit into "
                f"the target's context of {longest}: leave it out, or lower --max-new-tokens"
            )
        found.append(list(ids))
    return found


def _asked(options: Options, settings: Mapping[str, Any]) -> tuple[questions.Question, ...]:
    """The questions behind the prompts of a results file; none where ``--prompts`` is not given.

    Raises:
        ValueError: other prompts were measured.
    """
    if options.prompts is None:
        return ()
    target, counts = settings["target"], (settings["num_prompts"], settings["tune_prompts"])
    prompts = choose(target, options.prompts, *counts)
    if prompts.identity["sha256"] != settings["prompts"]["sha256"]:
        raise HierspecError(
            f"{options.prompts} is not what was measured on ({settings['prompts']['file']}): "
            "give that file, or leave --prompts out"
        )
    return prompts.asked


def _notes(options: Options, prompts: Prompts) -> list[str]:
    notes = []
    if options.target.startswith("zoo:large"):
        from hierspec.zoo.synthetic import DEFAULT_EPS

        eps = options.target.partition("eps=")[2].partition("&")[0]
        with contextlib.suppress(ValueError):  # told when the target is loaded, with the fix
            value = float(eps) if eps else DEFAULT_EPS
            known = _AGREEMENT.get(value)
            alpha = f", α(trunk, large) = {known}" if known else ""
            notes.append(
                f"zoo:large is a synthetic cost with a real distribution (eps {value:g}{alpha})"
            )
    return [*notes, *prompts.notes]


def _tokenizer(target: str) -> Any:
    """The target's, without its weights."""
    from hierspec.config.checkpoints import load_tokenizer
    from hierspec.zoo import registry

    return load_tokenizer(registry.resolve(target) if target.startswith("zoo:") else target)
