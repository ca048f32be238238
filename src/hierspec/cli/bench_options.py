"""What ``hierspec bench`` was asked for, and refusals of what would fail after minutes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ..bench.results import is_finished
from ..files import probe, probe_folder


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
        raise ValueError(
            f"--from {options.from_file} measures nothing: leave {' and '.join(ignored)} out"
        )


def check_outputs(options: Options) -> None:
    """Refuse what would fail after minutes of measuring."""
    if options.output is not None:
        probe(options.output, "results")
    if options.report is not None:
        regular = options.report.is_file() or not options.report.exists()
        if regular and options.report.suffix.lower() not in (".html", ".htm"):
            raise ValueError(
                f"--report writes a page: give it a name that ends in .html, not {options.report}"
            )
        if options.output and options.report.resolve() == options.output.resolve():
            raise ValueError(f"-o and --report both name {options.report}: choose two files")
        probe(options.report, "a page")
    if options.spec_bench is not None:
        probe(options.spec_bench, "answers")
    if options.plots is not None:
        from ..planner.figures import plotting

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
