"""``hierspec bench``: methods side by side, as a table, a results file, a page and pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ..bench import results as files
from ..bench import spec_bench as questions
from ..bench.catalogue import Entry, catalogue, select
from ..bench.environment import environment
from ..bench.locking import locked
from ..bench.ours import Models
from ..bench.planned import Planning
from ..bench.planned import settings as profiling
from ..bench.prompts import Prompts, choose
from ..bench.run import Bench, Settings
from ..checks import temperature as check_temperature
from ..config import TargetConfig
from ..presets import shipped_drafts
from ..threads import use as use_threads
from .bench_options import (
    Options,
    check_from,
    check_outputs,
    nothing_measured,
    profile_path,
    to_go_on,
    to_show_again,
)
from .bench_show import say, show, show_list
from .profile import progress

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
        raise ValueError(f"--seed must be at least 0 and below 2**63, not {options.seed}")
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
        raise ValueError(
            "the target has no tokenizer beside it, and prompts are texts: save one into its folder"
        )
    longest = models.plain.root.model.max_length
    found = []
    for text in prompts:
        ids = models.tokenizer(text, verbose=False)["input_ids"]
        if not ids or len(ids) + tokens > longest:
            raise ValueError(
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
        raise ValueError(
            f"{options.prompts} is not what was measured on ({settings['prompts']['file']}): "
            "give that file, or leave --prompts out"
        )
    return prompts.asked


def _notes(options: Options, prompts: Prompts) -> list[str]:
    notes = []
    if options.target.startswith("zoo:large"):
        from ..zoo.inflate import DEFAULT_EPS

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
    from ..checkpoints import load_tokenizer
    from ..zoo import registry

    return load_tokenizer(registry.resolve(target) if target.startswith("zoo:") else target)
