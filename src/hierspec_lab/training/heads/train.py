"""Train exit heads on a frozen model to approximate its final distribution [P1 §4.1].

5 % warm-up, cosine decay, two epochs, as the paper says; it prints the learning rate as 2⁻⁴, which
is read here as 2·10⁻⁴. Optimiser and batch size are not printed: AdamW, and the settings' defaults.

The frozen model reads every text once; heads are trained on its hidden states, at positions drawn
from all texts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hierspec.config import exit_heads as files
from hierspec.errors import HierspecError, first_line
from hierspec.lm.backend import Backend
from hierspec.lm.encoder_decoder import validate_decoder_only
from hierspec.lm.exit_heads import FULL, MLP
from hierspec.lm.hf.decoder import HFBackend
from hierspec.profiling.settings import ReportProgress
from hierspec.utils.files import expand_user, json_digest, validate_writable
from hierspec.zoo import fingerprint, registry
from hierspec_lab.families.code import FAMILY
from hierspec_lab.training import resuming
from hierspec_lab.training.fit import Losses, Objective, Schedule, TrainingStep, curve, fit
from hierspec_lab.training.losses import kl_then_tv
from hierspec_lab.training.models import (
    load_model,
    output_file,
    partial_progress,
    validate_width,
    write_report,
)
from hierspec_lab.training.texts import from_files
from hierspec_lab.training.windows import slice_passes

from . import least_squares
from .data import choose_texts
from .frozen import FIGURES, Frozen
from .heads import Heads, write
from .settings import HeadsSettings
from .states import Piece, StateStore

# Shares of all work, roughly, that are done at the end of each stage.
_TEXTS_END, _STATES_END, _MEASURED_END, _TRAINING_END = 0.1, 0.4, 0.45, 0.95
_MEASURED_ROWS = 512  # at once
ALL = ""  # domain under which figures over all domains are listed
Figures = dict[str, dict[str, dict[str, float]]]  # by domain, exit and name


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
    report_progress: ReportProgress = lambda stage, share: None,
    stop_after: int | None = None,
) -> files.HeadsFile:
    """Train heads and write them, with a JSON report of the same name beside them.

    An interrupted training leaves a folder ``OUTPUT.training``; the same call goes on from there
    and ends with the same heads. A call with other settings is refused, unless ``overwrite``.

    Args:
        model: directory, hub id or ``zoo:NAME``.
        output: default: ``exit_heads.safetensors`` in the model's directory.
        texts: files and folders; default: for the shipped family the text it was trained on, for
            any other model texts that it writes itself.
        states: a folder for hidden states, to be reused by further trainings of the same exits;
            default: inside ``OUTPUT.training``, deleted with it.
        start_from: heads of the same kind, exits and sizes to begin with. Full heads score the same
            tokens as those; other kinds of heads score the tokens most frequent in the new texts.
        report_progress: called with the stage, and the share of all work that is done.
        stop_after: stop after so many steps, as if interrupted.

    Raises:
        HierspecError: an exit out of range, too little text, a file in the way, an interrupted
            training of other settings, an output that cannot be written.
        KeyboardInterrupt: stopped; nothing that was done is lost.
    """
    path = output_file(model, output, files.FILE, overwrite)
    folder = path.with_name(f"{path.name}.training")
    directory = expand_user(model)
    identity: dict[str, Any] = {
        "model": str(directory.resolve()) if directory.is_dir() else model,
        "dtype": dtype,
        **asdict(settings),
        "exits": sorted(set(settings.exits)),
    }
    if not overwrite:
        resuming.validate_settings(folder, identity, "--overwrite")
    validate_writable(path, "the heads", "give another -o")
    file_texts = from_files(texts)
    report_progress("loading the model", 0.0)
    # Gradients pass through transformers' own modules alone.
    backend, tokenizer = load_model(model, dtype, device, "hf")
    validate_decoder_only(
        backend, "training of heads", "its exits draft without heads (early_exit)"
    )
    assert isinstance(backend, HFBackend)
    _validate_settings(settings, backend)
    if settings.teacher is not None and start_from is None:
        raise HierspecError(f"teacher {settings.teacher} has no head yet: say --from which file")
    initial = None if start_from is None else _read_start(start_from, settings)
    if not texts and registry.family(model) != FAMILY:  # the texts that the model writes are kept
        resuming.save_settings(folder, {key: identity[key] for key in ("model", "dtype", "seed")})
    data = choose_texts(
        model,
        backend,
        tokenizer,
        settings,
        texts,
        file_texts,
        folder,
        partial_progress(report_progress, 0.0, _TEXTS_END),
    )
    weights = fingerprint.compute_if_local(model)
    start = None if initial is None else fingerprint.compute(str(initial.path))
    texts_hash = data.source["sha256"]
    identity |= {"texts": texts_hash, "weights": weights, "start_from": start}
    if not overwrite:
        resuming.validate_settings(folder, identity, "--overwrite")
    label = "heads-" + json_digest(
        [asdict(settings), texts_hash, weights, str(backend.dtype), start]
    )
    exits = tuple(sorted(set(settings.exits)))
    vocabulary = (
        initial.vocabulary()
        if initial is not None and settings.kind == FULL
        else most_frequent(
            [*data.train, *data.beyond_limit], settings.vocabulary, backend.vocab_size
        )
    )
    inner = (settings.inner or 2 * backend.hidden_size) if settings.kind == MLP else 0
    frozen = Frozen(backend, exits)
    heads = Heads(settings.kind, exits, backend, vocabulary, inner, settings.seed)
    if initial is not None:
        load_into(heads, initial)
    store = StateStore(
        states or folder,
        f"states-{json_digest([weights, model, exits, str(backend.dtype)])}",
        frozen,
    )
    store.compute(
        [*data.train, *data.held_out],
        partial(partial_progress(report_progress, _TEXTS_END, _STATES_END), "the model reads"),
    )

    def measure(stage: str, start: float, end: float) -> list[Figures]:
        report_share = partial(partial_progress(report_progress, start, end), stage)
        return [
            _measure_by_domain(heads, store, data.held_out, report_share, teacher)
            for teacher in dict.fromkeys((None, settings.teacher))
        ]

    before = resuming.compute_once(
        list[Figures],
        folder / f"{label}.before.json",
        lambda: measure("measuring", _STATES_END, _MEASURED_END),
    )
    rows = store.rows_of(data.train)
    schedule = settings.schedule(len(rows))
    if initial is None and not (folder / f"{label}.pt").exists():
        report_progress("a first guess by least squares", _MEASURED_END)
        least_squares.initialise(heads, store, rows, settings.seed)
    resuming.save_settings(folder, identity)
    report_training = partial(
        partial_progress(report_progress, _MEASURED_END, _TRAINING_END),
        f"training, {schedule.steps} steps",
    )
    result = fit(
        heads,
        _objective(store, heads, rows, settings, report_training),
        schedule,
        folder,
        settings.seed,
        label,
        stop_after=stop_after,
        build_optimisers=_adamw,
        show_progress=False,
    )
    stored_dtype = torch.bfloat16 if settings.kind == MLP else backend.dtype
    heads.round_to(stored_dtype)
    after = measure("measuring again", _TRAINING_END, 1.0)
    info = {
        "kind": settings.kind,
        "exits": list(exits),
        "model": backend.name,
        "fingerprint": weights,
        "hidden_size": backend.hidden_size,
        "vocab_size": backend.vocab_size,
        "num_layers": backend.num_layers,
        "input_size": heads.input_size,
        **({"inner_size": inner} if inner else {}),
        **({} if vocabulary is None else {"vocabulary_size": len(vocabulary)}),
        "dtype": str(stored_dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in heads.parameters()),
        "settings": {**asdict(settings), "exits": list(exits)},
        "steps": result["steps"],
        "seconds": result["seconds"],
        "texts": data.source,
        "before": before[0][ALL],
        "after": after[0][ALL],
        "domains": {domain: figures for domain, figures in after[0].items() if domain != ALL},
    }
    if settings.teacher is not None:
        info["by_teacher"] = {"before": before[1][ALL], "after": after[1][ALL]}
    write(path, heads, stored_dtype, info)
    report_info = {**info, "curve": curve(folder / f"{label}.jsonl")}
    write_report(path, files.SCHEMA, report_info, backend.device)
    shutil.rmtree(folder)
    return files.read(path)


def _validate_settings(settings: HeadsSettings, backend: Backend) -> None:
    """Refuse exits, a vocabulary or a width that the model has no room for."""
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
    validate_width(settings.width, backend)


def most_frequent(
    pieces: Sequence[Piece], size: int | None, vocab_size: int
) -> torch.Tensor | None:
    """Return the ids [size] of the tokens that most often follow texts' positions, ascending.

    Of equally frequent tokens the lowest ids are taken: a BPE numbers its merges by frequency.
    """
    if size is None:
        return None
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for piece in pieces:
        next_positions = piece.positions + 1
        next_ids = piece.ids[next_positions[next_positions < len(piece.ids)]]
        counts += torch.bincount(next_ids.long(), minlength=vocab_size)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def _read_start(path: Path, settings: HeadsSettings) -> files.HeadsFile:
    """Read the heads to begin with.

    Raises:
        HierspecError: they are of another kind or size, or for other exits.
    """
    file = files.read(path)
    num_scored = file.info.vocabulary_size
    same_form = (settings.kind, tuple(sorted(set(settings.exits)))) == (file.kind, file.exits)
    if not same_form or (settings.kind == FULL and settings.vocabulary != num_scored):
        raise HierspecError(
            f"{file.path} holds heads of kind {file.kind} after layers "
            f"{', '.join(map(str, file.exits))} that score {num_scored or 'all'} tokens; to start "
            "from them ask for the same"
        )
    return file


def _adamw(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """Build AdamW without weight decay: a transform of zeros is the exit without a head."""
    return [torch.optim.AdamW(model.parameters(), lr=schedule.adamw_rate, weight_decay=0.0)]


def _objective(
    store: StateStore,
    heads: Heads,
    rows: torch.Tensor,
    settings: HeadsSettings,
    report_share: Callable[[float], None],
) -> Objective:
    """Return the sum over exits of their distances: each head's gradient is its own.

    Batches are positions of all texts, shuffled anew in every pass.
    """
    frozen = store.frozen

    @lru_cache(maxsize=1)
    def shuffle(number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + number)
        return rows[torch.randperm(len(rows), generator=generator)]

    def objective(step: TrainingStep) -> Losses:
        report_share(step.progress)
        size = step.phase.rows * step.phase.width
        states = store.read(slice_passes(shuffle, len(rows), step.number * size, size))
        kl, tv = frozen.distances(heads, states, settings.teacher)
        parts = {}
        for i, layer in enumerate(frozen.learners(settings.teacher)):
            parts |= {f"kl@{layer}": kl[i].detach(), f"tv@{layer}": tv[i].detach()}
        if settings.loss == "tv":
            return kl_then_tv(kl, tv, step.progress).sum(), parts
        return kl.sum(), parts

    return objective


def _measure_by_domain(
    heads: Heads,
    store: StateStore,
    pieces: Sequence[Piece],
    report_share: Callable[[float], None],
    teacher: int | None = None,
) -> Figures:
    """Return mean figures; of domain :data:`ALL` over all positions."""
    domains: dict[str, list[Piece]] = {}
    for piece in pieces:
        domains.setdefault(piece.domain, []).append(piece)
    frozen, exits = store.frozen, store.frozen.learners(teacher)
    sums, counts = {}, {}
    for number, (domain, domain_pieces) in enumerate(sorted(domains.items())):
        rows = store.rows_of(domain_pieces)
        counts[domain] = len(rows)
        sums[domain] = torch.zeros(len(exits), len(FIGURES), dtype=torch.float64)
        for start in range(0, len(rows), _MEASURED_ROWS):
            report_share((number + start / len(rows)) / len(domains))
            states = store.read(rows[start : start + _MEASURED_ROWS])
            sums[domain] += frozen.measure(heads, states, teacher)
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


def load_into(heads: Heads, file: files.HeadsFile) -> None:
    """Load the tensors of a file into heads that are to be trained further.

    Raises:
        HierspecError: they are of another size.
    """
    state = {
        f"{layer}.{part}": tensor
        for layer in file.exits
        for part, tensor in file.tensors(layer).items()
    }
    try:
        heads.load_state_dict(state)
    except RuntimeError as error:
        raise HierspecError(
            f"{file.path} holds heads of another size ({first_line(error)}): start afresh"
        ) from None
