"""``hierspec reproduce``: the papers' tables and figures again, computed or measured."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..files import probe, probe_folder, write_whole
from ..reproduce import COMPUTED, MEASURED, Reproduction, reproduce
from .profile import progress
from .reproduce_lab import LabOptions, make_lab
from .reproduce_render import pictures

if TYPE_CHECKING:
    from ..reproduce.lab import Lab

_WIDTH = 100  # where nobody says how wide the output is
ALL = "all"
_WHAT = "what was reproduced"  # in refusals to write it


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command's options, parsed."""

    what: str | None = None
    show_list: bool = False
    lab: LabOptions = field(default_factory=LabOptions)
    figures: Path | None = None
    output: Path | None = None
    as_json: bool = False


def run(options: Options) -> int:
    """Compute or measure, and print; ``output`` gets the JSON object as well.

    Returns:
        0 whatever was found, for it is no check; 130 when the user cut it short.
    """
    if options.show_list:
        return _list(options.as_json)
    if options.what is None:
        raise ValueError("say what to reproduce; hierspec reproduce --list shows what there is")
    _check(options)
    if options.what == ALL:
        return _all(options)
    notes = Console(stderr=True)
    try:
        found = _one(options.what, options, notes)
    except KeyboardInterrupt:
        _say(notes, "interrupted: nothing was written")
        return 130
    if options.output is not None:
        _write(found, options.output)
        _say(notes, f"written to {options.output}")
    _draw(found, options, notes)
    if options.as_json:
        print(json.dumps(_finite(found.to_dict())))
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for part in pictures(found):
        console.print(part)
    if found.figures and options.figures is None:
        _say(notes, "add --figures FOLDER to draw the figures")
    return 0


def _check(options: Options) -> None:
    """Refuse what would be ignored, and what would fail after minutes of measuring."""
    given = options.lab.given()
    if options.what in COMPUTED and given:
        raise ValueError(
            f"{options.what} is computed from printed numbers: leave {' and '.join(given)} out"
        )
    if options.what == ALL and options.output is None:
        raise ValueError("all writes a file each: give --output FOLDER")
    if options.what == ALL and options.as_json:
        raise ValueError("all writes a file each: leave --json out")
    if options.what != ALL and options.output is not None:
        if not options.output.parent.is_dir():
            raise ValueError(f"there is no folder {options.output.parent} to write into")
        probe(options.output, _WHAT)
    if options.figures is not None:
        from ..planner.figures import plotting

        plotting()  # before minutes of work
        probe_folder(options.figures, options.figures, "figures")
    if options.what == ALL and options.output is not None:
        probe_folder(options.output, options.output, "a file each")


def _one(what: str, options: Options, notes: Console) -> Reproduction:
    if what not in MEASURED:
        return reproduce(what)  # which knows best what else was meant
    with progress(notes, what) as report:
        lab = make_lab(options.lab, report)
        return _measured(what, lab)


def _measured(what: str, lab: Lab) -> Reproduction:
    """What the module found, and on what it was measured where it does not say so itself."""
    from ..bench.environment import environment

    before = environment()  # its load averages should not be those of the measurement
    found = reproduce(what, lab)
    if found.measured_on:
        return found
    measured_on = {
        **lab.to_dict(),
        "temperatures": list(lab.temperatures),
        "environment": before,
    }
    return dataclasses.replace(found, measured_on=measured_on)


def _all(options: Options) -> int:
    """Everything there is, a file each; what cannot run on these models is told about."""
    folder, notes = options.output, Console(stderr=True)
    assert folder is not None
    names, written = (*COMPUTED, *MEASURED), 0
    try:
        with progress(notes, "reproduce") as report:
            lab = make_lab(options.lab, lambda *_: None) if MEASURED else None
            for number, what in enumerate(names):
                share = number / len(names)
                report(what, share)
                if lab is not None:
                    lab.report = _part(report, what, share, 1 / len(names))
                line = _told(what, lab, folder / f"{what}.json", options, notes)
                written += line is None
                if line is not None:
                    _say(notes, line)
    except KeyboardInterrupt:
        _say(notes, f"interrupted: {written} of {len(names)} are written in {folder}")
        return 130
    _say(notes, f"{written} of {len(names)} are written in {folder}")
    return 0


def _told(
    what: str, lab: Lab | None, path: Path, options: Options, notes: Console
) -> str | None:  # fmt: skip
    """Write one; ``None``, or the line that says why it is left out."""
    from ..bench.turns import reason

    try:
        found = reproduce(what) if lab is None or what in COMPUTED else _measured(what, lab)
    except ValueError as error:  # models too few, or of another kind
        return f"{what}: left out: {' '.join(str(error).split())}"
    except Exception as error:  # hours of others must not be lost to one
        return f"{what}: left out: {reason(error)}"
    _write(found, path)
    try:
        _draw(found, options, notes)
    except ValueError as error:  # a figure without numbers
        _say(notes, f"{what}: not drawn: {' '.join(str(error).split())}")
    return None


def _part(
    report: Callable[[str, float], None], what: str, share: float, width: float
) -> Callable[[str, float], None]:
    """Progress of a part as progress of the whole."""
    return lambda stage, done: report(f"{what}: {stage}", share + width * min(1.0, done))


def _write(found: Reproduction, path: Path) -> None:
    text = json.dumps(_finite(found.to_dict()), indent=2)
    write_whole(path, text + "\n", _WHAT)


def _finite(value: Any) -> Any:
    """The value with ``None`` where a number is none (the error of a single value): JSON has no
    NaN."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(found: Reproduction, options: Options, notes: Console) -> None:
    if options.figures is None:
        return
    from ..reproduce.drawing import draw_all

    for path in draw_all(found, options.figures):
        _say(notes, f"drawn: {path}")


def _list(as_json: bool) -> int:
    """Names and what they show; needs no models."""
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


def _say(notes: Console, text: str) -> None:
    """A line as it is: names may hold brackets, and paths must not be broken."""
    notes.print(text, highlight=False, markup=False, soft_wrap=True)
