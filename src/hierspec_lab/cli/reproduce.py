"""``hierspec reproduce``: compute or measure the papers' tables and figures again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.cli.options import (
    SHIPPED_DRAFTS,
    AsJson,
    Device,
    Dtype,
    Seed,
    ShowList,
    Target,
    Threads,
    draft_option,
    split_values,
    target_config,
)
from hierspec.errors import HierspecError
from hierspec_lab.papers import COMPUTED, MEASURED, Reproduction
from hierspec_lab.papers import reproduce as reproduce_one

from .options import Temperatures, options_used, output_option, parse_temperatures

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.profiling.settings import ReportProgress
    from hierspec_lab.papers.lab import Lab

ALL = "all"
_CONTENT = "the reproduction"  # in errors of writing it
_COMMON_OPTIONS = ("--list", "--figures", "-o", "--json")  # of computed and measured ones


def reproduce(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            help=f"Computed from printed numbers: {', '.join(COMPUTED)}. Measured on models: "
            f"{', '.join(MEASURED)}. Or all."
        ),
    ] = None,
    show_list: ShowList = False,
    target: Target = "zoo:large?eps=0.2",
    draft: Annotated[list[str] | None, draft_option(SHIPPED_DRAFTS)] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="A .jsonl file, a prompt a line, or a folder with humaneval.jsonl, gsm8k.jsonl "
            "and spec_bench.jsonl, of which the domains take turns; default: some built in."
        ),
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts to use, the first ones.")] = 8,
    max_new_tokens: Annotated[
        int, typer.Option(min=2, help="Tokens written after each prompt.")
    ] = 64,
    temperature: Temperatures = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    seed: Seed = 0,
    figures: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    output: Annotated[
        Path | None,
        output_option(
            "Write the JSON object to this file as well; with all, a folder in which each table or "
            "figure gets a file."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Compute or measure the papers' tables and figures again, beside what was printed.

    Computed cells that differ from the printed ones are marked and explained. Measured tables and
    figures are of your models. The exit status is 0 in any case.

    Examples:

      hierspec reproduce p1-tables

      hierspec reproduce all --output reproduced --figures reproduced
    """
    if show_list:
        return _print_list(as_json)
    if what is None:
        raise HierspecError("say what to reproduce; hierspec reproduce --list shows what there is")
    of_measuring = [name for name in options_used(context) if name not in _COMMON_OPTIONS]
    if what in COMPUTED and of_measuring:
        raise HierspecError(
            f"{what} is computed from printed numbers: leave {' and '.join(of_measuring)} out"
        )
    _validate_outputs(what == ALL, figures, output, as_json)

    from hierspec.cli.rendering import notes

    def load_lab(report: ReportProgress) -> Lab:
        from hierspec.utils.threads import use_threads
        from hierspec_lab.papers.lab import Lab

        temperatures = parse_temperatures(temperature)
        use_threads(threads)
        return Lab.load(
            target_config(target, dtype, device),
            None if draft is None else tuple(split_values(draft)),
            prompts,
            num_prompts=num_prompts,
            max_new_tokens=max_new_tokens,
            temperatures=temperatures,
            seed=seed,
            report=report,
        )

    if what == ALL:
        assert output is not None  # as _validate_outputs has ensured
        return _reproduce_all(load_lab, output, figures, notes())
    return _reproduce_one(what, load_lab, output, figures, as_json, notes())


def _validate_outputs(
    is_all: bool, figures: Path | None, output: Path | None, as_json: bool
) -> None:
    """Refuse options that would be ignored, and files that could not be written in the end."""
    from hierspec.utils.files import validate_folder_writable, validate_writable

    if is_all and output is None:
        raise HierspecError("all writes a file each: give --output FOLDER")
    if is_all and as_json:
        raise HierspecError("all writes a file each: leave --json out")
    if output is not None and not is_all:
        if not output.parent.is_dir():
            raise HierspecError(f"there is no folder {output.parent} to write into")
        validate_writable(output, _CONTENT)
    if figures is not None:
        from hierspec_lab.plotting.figures import matplotlib

        matplotlib()
        validate_folder_writable(figures, figures, "figures")
    if output is not None and is_all:
        validate_folder_writable(output, output, "a file each")


def _reproduce_one(
    what: str,
    load_lab: Callable[[ReportProgress], Lab],
    output: Path | None,
    figures: Path | None,
    as_json: bool,
    console: Console,
) -> int:
    """Reproduce one table or figure and show it; return 0 even if it differs from the paper."""
    from hierspec.cli.rendering import interruptible, progress, say
    from hierspec.utils.terminal import console as console_of_output
    from hierspec_lab.papers.terminal import rendered

    with interruptible(console, lambda: "nothing was written"):
        if what in MEASURED:
            with progress(console, what) as report:
                reproduction = reproduce_one(what, load_lab(report))
        else:
            reproduction = reproduce_one(what)  # refuses unknown names
    if output is not None:
        _write(reproduction, output)
        say(console, f"written to {output}")
    _draw(reproduction, figures, console)
    if as_json:
        print(json.dumps(_finite(reproduction.to_dict())))
        return 0
    terminal = console_of_output()
    for part in rendered(reproduction):
        terminal.print(part)
    if reproduction.figures and figures is None:
        say(console, "add --figures FOLDER to draw the figures")
    return 0


def _reproduce_all(
    load_lab: Callable[[ReportProgress], Lab], folder: Path, figures: Path | None, console: Console
) -> int:
    """Reproduce everything, a file each; print a line for each that these models cannot run."""
    from hierspec.cli.rendering import interruptible, progress, say

    names, num_written = (*COMPUTED, *MEASURED), 0

    def tally() -> str:
        return f"{num_written} of {len(names)} are written in {folder}"

    with interruptible(console, tally), progress(console, "reproduce") as report:
        lab = load_lab(lambda stage, share: None)
        for number, name in enumerate(names):
            share = number / len(names)
            report(name, share)
            lab.report = _scale_progress(report, name, share, 1 / len(names))
            problem = _write_one(name, lab, folder / f"{name}.json", figures, console)
            num_written += problem is None
            if problem is not None:
                say(console, problem)
    say(console, tally())
    return 0


def _write_one(
    name: str, lab: Lab, path: Path, figures: Path | None, console: Console
) -> str | None:
    """Reproduce one table or figure to a file; return a line that says why if it cannot."""
    from hierspec.cli.rendering import say
    from hierspec_lab.bench.methods.base import reason

    try:
        reproduction = reproduce_one(name) if name in COMPUTED else reproduce_one(name, lab)
    except HierspecError as error:  # models too few, or of another kind
        return f"{name}: left out: {' '.join(str(error).split())}"
    except Exception as error:  # one failure must not lose hours of the others
        return f"{name}: left out: {reason(error)}"
    _write(reproduction, path)
    try:
        _draw(reproduction, figures, console)
    except HierspecError as error:  # a figure without numbers
        say(console, f"{name}: not drawn: {' '.join(str(error).split())}")
    return None


def _scale_progress(
    report: ReportProgress, name: str, start: float, width: float
) -> ReportProgress:
    """Return a callback that reports a part's progress as that of everything."""
    return lambda stage, share: report(f"{name}: {stage}", start + width * min(1.0, share))


def _write(reproduction: Reproduction, path: Path) -> None:
    from hierspec.utils.files import write_atomically

    document = _finite(reproduction.to_dict())
    record = document.pop("record", None)
    text = json.dumps(document, indent=2)
    if record:  # indented, it would be thousands of lines
        text = f'{text[:-2]},\n  "record": {json.dumps(record, separators=(",", ":"))}\n}}'
    write_atomically(path, f"{text}\n", _CONTENT)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by ``None``: JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(reproduction: Reproduction, folder: Path | None, console: Console) -> None:
    if folder is None:
        return
    from hierspec.cli.rendering import say
    from hierspec_lab.papers.drawing import draw_all

    for path in draw_all(reproduction, folder):
        say(console, f"drawn: {path}")


def _print_list(as_json: bool) -> int:
    kinds = {"computed": COMPUTED, "measured": MEASURED}
    if as_json:
        rows: list[dict[str, Any]] = [
            {"name": name, "kind": kind, "shows": shows}
            for kind, registry in kinds.items()
            for name, (_, shows) in registry.items()
        ]
        print(json.dumps(rows))
        return 0
    width = max(map(len, (*COMPUTED, *MEASURED)))
    for kind, registry in kinds.items():
        if registry:
            print(f"{kind} {'from printed numbers' if kind == 'computed' else 'on models'}:")
        for name, (_, shows) in registry.items():
            print(f"  {name:<{width}}  {shows}")
    return 0
