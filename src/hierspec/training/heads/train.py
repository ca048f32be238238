"""Train exit heads on a frozen model to approximate its final distribution [P1 §4.1].

5 % warm-up, cosine decay, two epochs, as the paper says; it prints the learning rate as 2⁻⁴, which
is read here as 2·10⁻⁴. Optimiser and batch size are not printed: AdamW, and the settings' defaults.

The frozen model reads every text once; heads are trained on its hidden states, at positions drawn
from all texts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from hierspec.config import exit_heads as files
from hierspec.errors import HierspecError
from hierspec.lm.encoder_decoder import check_decoder_only
from hierspec.lm.exit_heads import FULL, MLP, Heads
from hierspec.profiling.settings import Report
from hierspec.training import restart
from hierspec.training.fit import (
    CosineSchedule,
    Losses,
    Objective,
    Schedule,
    TrainingStep,
    curve,
    fit,
)
from hierspec.training.losses import kl_then_tv
from hierspec.training.models import check_width, load_model, output_file
from hierspec.utils import machine
from hierspec.utils.files import check_writable, expand_user, json_digest, write_atomically
from hierspec.zoo import fingerprint, registry

from . import least_squares
from .data import choose, from_files
from .frozen import FIGURES, Frozen
from .settings import HeadsSettings
from .states import KeptStates, Piece

_CHOSEN, _KEPT, _BEFORE, _TRAINED = 0.1, 0.4, 0.45, 0.95  # shares of all work, roughly
_MEASURED_ROWS = 512  # at once
Measured = dict[str, dict[str, dict[str, float]]]  # by domain, exit, name
ALL = ""  # key of the figures over all domains


def train(
    model: str,
    settings: HeadsSettings,
    output: Path | None = None,
    texts: Sequence[Path] = (),
    *,
    dtype: str = "auto",
    device: str = "auto",
    overwrite: bool = False,
    states: Path | None = None,
    start_from: Path | None = None,
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
            any other model texts that it writes itself.
        states: a folder for hidden states, to be reused by further trainings of the same exits;
            default: inside ``OUTPUT.training``, deleted with it.
        start_from: heads of the same kind, exits and sizes to begin with. Full heads keep their
            vocabulary; others get that of the texts.
        report: called with what is being done, and the share of it that is done.
        stop_after: stop after so many steps, as if interrupted.

    Raises:
        HierspecError: an exit out of range, too little text, a file in the way, an interrupted
            training of other settings, an output that cannot be written.
        KeyboardInterrupt: stopped; nothing that was done is lost.
    """
    path = output_file(model, output, files.FILE)
    if path.exists() and not overwrite:
        raise HierspecError(f"{path} exists already: give another -o, or --overwrite")
    folder = path.with_name(f"{path.name}.training")
    asked = _asked(model, dtype, settings)
    if not overwrite:
        restart.check(folder, asked, "--overwrite")
    check_writable(path, "the heads", "give another -o")
    given = from_files(texts)
    report("loading the model", 0.0)
    # Gradients pass through transformers' own modules alone.
    backend, tokenizer = load_model(model, dtype, device, "hf")
    check_decoder_only(backend, "training of heads", "its exits draft without heads (early_exit)")
    _check_fit(settings, backend)
    initial = None if start_from is None else _read_start(start_from, settings)
    if not texts and not registry.is_shipped(model):  # the texts that the model writes are kept
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
    weights = fingerprint.compute_if_local(model)
    start = None if initial is None else fingerprint.compute(str(initial.path))
    asked |= {"texts": chosen.source["sha256"], "weights": weights, "start_from": start}
    if not overwrite:
        restart.check(folder, asked, "--overwrite")
    label = "heads-" + json_digest(
        [asdict(settings), chosen.source["sha256"], weights, str(backend.dtype), start]
    )
    exits = tuple(sorted(set(settings.exits)))
    vocabulary = (
        initial.vocabulary()
        if initial is not None and settings.kind == FULL
        else most_frequent(
            [*chosen.train, *chosen.further], settings.vocabulary, backend.vocab_size
        )
    )
    inner = (settings.inner or 2 * backend.hidden_size) if settings.kind == MLP else 0
    frozen = Frozen(backend, exits)
    heads = Heads(settings.kind, exits, backend, vocabulary, inner, settings.seed)
    if initial is not None:
        files.load_into(heads, initial)
    kept = KeptStates(
        states or folder,
        f"states-{json_digest([weights, model, exits, str(backend.dtype)])}",
        frozen,
    )
    kept.compute(
        [*chosen.train, *chosen.held_out],
        lambda share: report("the model reads", _CHOSEN + share * (_KEPT - _CHOSEN)),
    )

    def measured(stage: str, start: float, end: float) -> Measured:
        return _measured(
            heads,
            kept,
            chosen.held_out,
            lambda share: report(stage, start + share * (end - start)),
        )

    before = restart.once(
        folder / f"{label}.before.json", lambda: measured("measuring", _KEPT, _BEFORE)
    )
    rows = kept.rows_of(chosen.train)
    schedule = settings.schedule(len(rows))
    if initial is None and not (folder / f"{label}.pt").exists():
        report("a first guess by least squares", _BEFORE)
        least_squares.initialise(heads, kept, rows, settings.seed)
    restart.keep(folder, asked)
    found = fit(
        heads,
        _objective(kept, heads, rows, settings, schedule, report),
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
    stored = torch.bfloat16 if settings.kind == MLP else backend.dtype
    heads.round_to(stored)
    after = measured("measuring again", _TRAINED, 1.0)
    info = {
        "kind": settings.kind,
        "exits": list(exits),
        "model": backend.name,
        "fingerprint": weights,
        "hidden_size": backend.hidden_size,
        "vocab_size": backend.vocab_size,
        "num_layers": backend.num_layers,
        "input_size": heads.width,
        **({"inner_size": inner} if inner else {}),
        **({} if vocabulary is None else {"vocabulary_size": len(vocabulary)}),
        "dtype": str(stored).removeprefix("torch."),
        "parameters": sum(p.numel() for p in heads.parameters()),
        "settings": {**asdict(settings), "exits": list(exits)},
        "steps": found["steps"],
        "seconds": found["seconds"],
        "texts": chosen.source,
        "before": before[ALL],
        "after": after[ALL],
        "domains": {domain: figures for domain, figures in after.items() if domain != ALL},
    }
    files.write(path, heads, stored, info)
    _write_report(path, info, folder / f"{label}.jsonl", backend)
    shutil.rmtree(folder)
    return files.read(path)


def _asked(model: str, dtype: str, settings: HeadsSettings) -> dict[str, Any]:
    """Return the request that identifies a training before anything is loaded, for JSON."""
    place = expand_user(model)
    return {
        "model": str(place.resolve()) if place.is_dir() else model,
        "dtype": dtype,
        **asdict(settings),
        "exits": sorted(set(settings.exits)),
    }


def _check_fit(settings: HeadsSettings, backend: Any) -> None:
    last = backend.num_layers - 1
    if min(settings.exits) < 1 or max(settings.exits) > last:
        raise HierspecError(
            f"exits must lie between 1 and {last} for {backend.name}, which has {last + 1} layers "
            f"(the last needs no head of its own); got {', '.join(map(str, settings.exits))}"
        )
    if settings.vocabulary is not None and settings.vocabulary >= backend.vocab_size:
        raise HierspecError(
            f"a vocabulary of {settings.vocabulary} tokens is no part of the model's "
            f"{backend.vocab_size}: give fewer, or leave --vocabulary out"
        )
    check_width(settings.width, backend)


def most_frequent(
    pieces: Sequence[Piece], size: int | None, vocab_size: int
) -> torch.Tensor | None:
    """Return ids [size] of the tokens that most often follow texts' positions, ascending.

    Of equally frequent ones the lowest: merges of a BPE are numbered by how frequent they were.
    """
    if size is None:
        return None
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for piece in pieces:
        after = piece.positions + 1
        counts += torch.bincount(
            piece.ids[after[after < len(piece.ids)]].long(), minlength=vocab_size
        )
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def _read_start(path: Path, settings: HeadsSettings) -> files.HeadsFile:
    """Read the heads to begin with.

    Raises:
        HierspecError: they are of another kind or size, or for other exits.
    """
    file = files.read(path)
    size = file.info.get("vocabulary_size")
    same = (settings.kind, tuple(sorted(set(settings.exits)))) == (file.kind, file.exits)
    if not same or (settings.kind == FULL and settings.vocabulary != size):
        raise HierspecError(
            f"{file.path} holds heads of kind {file.kind} after layers "
            f"{', '.join(map(str, file.exits))} that score {size or 'all'} tokens; to start from "
            "them ask for the same"
        )
    return file


def _adamw(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Build AdamW without weight decay, which would pull a transform back to its exit."""
    return [torch.optim.AdamW(model.parameters(), lr=schedule.other_rate, weight_decay=0.0)]


def _objective(
    kept: KeptStates,
    heads: Heads,
    rows: torch.Tensor,
    settings: HeadsSettings,
    schedule: CosineSchedule,
    report: Report,
) -> Objective:
    """Return the sum over exits of their distances: each head's gradient is its own.

    Batches are positions of all texts in a random order, anew in every pass.
    """
    frozen, seed = kept.frozen, settings.seed
    orders: dict[int, torch.Tensor] = {}

    def shuffled(number: int) -> torch.Tensor:
        if number not in orders:
            orders.clear()
            generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
            orders[number] = rows[torch.randperm(len(rows), generator=generator)]
        return orders[number]

    def batch(number: int, size: int) -> torch.Tensor:
        parts, at = [], number * size
        while size > 0:
            turn, place = divmod(at, len(rows))
            part = shuffled(turn)[place : place + size]
            parts.append(part)
            at, size = at + len(part), size - len(part)
        return torch.cat(parts)

    def objective(now: TrainingStep) -> Losses:
        share = _BEFORE + now.done * (_TRAINED - _BEFORE)
        report(f"training, {schedule.steps} steps", share)
        states = kept.read(batch(now.number, now.phase.rows * now.phase.width))
        kl, tv = frozen.distances(heads, states)
        parts = {}
        for i, layer in enumerate(frozen.exits):
            parts |= {f"kl@{layer}": kl[i].detach(), f"tv@{layer}": tv[i].detach()}
        if settings.loss == "tv":
            return kl_then_tv(kl, tv, now.done).sum(), parts
        return kl.sum(), parts

    return objective


def _measured(
    heads: Heads, kept: KeptStates, pieces: Sequence[Piece], report: Callable[[float], None]
) -> Measured:
    """Return means over all positions of texts, and over those of each domain."""
    domains: dict[str, list[Piece]] = {}
    for piece in pieces:
        domains.setdefault(piece.domain, []).append(piece)
    frozen, exits = kept.frozen, kept.frozen.exits
    sums, counts = {}, {}
    for number, (domain, own) in enumerate(sorted(domains.items())):
        rows = kept.rows_of(own)
        counts[domain] = len(rows)
        sums[domain] = torch.zeros(len(exits), len(FIGURES), dtype=torch.float64)
        for at in range(0, len(rows), _MEASURED_ROWS):
            report((number + at / len(rows)) / len(domains))
            sums[domain] += frozen.measure(heads, kept.read(rows[at : at + _MEASURED_ROWS]))
    sums[ALL], counts[ALL] = torch.stack(list(sums.values())).sum(0), sum(counts.values())
    names = FIGURES if heads.ids is not None else FIGURES[:3]
    return {
        domain: {
            str(layer): {
                name: round(value / counts[domain], 4)
                for name, value in zip(names, row, strict=False)
            }
            for layer, row in zip(exits, total.tolist(), strict=True)
        }
        for domain, total in sums.items()
    }


def _write_report(path: Path, info: dict[str, Any], log: Path, backend: Any) -> None:
    whole = {"schema_version": files.SCHEMA, **info, "curve": curve(log)}
    whole["environment"] = machine.hardware(backend.device)
    write_atomically(path.with_suffix(".json"), json.dumps(whole, indent=1) + "\n", "the report")
