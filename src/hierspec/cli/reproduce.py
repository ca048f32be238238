"""Tables side by side with what was printed, and figures as far as letters can show them.

From the options of ``hierspec reproduce`` to the models and prompts it measures with.

``hierspec reproduce``: the papers' tables and figures again, computed or measured.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from hierspec.config.schema import TargetConfig
from hierspec.errors import HierspecError
from hierspec.utils.checks import temperature as check_temperature
from hierspec.utils.files import probe, probe_folder, write_whole
from hierspec.utils.threads import use as use_threads
from hierspec.zoo.registry import shipped_drafts
from hierspec_papers import COMPUTED, MEASURED, Cell, Figure, Reproduction, Table, reproduce
from hierspec_papers import Grid as Values

from .profile import progress

if TYPE_CHECKING:
    from hierspec.bench.methods.ours import Models
    from hierspec_papers.lab import Lab, Report


_DIFFERS = "bold red"
_SPARKS = "▁▂▃▄▅▆▇█"
_MOST = 10  # places of a curve, and columns of a grid, that are shown one by one
_LONGEST = 40  # places of a sparkline


def pictures(found: Reproduction) -> Iterable[Grid | Text]:
    """Every table with its inputs, its notes, and how many cells match; then the figures."""
    if found.measured_on:
        yield Text(_where(found.measured_on), style="dim")
    for table in found.tables:
        yield Text(f"\n{table.name}: {table.caption}", style="bold")
        yield from _inputs(table)
        yield _grid(table) if table.grid else _side_by_side(table)
        cells = list(table.cells())
        if cells and table.compared:
            text = Text(f"{table.matching} of {len(cells)} printed cells match")
            if table.matching < len(cells):
                text.append("; ≠ marks the others", style=_DIFFERS)
            yield text
        elif cells:
            yield Text(
                "printed on the paper's models and machines: compare the shape, not the digits",
                style="dim",
            )
        yield from _notes(table.notes)
    for figure in found.figures:
        yield Text(f"\n{figure.name}: {figure.caption}", style="bold")
        yield from _figure(figure)
        yield from _notes(figure.notes)


def _where(measured_on: dict[str, Any]) -> str:
    """Models and prompts in a line."""
    prompts = measured_on.get("prompts") or {}
    dtype = measured_on.get("dtype", "auto")
    words = [
        f"measured on {measured_on.get('target')}" + ("" if dtype == "auto" else f", {dtype}"),
        f"drafts {', '.join(measured_on.get('drafts') or ()) or 'none'}",
        f"{prompts.get('count')} prompts × {measured_on.get('max_new_tokens')} tokens",
    ]
    return "; ".join(words)


def _notes(notes: Sequence[str]) -> Iterable[Text]:
    return (Text(f"• {note}", style="dim") for note in notes)


def _inputs(table: Table) -> Iterable[Grid]:
    """Costs and acceptance rates, where they are a list and a square (Tables 6 and 7)."""
    costs, rates = table.inputs.get("costs"), table.inputs.get("acceptance")
    if not isinstance(costs, list) or not isinstance(rates, list):
        return
    grid = _empty("inputs: model", "cost", *(f"by M{i + 2}" for i in range(len(costs) - 1)))
    for i, (cost, row) in enumerate(zip(costs, rates, strict=True)):
        shown = ("" if rate is None else f"{rate:.3f}" for rate in row[1:])
        grid.add_row(f"M{i + 1}", f"{cost:g}", *shown)
    yield grid


def _side_by_side(table: Table) -> Grid:
    ours = "computed" if table.compared else "measured"
    pairs = [name for column in table.columns for name in (f"{column}\nprinted", f"\n{ours}")]
    grid = _empty(table.label, *pairs, *(name.replace("_", " ") for name in table.extra))
    for row in table.rows:
        shown: list[str | Text] = []
        for cell in row.cells:
            differs = table.compared and not cell.matches
            style, mark = (_DIFFERS, "≠ ") if differs else ("", "")
            shown += [Text(cell.printed), Text(f"{mark}{cell.rounded}", style=style)]
        grid.add_row(Text(row.label), *shown, *map(_plainly, row.extra))
    return grid


def _grid(table: Table) -> Grid:
    """Our numbers, what they belong to, and below them the printed ones (that differ)."""
    grid = _empty(table.label, *table.columns)
    for row in table.rows:
        grid.add_row(Text(row.label), *(_cell(cell, table.compared) for cell in row.cells))
    return grid


def _cell(cell: Cell, compared: bool) -> Text:
    # The target stands first in every hierarchy: the others tell them apart.
    others = cell.detail.replace("-", "")[1:]
    differs = compared and not cell.matches
    text = Text(f"{cell.rounded} {others:<2}", style=_DIFFERS if differs else "")
    if differs:
        text.append(f"\n≠{cell.printed}   ")
    elif not compared:
        text.append(f"\n({cell.printed})  ", style="dim")
    return text


def _figure(figure: Figure) -> Iterable[Grid | Text]:
    if figure.grid is not None:
        yield from _heat(figure, figure.grid)
        return
    if not figure.curves:
        yield Text("no curve", style="dim")
        return
    places = sorted({x for curve in figure.curves for x in curve.x})
    if any(len(set(curve.x)) < len(curve.x) for curve in figure.curves):
        yield Text(f"({figure.x}, {figure.y}):", style="dim")
        for curve in figure.curves:
            pairs = (f"({_short(x)}, {_short(y)})" for x, y in zip(curve.x, curve.y, strict=True))
            yield Text(f"{curve.label}: {' '.join(pairs)}")
        return
    if len(places) <= _MOST:
        yield Text(f"{figure.y}, by {figure.x}", style="dim")
        grid = _empty("", *map(_short, places))
        for curve in figure.curves:
            at = dict(zip(curve.x, curve.y, strict=True))
            grid.add_row(Text(curve.label), *(_short(at.get(x)) for x in places))
        yield grid
        return
    every = [y for curve in figure.curves for y in curve.y]
    yield Text(
        f"{figure.y}, over {figure.x} from {_short(places[0])} to {_short(places[-1])}", style="dim"
    )
    grid = _empty("", "", "first", "last", "lowest", "highest")
    for curve in figure.curves:
        if ys := curve.y:
            ends = (ys[0], ys[-1], min(ys), max(ys))
            sparks = _sparks(ys, min(every), max(every))
            grid.add_row(Text(curve.label), sparks, *map(_short, ends))
    yield grid


def _heat(figure: Figure, grid: Values) -> Iterable[Grid | Text]:
    """The grid where it is small, and its best cell."""
    from hierspec_papers.drawing import best_cell, drawable

    if not drawable(figure):
        yield Text("no numbers", style="dim")
        return
    row, column = best_cell(figure, grid)
    if len(grid.columns) <= _MOST:
        yield Text(f"{figure.y}, by {figure.x}", style="dim")
        table = _empty("", *grid.columns)
        for i, values in enumerate(grid.values):
            shown = [
                Text(_short(value), style="bold" if (i, j) == (row, column) else "")
                for j, value in enumerate(values)
            ]
            table.add_row(Text(grid.rows[i]), *shown)
        yield table
    best = f"best: {_short(grid.values[row][column])} at {grid.rows[row]}, {grid.columns[column]}"
    yield Text(best)


def _sparks(values: Sequence[float], low: float, high: float) -> str:
    """A row of blocks, as high as the values; long curves are thinned out."""
    step = -(-len(values) // _LONGEST)
    top = len(_SPARKS) - 1
    return "".join(
        _SPARKS[round(top * (value - low) / (high - low)) if high > low else 0]
        for value in values[::step]
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _empty(first: str, *others: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    grid.add_column(Text(first), min_width=12)
    for name in others:
        grid.add_column(Text(name), justify="right")
    return grid


def _plainly(value: Any) -> str | Text:
    if isinstance(value, float):
        return f"{value:.4f}"
    return Text(", ".join(map(str, value)) if isinstance(value, list) else str(value))


TARGET = "zoo:large?eps=0.2"
NUM_PROMPTS, MAX_NEW_TOKENS, TEMPERATURES = 8, 64, (0.0, 1.0)
LONGEST = 512  # tokens of a prompt: its end counts, and reading it should not be what is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LabOptions:
    """The command line's; ``None`` where it says nothing."""

    target: str | None = None
    drafts: tuple[str, ...] | None = None
    prompts: Path | None = None
    num_prompts: int | None = None
    max_new_tokens: int | None = None
    temperatures: tuple[float, ...] | None = None
    dtype: str | None = None
    device: str | None = None
    threads: int | None = None
    seed: int | None = None

    def given(self) -> list[str]:
        """The options that were given, as they are written."""
        written = {"drafts": "draft", "temperatures": "temperature"}
        return [
            f"--{written.get(field.name, field.name).replace('_', '-')}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is not None
        ]


def make_lab(options: LabOptions, report: Report) -> Lab:
    """Read the prompts and load the target; drafts are loaded when they are needed.

    Raises:
        ValueError: an option cannot be used, with the fix.
    """
    texts, source = _texts(options)
    temperatures = TEMPERATURES if options.temperatures is None else options.temperatures
    for value in temperatures:
        check_temperature(value, "--temperature")
    use_threads(options.threads)
    from hierspec.bench.methods.ours import Models
    from hierspec_papers.lab import Lab

    target = TargetConfig(
        model=options.target or TARGET,
        dtype=options.dtype or "auto",
        device=options.device or "auto",
    )
    drafts = options.drafts
    if drafts is None:
        drafts = shipped_drafts(target.model)
    models = Models(target, drafts)
    report(f"loading {target.model}", 0.0)
    tokens = options.max_new_tokens or MAX_NEW_TOKENS
    room = min(LONGEST, _context(models) - tokens)
    if room < 1:
        raise HierspecError(
            f"--max-new-tokens {tokens} leaves no room for a prompt: a model's context ends at "
            f"{room + tokens} tokens"
        )
    prompts, longest = _ids(models, texts, room)
    if longest > room:
        source["truncated_to"] = room
    return Lab(
        models,
        prompts,
        max_new_tokens=tokens,
        temperatures=tuple(dict.fromkeys(value + 0.0 for value in temperatures)),
        seed=options.seed or 0,
        report=report,
        source=source,
    )


def _texts(options: LabOptions) -> tuple[list[str], dict[str, Any]]:
    """The first prompts, and where they are from."""
    count = options.num_prompts or NUM_PROMPTS
    if options.prompts is None:
        from hierspec.profiling.texts import builtin

        return list(builtin(options.target or TARGET))[:count], {"file": "built in"}
    from hierspec.utils.prompts import read_prompt_file

    file = read_prompt_file(options.prompts)
    return list(file.prompts[:count]), {"file": file.name, "sha256": file.sha256}


def _context(models: Models) -> int:
    """The longest text, in tokens, that every model can take."""
    from hierspec.config.target import target_config

    longest = int(models.plain.root.model.max_length)
    for draft in models.drafts:
        longest = min(longest, getattr(target_config(draft), "max_position_embeddings", longest))
    return longest


def _ids(models: Models, texts: Sequence[str], room: int) -> tuple[list[list[int]], int]:
    """The last ``room`` tokens of each text, and the length of the longest one."""
    if models.tokenizer is None:
        raise HierspecError(
            f"{models.target.model} has no tokenizer beside it, and prompts are texts: save one "
            "into its folder"
        )
    found = [list(models.tokenizer(text, verbose=False)["input_ids"]) for text in texts]
    found = [ids for ids in found if ids]
    if not found:
        raise HierspecError("the prompts hold no token: give others with --prompts")
    return [ids[-room:] for ids in found], max(map(len, found))


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
        raise HierspecError("say what to reproduce; hierspec reproduce --list shows what there is")
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
        raise HierspecError(
            f"{options.what} is computed from printed numbers: leave {' and '.join(given)} out"
        )
    if options.what == ALL and options.output is None:
        raise HierspecError("all writes a file each: give --output FOLDER")
    if options.what == ALL and options.as_json:
        raise HierspecError("all writes a file each: leave --json out")
    if options.what != ALL and options.output is not None:
        if not options.output.parent.is_dir():
            raise HierspecError(f"there is no folder {options.output.parent} to write into")
        probe(options.output, _WHAT)
    if options.figures is not None:
        from hierspec.plotting.figures import plotting

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
    from hierspec.utils.machine import environment

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
    from hierspec.bench.turns import reason

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
    from hierspec_papers.drawing import draw_all

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
