"""How a generation looks on a terminal: coloured tokens, a legend, a table of levels.

``hierspec generate``: choose the hierarchy, read the prompts, stream or print JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hierspec.config import arguments
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.config.vocabulary import VocabularyWarning
from hierspec.core.nodes import Concatenate, walk
from hierspec.engine.generation import Generation
from hierspec.engine.results import GenerationResult, TokenEvent
from hierspec.errors import HierspecError
from hierspec.presets.registry import AUTO, PRESETS, preset
from hierspec.utils.prompts import read_prompts, read_stdin
from hierspec.utils.threads import use as use_threads
from hierspec.zoo.registry import DEFAULT_TARGET

if TYPE_CHECKING:
    from hierspec.api import Hierarchy


# Lowest level first; the target writes in the terminal's own colour, bold, since its tokens are
# the rare ones. Hues are told apart by most colour-blind readers, and brightness differs as well.
_PALETTE = ("bright_cyan", "yellow", "magenta", "green", "bright_blue", "red")
_TARGET = "bold"


class Painter:
    """Prints events as they come, each token in the colour of the level that wrote it."""

    def __init__(self, console: Console, levels: Sequence[str], target: str) -> None:
        self.console = console
        self.styles = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(levels)}
        self.styles[target] = _TARGET

    def legend(self) -> None:
        """Which colour is whose; only where colours show."""
        if self.console.is_terminal:
            parts = [Text(f"■ {name}", style=style) for name, style in self.styles.items()]
            self.console.print(Text("written by  ", style="dim") + Text("   ").join(parts))

    def prompt(self, text: str) -> None:
        self._out(text, "dim")

    def token(self, event: TokenEvent) -> None:
        self._out(event.text, self.styles.get(event.level, ""))

    def end(self) -> None:
        self._out("\n", "")

    def _out(self, text: str, style: str) -> None:
        # Text, not markup: model output is full of brackets. soft_wrap leaves lines whole.
        if self.console.is_terminal:
            self.console.print(Text(text, style=style), end="", soft_wrap=True, highlight=False)
        else:
            self.console.file.write(text)
        self.console.file.flush()


def summary(
    result: GenerationResult, plain: GenerationResult | None, same: bool | None
) -> list[Table | Text]:
    """Acceptance per level, tokens per second, and plain decoding beside it."""
    return [*levels(result), figures(result, plain, same)]


def figures(result: GenerationResult, plain: GenerationResult | None, same: bool | None) -> Text:
    """Tokens per second of one sequence, and plain decoding beside it."""
    lines = [
        f"{result.num_tokens} tokens ({result.finish_reason}), "
        f"{result.tokens_per_second:.1f} tokens/s, "
        f"{result.mean_acceptance_length:.2f} tokens per target call, "
        f"first after {result.time_to_first_token * 1e3:.0f} ms"
    ]
    if plain is not None and plain.tokens_per_second > 0:
        ratio = result.tokens_per_second / plain.tokens_per_second
        verdict = "" if same is None else (", same text" if same else ", text differs")
        lines.append(
            f"plain decoding {plain.tokens_per_second:.1f} tokens/s: {ratio:.2f}× {verdict}"
        )
    if result.control:
        rounds = sorted(result.control["rounds"].items(), key=lambda item: -item[1])
        spent = ", ".join(f"{plan} ({count} rounds)" for plan, count in rounds[:4])
        more = f" and {len(rounds) - 4} more" if len(rounds) > 4 else ""
        lines.append(f"plans followed: {spent}{more}; {result.control['switches']} switches")
    text = Text(lines[0])
    for line in lines[1:]:
        text.append(f"\n{line}", style="bold")
    return text


def levels(result: GenerationResult) -> list[Table | Text]:
    """What every level did for the whole batch; any of its results tells."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("level")
    for name in ("calls", "drafted", "kept", "acceptance", "time"):
        table.add_column(name, justify="right")
    for level in result.levels:
        table.add_row(
            level["name"],
            str(level["calls"]),
            str(level["num_draft_tokens"]),
            str(level["num_accepted_tokens"]),
            f"{level['acceptance_rate']:.0%}",
            f"{level['seconds']:.2f} s",
        )
    target = result.target
    table.add_row(
        f"{target['name']} (target)", str(target["calls"]), "", "", "", f"{target['seconds']:.2f} s"
    )
    if result.batch_size == 1:
        return [table]
    return [Text(f"all {result.batch_size} sequences together:", style="dim"), table]


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options, parsed."""

    prompt: str | None
    hierarchy: str
    target: str | None
    drafts: tuple[str, ...]
    dtype: str | None
    device: str | None
    threads: int | None
    prompts: Path | None
    batch_size: int
    max_new_tokens: int
    sampling: dict[str, Any]
    seed: int | None
    stop: tuple[str, ...]
    include_stop: bool
    ignore_eos: bool
    chat: bool
    logprobs: bool
    compare: bool
    trace: Path | None
    as_json: bool


def run(options: Options) -> int:
    """Generate; 0 when all went well, 130 when the user cut it short."""
    _check(options)
    prompts = _prompts(options)
    config = None if options.hierarchy == AUTO else choose(options)
    use_threads(options.threads)
    notes = Console(stderr=True)
    from hierspec.sampling.parameters import SamplingParams

    # A wrong parameter should not wait for the models.
    sampling = SamplingParams.make(**options.sampling)
    arguments.seed(options.seed)
    hierarchy = _automatic(options, notes) if config is None else _load(config, options, notes)
    start = {
        "max_new_tokens": options.max_new_tokens,
        "seed": options.seed,
        "stop": options.stop,
        "include_stop_str": options.include_stop,
        "ignore_eos": options.ignore_eos,
        "chat": options.chat,
        "logprobs": options.logprobs,
        "sampling": sampling,
    }
    plain = _plain(hierarchy) if options.compare else None
    cancelled = False
    with _tracing(options.trace) as tracer:
        for at in range(0, len(prompts), options.batch_size):
            batch = prompts[at : at + options.batch_size]
            generation = hierarchy.start(batch, tracer=tracer, **start)
            cancelled = _drive(generation, hierarchy, batch, options)
            results = generation.results()
            others: list[GenerationResult | None] = [None] * len(results)
            if plain is not None and not cancelled:
                seed = generation.seed
                others = list(plain.generate_batch(batch, **{**start, "seed": seed}))
            _report(results, others, options, sampling.greedy, notes)
            if cancelled:
                break
    return 130 if cancelled else 0


def _load(config: HierarchyConfig, options: Options, notes: Console) -> Hierarchy:
    with _waiting(notes, f"loading {config.target.model}", not options.as_json), _noting(notes):
        from hierspec.api import Hierarchy

        return Hierarchy.from_config(config)


def _automatic(options: Options, notes: Console) -> Hierarchy:
    """Measured if that has not been done here before, then planned."""
    from hierspec.api import Hierarchy

    from .profile import progress

    target = TargetConfig(
        model=options.target or DEFAULT_TARGET,
        dtype=options.dtype or "auto",
        device=options.device or "auto",
    )
    try:
        with _noting(notes), progress(notes, f"measuring {target.model} (once)") as report:
            hierarchy = Hierarchy.auto(
                target,
                options.drafts,
                temperature=options.sampling["temperature"],
                report=report,
            )
    except KeyboardInterrupt:
        notes.print("interrupted: the same command goes on where it was", highlight=False)
        raise
    if not options.as_json:
        below = [
            f"{node.name} × {node.budget}"
            for node in walk(hierarchy.root.below)
            if not isinstance(node, Concatenate)
        ]
        chosen = " → ".join([*below, target.model]) if below else "plain decoding"
        notes.print(f"auto: {chosen}", highlight=False, markup=False, soft_wrap=True)
    return hierarchy


def choose(options: Options) -> HierarchyConfig:
    """The configuration meant by --hierarchy, --target, --draft, --dtype and --device."""
    inline = options.hierarchy.lstrip().startswith("{")
    file = Path(options.hierarchy)
    if options.hierarchy in PRESETS or not (inline or file.suffix in (".json", ".toml")):
        if options.hierarchy not in PRESETS and file.is_file():
            raise HierspecError(
                f"{file} is no hierarchy file by its name: it ends in .json or .toml"
            )
        _check_drafts(options)
        target = TargetConfig(model=options.target) if options.target else None
        config = preset(options.hierarchy, target, options.drafts)
    else:
        if options.drafts:
            raise HierspecError("--draft goes with a preset; a hierarchy file names its own levels")
        config = HierarchyConfig.load(options.hierarchy)
        if options.target:
            changed = dataclasses.replace(config.target, model=options.target)
            config = dataclasses.replace(config, target=changed)
    changes = {"dtype": options.dtype, "device": options.device}
    changes = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace(config, target=dataclasses.replace(config.target, **changes))


def _check(options: Options) -> None:
    """Refuse options that would be ignored, or spoil each other's output."""
    if options.logprobs and not options.as_json:
        raise HierspecError(
            "--logprobs are printed with --json only: add it, or leave --logprobs out"
        )
    if options.as_json and options.trace is not None and str(options.trace) == "-":
        raise HierspecError("--json and --trace - both write to standard output: trace to a file")


def _check_drafts(options: Options) -> None:
    chosen = PRESETS.get(options.hierarchy)
    if chosen is None or chosen.max_drafts is None:
        return
    if len(options.drafts) > chosen.max_drafts:
        uses = {0: "no draft model", 1: "one draft model"}.get(
            chosen.max_drafts, f"{chosen.max_drafts} draft models"
        )
        given = len(options.drafts)
        raise HierspecError(f"preset {chosen.name!r} uses {uses}, and --draft names {given}")


def _prompts(options: Options) -> list[str]:
    if options.prompts is not None:
        if options.prompt is not None:
            raise HierspecError("give a PROMPT or --prompts FILE, not both")
        return read_prompts(options.prompts)
    if options.prompt is None:
        raise HierspecError(
            'give a prompt: hierspec generate "def add(a, b):", - or --prompts FILE'
        )
    return [read_stdin() if options.prompt == "-" else options.prompt]


def _plain(hierarchy: Any) -> Any:
    """The same target without levels, on the same weights."""
    from hierspec.api import Hierarchy
    from hierspec.config.build import Built

    root = dataclasses.replace(hierarchy.root, index=0, below=None)
    return Hierarchy(Built(root, hierarchy.tokenizer, hierarchy.config))


def _drive(generation: Generation, hierarchy: Any, batch: Sequence[str], options: Options) -> bool:
    """Run the batch, painting a single prompt as it streams; True if the user stopped it."""

    painter = None
    if not options.as_json and len(batch) == 1:
        levels = [generation.names[i] for i in sorted(generation.names)]
        painter = Painter(Console(highlight=False), levels[:-1], levels[-1])
        painter.legend()
        painter.prompt(batch[0])
    events = iter(generation)
    try:
        for event in events:
            if painter is not None:
                painter.token(event)
    except KeyboardInterrupt:
        events.close()  # type: ignore[attr-defined]
        return True
    finally:
        if painter is not None:
            painter.end()
    return False


def _report(
    results: list[GenerationResult],
    others: list[GenerationResult | None],
    options: Options,
    greedy: bool,
    notes: Console,
) -> None:

    for result, plain in zip(results, others, strict=True):
        same = result.token_ids == plain.token_ids if plain is not None and greedy else None
        if options.as_json:
            out = result.to_dict()
            if plain is not None:
                out["compare"] = {
                    "tokens_per_second": plain.tokens_per_second,
                    "speedup": result.tokens_per_second / plain.tokens_per_second
                    if plain.tokens_per_second
                    else None,
                    "same_tokens": same,
                }
            print(json.dumps(out, ensure_ascii=False), flush=True)
            continue
        if len(results) > 1:
            print(result.text)
            notes.print(figures(result, plain, same), highlight=False)
            continue
        for line in summary(result, plain, same):
            notes.print(line, highlight=False)
    if not options.as_json and len(results) > 1:
        for line in levels(results[0]):
            notes.print(line, highlight=False)


@contextlib.contextmanager
def _noting(notes: Console) -> Iterator[None]:
    """Our warnings as notes; those of others as they were."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VocabularyWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, VocabularyWarning):
            notes.print(f"hierspec: note: {warning.message}", soft_wrap=True, highlight=False)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


@contextlib.contextmanager
def _waiting(notes: Console, what: str, shown: bool) -> Iterator[None]:
    if shown and notes.is_terminal:
        with notes.status(what):
            yield
    else:
        yield


@contextlib.contextmanager
def _tracing(path: Path | None) -> Iterator[Any]:
    """A tracer that writes to ``path``, line by line, so that an interrupted run keeps its own."""
    if path is None:
        yield None
        return
    from hierspec.engine.trace import JsonLinesTracer

    try:
        stream = sys.stdout if str(path) == "-" else path.open("w", encoding="utf-8")
    except OSError as error:
        raise HierspecError(f"cannot write the trace to {path}: {error.strerror}") from None
    try:
        yield JsonLinesTracer(stream)
    finally:
        if stream is not sys.stdout:
            stream.close()
