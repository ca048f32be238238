"""``hierspec reproduce``: the papers' tables and figures again, computed or measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError
from hierspec_papers import COMPUTED, MEASURED, Reproduction

from .options import (
    MODEL,
    AsJson,
    Device,
    Dtype,
    ShowList,
    Temperatures,
    Threads,
    given,
    listed,
    target_config,
    to_measure_at,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec_papers.lab import Lab, Report

ALL = "all"
_KIND = "what was reproduced"  # in refusals to write it
_NOT_MEASURING = ("--list", "--figures", "--output", "--json")  # the options of all kinds


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
    target: Annotated[str, typer.Option(help=f"Target model: {MODEL}.")] = "zoo:large?eps=0.2",
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft model, smallest first; repeated, or with commas between. Default for the "
            "shipped family: zoo:small and zoo:trunk."
        ),
    ] = None,
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
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    figures: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the JSON object to this file as well; of all: a folder for a file each."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Compute or measure the papers' tables and figures again, beside what was printed.

    Computed cells that differ from the printed ones are marked, and why is said below. What is
    measured runs on your models. The exit status is 0 all the same.

    Examples:

      hierspec reproduce p1-tables

      hierspec reproduce all --output reproduced --figures reproduced
    """
    if show_list:
        return _list(as_json)
    if what is None:
        raise HierspecError("say what to reproduce; hierspec reproduce --list shows what there is")
    measuring = [name for name in given(context) if name not in _NOT_MEASURING]
    if what in COMPUTED and measuring:
        raise HierspecError(
            f"{what} is computed from printed numbers: leave {' and '.join(measuring)} out"
        )
    _check_outputs(what == ALL, figures, output, as_json)

    from .rendering import notes

    def lab(report: Report) -> Lab:
        from hierspec.utils.threads import use_threads
        from hierspec_papers.lab import Lab

        temperatures = to_measure_at(temperature)
        use_threads(threads)
        return Lab.load(
            target_config(target, dtype, device),
            None if draft is None else tuple(listed(draft)),
            prompts,
            num_prompts=num_prompts,
            max_new_tokens=max_new_tokens,
            temperatures=temperatures,
            seed=seed,
            report=report,
        )

    if what == ALL:
        assert output is not None  # as _check_outputs saw to
        return _all(lab, output, figures, notes())
    return _one(what, lab, output, figures, as_json, notes())


def _check_outputs(
    all_of_them: bool, figures: Path | None, output: Path | None, as_json: bool
) -> None:
    """Refuse what would be ignored, and what would fail after minutes of measuring."""
    from hierspec.utils.files import check_folder_writable, check_writable

    if all_of_them and output is None:
        raise HierspecError("all writes a file each: give --output FOLDER")
    if all_of_them and as_json:
        raise HierspecError("all writes a file each: leave --json out")
    if output is not None and not all_of_them:
        if not output.parent.is_dir():
            raise HierspecError(f"there is no folder {output.parent} to write into")
        check_writable(output, _KIND)
    if figures is not None:
        from hierspec.plotting.figures import matplotlib

        matplotlib()
        check_folder_writable(figures, figures, "figures")
    if output is not None and all_of_them:
        check_folder_writable(output, output, "a file each")


def _one(
    what: str,
    lab: Callable[[Report], Lab],
    output: Path | None,
    figures: Path | None,
    as_json: bool,
    console: Console,
) -> int:
    """Reproduce one table or figure and show it; return 0 whatever it shows, for it is no check."""
    import hierspec_papers
    from hierspec.utils.terminal import console as console_of_output
    from hierspec_papers.terminal import pictures

    from .rendering import interruptible, progress, say

    with interruptible(console, lambda: "nothing was written"):
        if what in MEASURED:
            with progress(console, what) as report:
                found = hierspec_papers.reproduce(what, lab(report))
        else:
            found = hierspec_papers.reproduce(what)  # which knows best what else was meant
    if output is not None:
        _write(found, output)
        say(console, f"written to {output}")
    _draw(found, figures, console)
    if as_json:
        print(json.dumps(_finite(found.to_dict())))
        return 0
    shown = console_of_output()
    for part in pictures(found):
        shown.print(part)
    if found.figures and figures is None:
        say(console, "add --figures FOLDER to draw the figures")
    return 0


def _all(lab: Callable[[Report], Lab], folder: Path, figures: Path | None, console: Console) -> int:
    """Reproduce everything, a file each; a line for what cannot run on these models."""
    from .rendering import interruptible, progress, say

    names, written = (*COMPUTED, *MEASURED), 0

    def tally() -> str:
        return f"{written} of {len(names)} are written in {folder}"

    with interruptible(console, tally), progress(console, "reproduce") as report:
        models = lab(lambda stage, share: None) if MEASURED else None
        for number, what in enumerate(names):
            share = number / len(names)
            report(what, share)
            if models is not None:
                models.report = _part(report, what, share, 1 / len(names))
            line = _write_one(what, models, folder / f"{what}.json", figures, console)
            written += line is None
            if line is not None:
                say(console, line)
    say(console, tally())
    return 0


def _write_one(
    what: str, lab: Lab | None, path: Path, figures: Path | None, console: Console
) -> str | None:  # fmt: skip
    """Reproduce one and write it; return ``None``, or the line that says why it is left out."""
    from hierspec.bench.methods.base import reason
    from hierspec_papers import reproduce

    from .rendering import say

    try:
        found = reproduce(what) if what in COMPUTED else reproduce(what, lab)
    except HierspecError as error:  # models too few, or of another kind
        return f"{what}: left out: {' '.join(str(error).split())}"
    except Exception as error:  # hours of others must not be lost to one
        return f"{what}: left out: {reason(error)}"
    _write(found, path)
    try:
        _draw(found, figures, console)
    except HierspecError as error:  # a figure without numbers
        say(console, f"{what}: not drawn: {' '.join(str(error).split())}")
    return None


def _part(report: Report, what: str, share: float, width: float) -> Report:
    """Return a callback that reports progress of a part as progress of the whole."""
    return lambda stage, done: report(f"{what}: {stage}", share + width * min(1.0, done))


def _write(found: Reproduction, path: Path) -> None:
    from hierspec.utils.files import write_atomically

    whole = _finite(found.to_dict())
    record = whole.pop("record", None)
    text = json.dumps(whole, indent=2)
    if record:  # thousands of lines that nobody reads
        text = f'{text[:-2]},\n  "record": {json.dumps(record, separators=(",", ":"))}\n}}'
    write_atomically(path, f"{text}\n", _KIND)


def _finite(value: Any) -> Any:
    """Return the value with ``None`` for NaN and infinity (a single value's error): JSON has
    neither."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(found: Reproduction, folder: Path | None, console: Console) -> None:
    if folder is None:
        return
    from hierspec_papers.drawing import draw_all

    from .rendering import say

    for path in draw_all(found, folder):
        say(console, f"drawn: {path}")


def _list(as_json: bool) -> int:
    """Print names and what they show; needs no models."""
    kinds = {"computed": COMPUTED, "measured": MEASURED}
    if as_json:
        listed: list[dict[str, Any]] = [
            {"name": name, "kind": kind, "shows": shows}
            for kind, registry in kinds.items()
            for name, (_, shows) in registry.items()
        ]
        print(json.dumps(listed))
        return 0
    width = max(map(len, (*COMPUTED, *MEASURED)))
    for kind, registry in kinds.items():
        if registry:
            print(f"{kind} {'from printed numbers' if kind == 'computed' else 'on models'}:")
        for name, (_, shows) in registry.items():
            print(f"  {name:<{width}}  {shows}")
    return 0
