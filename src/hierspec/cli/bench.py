"""``hierspec bench``: methods side by side, as a table, a results file, a page and pictures.

``hierspec bench serve`` stands in a file of its own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierspec.errors import HierspecError

from .bench_serve import serve
from .options import (
    MODEL,
    Device,
    Dtype,
    Prompts,
    ShowList,
    Temperatures,
    Threads,
    given,
    listed,
    load_tokenizer,
    target_config,
    to_measure_at,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hierspec.bench.chats import ChatTurn
    from hierspec.bench.methods.entry import MethodEntry
    from hierspec.bench.methods.ours import BenchModels
    from hierspec.bench.prompt_split import Prompts as ChosenPrompts
    from hierspec.bench.records import BenchResults, BenchSettings
    from hierspec.bench.spec_bench import SpecBenchQuestion

SEEDS = 2**63  # prompt i has the seed + i, and generators take 64 bits
_USED = ("--from", "--report", "--plots", "--spec-bench", "--json")  # where nothing is measured
# α(trunk, large) by eps at temperature 1, from the shipped family's model card.
_AGREEMENT = {0.05: 0.98, 0.1: 0.96, 0.2: 0.92}

app = typer.Typer()
app.command("serve")(serve)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    target: Annotated[str, typer.Option(help=f"Target model: {MODEL}.")] = "zoo:large?eps=0.2",
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft model, or ngram, prompt-lookup, suffix, exit:LAYER, eagle3:FOLDER or "
            "quantized, quantized:4, smallest first; repeated, or with commas between. "
            "Default for the shipped family: zoo:small and zoo:trunk."
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Names (--list shows them) or groups: all, papers, baselines, peers, alone (each "
            "drafter by itself); separated by commas, or repeated. Default: all."
        ),
    ] = None,
    prompts: Prompts = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts to measure on, a multiple of --batch-size. Default: 16, or those built "
            "in but for --tune-prompts; whole batches of them.",
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
            "may be a folder, of whose files each domain gives as many.",
        ),
    ] = False,
    until_eos: Annotated[
        bool,
        typer.Option("--until-eos", help="Stop at end of text; else all outputs are equally long."),
    ] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Prompts decoded together; methods without batches sit out.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Random seed, below 2**63.")] = 0,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Results file, written as the bench goes on; the same command continues an "
            "interrupted one.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Measure anew where -o is there.")
    ] = False,
    stop_after: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="MINUTES",
            help="Begin no prompt after so long and sum up what is there (one prompt at each "
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
        bool, typer.Option("--json", help="Print the whole results object instead.")
    ] = False,
) -> int:
    """Measure decoding methods side by side: ours, the papers' systems, other engines.

    Methods take turns on every prompt; those with something to choose are tuned on other prompts
    first. Outputs are checked against plain decoding's, or against the target's law.

    Examples:

      hierspec bench --methods speculative,hierarchy,transformers -o results.json

      hierspec bench --from results.json --report report.html --plots plots
    """
    if context.invoked_subcommand is not None:
        if said := given(context):
            raise HierspecError(
                f"options of bench {context.invoked_subcommand} follow that word: "
                f"{' and '.join(said)} stand before it"
            )
        return 0

    from .rendering import interruptible, notes, say

    top, console = target_config(target, dtype, device), notes()
    files = _Files(
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
        from hierspec.bench.methods.catalogue import catalogue, select

        known = catalogue(listed(draft))
        if show_list:
            return _list(known, as_json)
        if from_ is not None:
            return _show_file(from_, files, given(context), console)
        files.check()
        temperatures = to_measure_at(temperature)
        if seed >= SEEDS:
            raise HierspecError(f"--seed must be at least 0 and below 2**63, not {seed}")

        from hierspec.bench.prompt_split import choose
        from hierspec.bench.records import BenchSettings
        from hierspec.utils.threads import use_threads

        use_threads(threads)
        drafts = _drafts(target) if draft is None else tuple(listed(draft))
        known = catalogue(drafts)
        chosen = choose(target, prompts, num_prompts, tune_prompts, batch_size, chat)
        entries = select(methods or ["all"], known)
        settings = BenchSettings(
            target=target,
            dtype=top.dtype,
            device=top.device,
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
            size = f"{len(entries)} methods, {len(temperatures)} temperatures"
            say(console, f"hierspec: note: {size}; -o FILE keeps the results, --methods chooses")
        seconds = None if stop_after is None else 60 * stop_after
        data, tokenizer = _measure(
            settings, entries, chosen, files, draft is not None, seconds, console
        )
        if output is not None:
            say(console, f"written to {output}")
        return _show(data, files, tokenizer, chosen.asked, console)


def _drafts(target: str) -> tuple[str, ...]:
    """Return the drafts of a target that the command line names none for."""
    from hierspec.profiling.candidates import default_names
    from hierspec.zoo.registry import SMOLLM2, shipped_drafts

    released = target.removeprefix("zoo:") == SMOLLM2
    return tuple(default_names(target)) if released else shipped_drafts(target)


def _nothing_measured() -> str:
    return "nothing was measured"


@dataclass(slots=True, kw_only=True)
class _Files:
    """What is read and written.

    Attributes:
        results: the results file (``-o``); ``source``: one to show (``--from``).
        next_step: what to say to a user who cuts it short now; found out when it happens, because
            the results may have been finished a moment ago.
    """

    results: Path | None
    overwrite: bool
    source: Path | None
    prompts: Path | None
    report: Path | None
    plots: Path | None
    spec_bench: Path | None
    as_json: bool
    next_step: Callable[[], str] = _nothing_measured

    def check(self) -> None:
        """Refuse what would fail after minutes of measuring."""
        from hierspec.utils.files import probe, probe_folder

        if self.results is not None:
            probe(self.results, "results")
        if self.report is not None:
            regular = self.report.is_file() or not self.report.exists()
            if regular and self.report.suffix.lower() != ".html":
                raise HierspecError(
                    f"--report writes a page: give it a name that ends in .html, not {self.report}"
                )
            if self.results and self.report.resolve() == self.results.resolve():
                raise HierspecError(f"-o and --report both name {self.report}: choose two files")
            probe(self.report, "a page")
        if self.spec_bench is not None:
            probe(self.spec_bench, "answers")
        if self.plots is not None:
            from hierspec.plotting.figures import matplotlib

            matplotlib()
            probe_folder(self.plots, self.plots, "pictures")

    @property
    def profile(self) -> Path | None:
        """The profile of planned methods, beside the results file."""
        return self.results and self.results.with_suffix(".profile.json")

    def to_go_on(self) -> str:
        """Say how to measure what is missing; as :meth:`to_show_again` where nothing is."""
        from hierspec.bench.results import is_finished

        if self.results is None:
            return "-o FILE keeps it"
        if is_finished(self.results):  # the same command would be refused
            return self.to_show_again()
        same = "the same command without --overwrite" if self.overwrite else "the same command"
        return f"{same} continues where it stopped"

    def to_show_again(self) -> str:
        """Say where the results are, and the command that makes the files which were asked for."""
        path = self.source or self.results
        if path is None:
            return "the results are measured, but in no file; -o FILE keeps them"
        words = ["hierspec", "bench", "--from", str(path)]
        for name in ("report", "plots", "spec_bench"):
            if (value := getattr(self, name)) is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        if self.spec_bench is not None and self.prompts is not None:
            words += ["--prompts", str(self.prompts)]
        if self.as_json:
            words.append("--json")
        return f"the results are in {path}; {shlex.join(words)} shows them"


def _list(known: Mapping[str, MethodEntry], as_json: bool) -> int:
    from rich.text import Text

    from hierspec.utils.terminal import borderless, console

    keys = ("name", "title", "group", "source", "summary", "lossless")
    if as_json:
        print(json.dumps([{key: getattr(entry, key) for key in keys} for entry in known.values()]))
        return 0
    table = borderless(("method", "group", "source", ""))
    for entry in known.values():
        lossy = "" if entry.lossless else " (not lossless)"
        row = (entry.name, entry.group, entry.source, f"{entry.summary}{lossy}")
        table.add_row(*map(Text, row))
    # A list folds into COLUMNS where they are set; a table of results that is piped never does.
    console(columns=True).print(table)
    return 0


def _show_file(path: Path, files: _Files, options: Sequence[str], console: Console) -> int:
    """Show what was measured before."""
    from hierspec.bench import results

    ignored = [name for name in options if name not in _USED]
    if files.spec_bench is not None and "--prompts" in ignored:  # the questions behind answers
        ignored.remove("--prompts")
    if ignored:
        raise HierspecError(f"--from {path} measures nothing: leave {' and '.join(ignored)} out")
    files.check()
    data = results.read(path)
    files.next_step = files.to_show_again
    tokenizer, asked = None, ()
    if files.spec_bench is not None:
        asked = _asked(files.prompts, data.settings)
        tokenizer = load_tokenizer(data.settings.target)
    return _show(data, files, tokenizer, asked, console)


def _asked(path: Path | None, settings: BenchSettings) -> tuple[SpecBenchQuestion, ...]:
    """Return the questions behind the prompts of a results file; none without ``--prompts``.

    Raises:
        HierspecError: other prompts were measured.
    """
    from hierspec.bench.prompt_split import choose

    if path is None or settings.chat:
        return ()
    prompts = choose(settings.target, path, settings.num_prompts, settings.tune_prompts)
    if prompts.identity["sha256"] != settings.prompts["sha256"]:
        raise HierspecError(
            f"{path} is not what was measured on ({settings.prompts['file']}): "
            "give that file, or leave --prompts out"
        )
    return prompts.asked


def _show(
    data: BenchResults,
    files: _Files,
    tokenizer: Any,
    asked: Sequence[SpecBenchQuestion],
    console: Console,
) -> int:
    """Show the table or the object, and write whatever files were asked for."""
    from hierspec.bench import spec_bench
    from hierspec.bench.report import page, pictures, table
    from hierspec.utils import terminal

    from .rendering import say

    if files.as_json:
        print(json.dumps(data.to_dict()))
    else:
        shown = terminal.console()
        for part in table.rendered(data):
            shown.print(part)
    if files.plots is not None:
        for path in pictures.draw(data, files.plots):
            say(console, f"drawn: {path}")
    if files.report is not None:
        page.write(data, files.report)
        say(console, f"written: {files.report}")
    if files.spec_bench is not None:
        written = spec_bench.write(data, files.spec_bench, tokenizer, asked)
        example = f", such as {written[0]}" if written else ""
        say(console, f"written: {len(written)} answer files{example}")
    return 0


def _measure(
    settings: BenchSettings,
    entries: Sequence[MethodEntry],
    prompts: ChosenPrompts,
    files: _Files,
    load_drafts: bool,
    seconds: float | None,
    console: Console,
) -> tuple[BenchResults, Any]:
    """Measure, or go on measuring; return the results and the target's tokenizer.

    The results file is begun when all models are loaded.
    """
    from hierspec.bench import results
    from hierspec.bench.methods import planned
    from hierspec.bench.methods.ours import BenchModels
    from hierspec.bench.run import Bench
    from hierspec.lm import dtypes
    from hierspec.utils.machine import environment

    from .rendering import progress

    notes = [*_target_notes(settings.target), *prompts.notes]
    fresh = results.make(settings, environment(), notes)
    with results.locked(files.results):
        data = results.resume(files.results, fresh, files.overwrite)
        if data is not fresh:
            files.next_step = files.to_go_on
        with progress(console, f"bench of {settings.target}") as bar:

            def report(stage: str, share: float) -> None:
                bar(stage if console.is_terminal else stage.partition(" · ")[0], share)

            report("loading the target", 0.0)
            target = target_config(settings.target, settings.dtype, settings.device)
            models = BenchModels(target, settings.drafts)
            if load_drafts:
                report("loading the drafts", 0.0)
                models.load_drafts()
            measured = _token_ids(models, prompts.measured, settings.max_new_tokens)
            longest = max(settings.tune_tokens, settings.max_new_tokens)  # methods warm up on them
            tuning = _token_ids(models, prompts.tuning, longest)
            note = f"weights in {dtypes.weight_dtype_name(models.plain.root.model)}"
            if settings.dtype == "auto" and note not in data.notes:
                data.notes.append(note)
            _begin(files, data)
            files.next_step = files.to_go_on
            further = prompts.profiling[len(prompts.tuning) :]
            profiled = [*tuning, *_token_ids(models, further, longest, skip=True)]
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
    files.next_step = files.to_show_again
    return data, models.tokenizer


def _begin(files: _Files, data: BenchResults) -> None:
    """Write the file before minutes of work; remove a profile that is to be measured anew."""
    from hierspec.bench import results

    if files.results is None:
        return
    results.write(files.results, data)
    if files.overwrite and files.profile is not None:
        files.profile.unlink(missing_ok=True)  # planned methods are measured anew as well


def _token_ids(
    models: BenchModels, prompts: Sequence[str | ChatTurn], tokens: int, skip: bool = False
) -> list[list[int]]:
    """Return prompts as ``generate`` reads them; each leaves room for what is to be written.

    Raises:
        HierspecError: one does not; with ``skip`` it is left out.
    """
    from hierspec.bench import chats

    if models.tokenizer is None:
        raise HierspecError(
            "the target has no tokenizer beside it, and prompts are texts: save one into its folder"
        )
    turns = [turn for turn in prompts if not isinstance(turn, str)]

    def answer(ids: list[int]) -> str:
        return models.plain.generate(ids, max_new_tokens=tokens).text

    of_turns = iter(chats.token_ids(models.tokenizer, turns, answer))
    longest = models.plain.root.model.max_length
    found = []
    for text in prompts:
        if isinstance(text, str):
            ids = models.tokenizer(text, verbose=False)["input_ids"]
        else:
            ids, text = next(of_turns), text.chat.turns[text.number]
        if not ids or len(ids) + tokens > longest:
            if skip:
                continue
            raise HierspecError(
                f"prompt {text[:40]!r} has {len(ids)} tokens; with {tokens} more it must fit into "
                f"the target's context of {longest}: leave it out, or lower --max-new-tokens"
            )
        found.append(list(ids))
    return found


def _target_notes(target: str) -> list[str]:
    """Return what the readers of the results should know of a synthetic target."""
    from hierspec.zoo.synthetic import DEFAULT_EPS

    if not target.startswith("zoo:large"):
        return []
    eps = target.partition("eps=")[2].partition("&")[0]
    try:
        value = float(eps) if eps else DEFAULT_EPS
    except ValueError:  # refused when the target is loaded, with the fix
        return []
    known = _AGREEMENT.get(value)
    alpha = f", α(trunk, large) = {known}" if known else ""
    return [f"zoo:large is a synthetic cost with a real distribution (eps {value:g}{alpha})"]
