"""Training exit heads on a frozen model, so that they come near its final distribution [P1 §4.1].

5 % warm-up, cosine decay, two epochs, as the paper says; it prints the learning rate as 2⁻⁴, which
is read here as 2·10⁻⁴. Optimiser and batch size are not printed: AdamW, and the settings' defaults.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from hierspec.config import exit_heads as files
from hierspec.config.checkpoints import load_tokenizer
from hierspec.errors import HierspecError
from hierspec.lm.exit_heads import Heads
from hierspec.lm.load import DTYPES, load
from hierspec.training import restart
from hierspec.training.fit import (
    CosineSchedule,
    Losses,
    Objective,
    Phase,
    Schedule,
    TrainingStep,
    fit,
)
from hierspec.utils import machine
from hierspec.utils.files import expanded, file_key, probe, write_whole
from hierspec.zoo import fingerprint, registry

from .data import Report, Texts, choose, from_files
from .frozen import Frozen
from .settings import HeadsSettings

_CHOSEN, _BEFORE, _TRAINED = 0.2, 0.25, 0.95  # of a progress bar, roughly


def train(
    model: str,
    settings: HeadsSettings,
    output: Path | None = None,
    texts: Sequence[Path] = (),
    *,
    dtype: str = "auto",
    device: str = "auto",
    overwrite: bool = False,
    report: Report = lambda stage, share: None,
    stop_after: int | None = None,
) -> files.HeadsFile:
    """Train heads and write them, with a JSON report of the same name beside them.

    An interrupted training leaves a folder ``OUTPUT.training``; the same call goes on from there
    and ends with the same heads. With other settings it is refused, unless ``overwrite``.

    Args:
        model: directory, hub id or ``zoo:NAME``.
        output: default: ``exit_heads.safetensors`` in the model's directory.
        texts: files and folders; default: for the shipped family the text it was trained on, for
            any other model what it writes itself.
        report: told what is being done, and the share of it that is done.
        stop_after: stop after so many steps, as if interrupted.

    Raises:
        ValueError: an exit out of range, too little text, a file in the way, an interrupted
            training of other settings, an output that cannot be written.
        KeyboardInterrupt: stopped; nothing that was done is lost.
    """
    path = target_file(model, output)
    if path.exists() and not overwrite:
        raise HierspecError(f"{path} exists already: give another -o, or --overwrite")
    folder = path.with_name(f"{path.name}.training")
    asked = _described(model, dtype, settings)
    if not overwrite:
        restart.check(folder, asked, "--overwrite")
    probe(path, "the heads", "give another -o")
    given = from_files(texts)
    report("loading the model", 0.0)
    backend, tokenizer = _load(model, dtype, device)
    _check_exits(settings, backend)
    if not texts and not registry.is_shipped(model):  # what the model writes is kept
        restart.keep(folder, {key: asked[key] for key in ("model", "dtype", "seed")})
    chosen = choose(
        model,
        backend,
        tokenizer,
        settings,
        (given, ", ".join(path.name for path in texts)) if texts else None,
        folder,
        lambda stage, share: report(stage, share * _CHOSEN),
    )
    mark = fingerprint.weights(model) if fingerprint.found(model) else None
    asked |= {"texts": chosen.source["sha256"], "weights": mark}
    if not overwrite:
        restart.check(folder, asked, "--overwrite")
    label = "heads-" + file_key(
        [asdict(settings), chosen.source["sha256"], mark, str(backend.dtype)]
    )
    exits = tuple(sorted(set(settings.exits)))
    frozen, heads = Frozen(backend, exits), Heads(settings.kind, exits, backend)

    def measured(stage: str, start: float, end: float) -> dict[str, dict[str, float]]:
        return frozen.measure(
            heads, chosen.held_out, lambda share: report(stage, start + share * (end - start))
        )

    before = restart.once(
        folder / f"{label}.before.json", lambda: measured("measuring", _CHOSEN, _BEFORE)
    )
    schedule = _schedule(settings, chosen)
    restart.keep(folder, asked)
    found = fit(
        heads,
        _objective(frozen, heads, chosen, schedule, report),
        schedule,
        folder,
        settings.seed,
        label,
        stop_after=stop_after,
        optimisers=_adamw,
        console=Console(quiet=True),
    )
    if found["steps"] < schedule.steps:
        raise KeyboardInterrupt
    heads.round_to(backend.dtype)
    info = {
        "kind": settings.kind,
        "exits": list(exits),
        "model": backend.name,
        "fingerprint": mark,
        "hidden_size": backend.hidden_size,
        "vocab_size": backend.vocab_size,
        "num_layers": backend.num_layers,
        "input_size": heads.width,
        "dtype": str(backend.dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in heads.parameters()),
        "settings": {**asdict(settings), "exits": list(exits)},
        "steps": found["steps"],
        "seconds": found["seconds"],
        "texts": chosen.source,
        "before": before,
        "after": measured("measuring again", _TRAINED, 1.0),
    }
    files.write(path, heads, backend.dtype, info)
    _write_report(path, info, folder / f"{label}.jsonl", backend)
    shutil.rmtree(folder)
    return files.read(path)


def _described(model: str, dtype: str, settings: HeadsSettings) -> dict[str, Any]:
    """What is known of a training before anything is loaded, as JSON holds it."""
    place = expanded(model)
    return {
        "model": str(place.resolve()) if place.is_dir() else model,
        "dtype": dtype,
        **asdict(settings),
        "exits": sorted(set(settings.exits)),
    }


def target_file(model: str, output: Path | None) -> Path:
    """Where heads go: beside a model in a directory, elsewhere only where one says."""
    if output is not None:
        path = output / files.FILE if output.is_dir() else output
        if path.suffix != ".safetensors":
            raise HierspecError(f"heads are written as .safetensors; -o says {output}")
        return path
    if model.startswith(registry.PREFIX) or not expanded(model).is_dir():
        raise HierspecError(f"{model} is no directory to write heads into: say where with -o FILE")
    return expanded(model) / files.FILE


def _load(model: str, dtype: str, device: str) -> tuple[Any, Any]:
    """The model through transformers' own modules, which gradients can pass, and its tokenizer."""
    known = {str(one).removeprefix("torch."): one for one in DTYPES}
    if dtype != "auto" and dtype not in known:
        raise HierspecError(f"dtype must be auto or one of {', '.join(known)}; got {dtype!r}")
    source = registry.resolve(model) if registry.resolves(model) else model
    where = machine.device(device)
    return load(source, known.get(dtype), where, backend="hf"), load_tokenizer(source)


def _check_exits(settings: HeadsSettings, backend: Any) -> None:
    last = backend.num_layers - 1
    if min(settings.exits) < 1 or max(settings.exits) > last:
        raise HierspecError(
            f"exits must lie between 1 and {last} for {backend.name}, which has {last + 1} layers "
            f"(the last needs no head of its own); got {', '.join(map(str, settings.exits))}"
        )
    if settings.width > backend.max_length:
        raise HierspecError(
            f"windows of {settings.width} tokens exceed the longest context of {backend.name}, "
            f"{backend.max_length}: give a smaller --width"
        )


def _schedule(settings: HeadsSettings, texts: Texts) -> CosineSchedule:
    """As many steps as the epochs hold batches."""
    per_step = settings.rows * settings.width
    steps = settings.steps or math.ceil(settings.epochs * texts.stream.tokens_per_pass / per_step)
    return CosineSchedule(
        steps, (Phase(1.0, settings.rows, settings.width),), other_rate=settings.learning_rate
    )


def _adamw(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """No weight decay: it would pull a transform back to the exit it started from."""
    return [torch.optim.AdamW(model.parameters(), lr=schedule.other_rate, weight_decay=0.0)]


def _objective(
    frozen: Frozen, heads: Heads, texts: Texts, schedule: CosineSchedule, report: Report
) -> Objective:
    """The sum over exits of KL(final ‖ exit): each head's gradient is its own."""

    def objective(now: TrainingStep) -> Losses:
        share = _BEFORE + now.done * (_TRAINED - _BEFORE)
        report(f"training, {schedule.steps} steps", share)
        ids, _ = texts.stream.batch(now.number, now.phase.rows, now.phase.width)
        kl, tv = frozen.distances(heads, frozen.states(ids))
        parts = {}
        for i, layer in enumerate(frozen.exits):
            parts |= {f"kl@{layer}": kl[i].detach(), f"tv@{layer}": tv[i].detach()}
        return kl.sum(), parts

    return objective


def _write_report(path: Path, info: dict[str, Any], log: Path, backend: Any) -> None:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    curve = list({line["step"]: line for line in lines}.values())  # a resumed run repeats some
    whole = {"schema_version": files.SCHEMA, **info, "curve": curve}
    whole["environment"] = machine.hardware(backend.device)
    write_whole(path.with_suffix(".json"), json.dumps(whole, indent=1) + "\n", "the report")
