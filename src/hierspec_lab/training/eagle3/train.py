"""Train an EAGLE-3 network on a frozen target [Li et al. 2025, §3.2].

The loss of each drafting step is the cross entropy with the target's distribution over the draft
vocabulary, at positions whose next token lies in it: an unbiased form of the whole distribution's
cross entropy where the target wrote the text.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from hierspec.api import Hierarchy
from hierspec.errors import HierspecError
from hierspec.lm.eagle3.checkpoint import read_network
from hierspec.lm.load import load
from hierspec.lm.weights import EMBEDDING, HEAD
from hierspec.profiling.settings import ReportProgress
from hierspec.utils import machine
from hierspec.utils.files import validate_folder_writable
from hierspec.verifiers.formulas import total_variation
from hierspec.zoo import fingerprint, trained
from hierspec_lab.training import resuming, texts
from hierspec_lab.training.fit import (
    Losses,
    Objective,
    Phase,
    Schedule,
    TimedSchedule,
    TrainingStep,
    curve,
    drop_cut_line,
    fit,
)
from hierspec_lab.training.models import as_written, load_weights_and_tokenizer
from hierspec_lab.training.smollm2 import answers
from hierspec_lab.training.smollm2.passages import collect
from hierspec_lab.training.store import FeatureStore, Passes, limited_reporter

from . import start
from .batches import Batches, FeatureBatch
from .files import may_be_replaced, write_network
from .measure import measure
from .network import Eagle3Network
from .optimiser import AveragingAdamW
from .settings import Eagle3Settings
from .unroll import unroll

_WATCH_TOKENS = 16_384  # of new texts, added at a time
_REPORT_EVERY = 25  # steps
_TRAINING_START = 0.2  # share of all work, roughly, that features take
# Share of the training in which drafts have one step: until that one is learnt, later ones read
# outputs that say nothing, and what they pull at keeps it from being learnt.
_ONE_STEP_SHARE = 0.1
_ANSWERS = "answers"  # the folder of what the target itself has written
_FALL_SHARE = 0.2  # of the training, in which the rates fall to zero


def train(
    target: str,
    settings: Eagle3Settings,
    output: Path,
    text_paths: Sequence[Path],
    held_out: Sequence[Path] = (),
    *,
    start_from: Path | None = None,
    features: Path | None = None,
    overwrite: bool = False,
    report_progress: ReportProgress = lambda stage, share: None,
    tell: Callable[[str], None] = lambda line: None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Train a network and write it into the folder ``output``, its report with it.

    It is also written every few minutes during training. An interrupted training leaves a folder
    ``OUTPUT.training``; the same call goes on from there.

    Args:
        target: directory, hub id or ``zoo:NAME``; Llama-shaped.
        text_paths: files and folders of conversations and texts; none: the target answers prompts,
            and its answers are kept beside ``features``.
        held_out: further files of another origin, each measured on separately.
        start_from: folder or ``zoo:NAME`` of a network whose weights and vocabulary to begin with.
        features: where the target's hidden states are kept; default: inside ``OUTPUT.training``,
            deleted with it.
        report_progress: called with the stage, and the share of all work that is done.
        tell: called with results during training, a line each.
        stop_after: stop after so many steps, as if interrupted.

    Returns the network's description: settings, figures on held-out texts before and after.

    Raises:
        HierspecError: too little text to learn from, a folder in the way, an interrupted training
            of other settings, a target of another shape.
        KeyboardInterrupt: stopped; at most a minute of work is lost.
    """
    output = output.resolve()
    folder = output.with_name(f"{output.name}.training")
    unfinished = resuming.holds_one(folder) and not (output / "config.json").exists()
    if output.exists() and not (may_be_replaced(output) or (unfinished and output.is_dir())):
        raise HierspecError(f"{output} is no EAGLE-3 drafter: name a new folder by -o")
    # An interrupted training has left its latest network in ``output``.
    finished = (output / "config.json").exists() and not folder.exists()
    if finished and not overwrite and (start_from is None or start_from.resolve() != output):
        raise HierspecError(f"{output} holds a drafter already: give another -o, or --overwrite")
    validate_folder_writable(output.parent, output, "the drafter", "give another -o")
    identity = {"model": target, "draft_vocab": settings.draft_vocab, "seed": settings.seed}
    if not overwrite:
        resuming.validate_settings(folder, identity, "--overwrite")
    elif resuming.has_changed(folder, identity):
        resuming.give_up(folder)
    report_progress("loading the model", 0.0)
    if not text_paths:
        text_paths = [(features or folder) / _ANSWERS]
        _write_answers(target, settings, text_paths[0], report_progress)
    source, tokenizer = load_weights_and_tokenizer(target)
    backend: Any = load(source, torch.bfloat16, backend="lean")
    initial = (
        None
        if start_from is None
        else Eagle3Network.of(read_network(trained.locate(str(start_from))))
    )
    config = start.config_for(source.config, settings) if initial is None else initial.config
    layers = config.feature_layers_for(backend.num_layers)
    key = [fingerprint.compute_if_local(target) or target, list(layers)]
    store_folder = features or folder / "features"
    identity |= {"feature_layers": list(layers), "weights": key[0]}
    if overwrite and resuming.has_changed(folder, identity):
        for entry in folder.iterdir():  # but for answers, which have been written by now
            if entry.name != _ANSWERS:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    resuming.validate_settings(folder, identity, "--overwrite")
    resuming.validate_settings(store_folder, {"features": key}, "another --features")
    store = FeatureStore(store_folder, backend, layers, settings.store_gib * 2**30)
    resuming.save_settings(store_folder, {"features": key})

    def add_texts(goes_on: Callable[[int], bool]) -> None:
        new = texts.read(text_paths, tokenizer, store.keys, settings.longest, groups=store.groups)
        store.extend(new, goes_on)

    learnt = {text.key for text in store.texts if not text.group}  # maybe by this very training
    for path in held_out:
        if any(text.key in learnt for text in texts.read([path], tokenizer, (), settings.longest)):
            raise HierspecError(
                f"{path} is to be held out, and {store_folder} holds texts of it to learn from: "
                "name an empty folder by --features"
            )
        group = texts.read([path], tokenizer, store.keys, settings.longest, path.stem, store.groups)
        store.extend(group, limited_reporter(report_progress, f"features of {path.name}"))
    # If new texts are looked for later anyway, training begins with a part of the present ones.
    max_tokens = _WATCH_TOKENS if settings.watch_steps else math.inf
    add_texts(limited_reporter(report_progress, "features of the texts", max_tokens=max_tokens))
    if store.is_full:
        tell(
            f"--store-gib {settings.store_gib:g} has room for {store.tokens:,} tokens: the texts "
            "after them are left out"
        )
    if not store.numbers():
        lack = "give a larger --store-gib" if store.is_full else "give more --texts"
        raise HierspecError(f"too little text to learn from: {lack}")
    scale = torch.tensor(
        resuming.compute_once(
            list[float], folder / "scale.json", lambda: start.feature_scale(store).tolist()
        )
    )
    if initial is None:
        all_texts = texts.read(text_paths, tokenizer, (), settings.longest)
        train_texts = (text for text in all_texts if not text.group)
        # Counted once: texts may be added after an interruption, but rows must keep their tokens.
        ids = resuming.compute_once(
            list[int],
            folder / "vocabulary.json",
            lambda: start.most_frequent_ids(
                train_texts, config.draft_vocab_size, config.vocab_size
            ).tolist(),
        )
        network = start.initial_network(config, source, torch.tensor(ids), scale, settings.seed)
    else:
        network = initial
        with torch.no_grad():
            network.fc.weight /= scale
    rows = hashlib.sha256(network.scored_ids.numpy().tobytes()).hexdigest()[:16]
    identity |= {"vocabulary": rows}
    resuming.validate_settings(folder, identity, "another -o")
    network.train()
    embedding = source.tensor(EMBEDDING).float()
    unembed = source.tensor(HEAD).float()
    target_scores = teacher(backend, network, unembed)
    passes = Passes(store, settings.batch, settings.seed, num_end_tokens=2)
    batches = Batches(passes, embedding, scale)
    info: dict[str, Any] = {
        "schema_version": 1,
        "target": target,
        "fingerprint": key[0],
        "settings": as_written(settings),
        "parameters": sum(p.numel() for p in network.parameters()),
        "texts": [path.name for path in text_paths],
    }

    schedule = _schedule(settings, passes)
    optimiser = AveragingAdamW(network.parameters(), schedule.adamw_rate)

    def measure_groups() -> dict[str, Any]:
        network.eval()
        by_group = {
            group: measure(network, batches, backend, group, settings.depth)
            for group in store.held_out_groups()
        }
        network.train()
        for group, figures in by_group.items():
            tell(f"{optimiser.tokens} tokens seen, {group}: {json.dumps(figures)}")
        return by_group

    def write(step: int) -> None:
        info["tokens"] = sum(len(store.texts[i].ids) for i in store.numbers())
        with optimiser.averages_in_place():
            info["steps"], info["figures"] = step, measure_groups()
            measured = folder / "measured.jsonl"
            drop_cut_line(measured)
            line = {"step": step, "tokens": optimiser.tokens, "figures": info["figures"]}
            with measured.open("a") as log:
                log.write(json.dumps(line) + "\n")
            info["measured"] = curve(measured)
            write_network(output, network, torch.bfloat16, info, scale)

    resuming.save_settings(folder, identity)
    info["before"] = resuming.compute_once(dict[str, Any], folder / "before.json", measure_groups)
    result = fit(
        network,
        _objective(
            network, target_scores, batches, settings, report_progress, add_texts, write, optimiser
        ),
        schedule,
        folder,
        settings.seed,
        "eagle3",
        stop_after=stop_after,
        build_optimisers=lambda model, schedule: [optimiser],
        show_progress=False,
    )
    info["seconds"] = result["seconds"]
    info["environment"] = machine.hardware(backend.device)
    info["curve"] = curve(folder / "eagle3.jsonl")
    write(result["steps"])
    shutil.rmtree(folder)
    return info


def _write_answers(
    target: str, settings: Eagle3Settings, folder: Path, report_progress: ReportProgress
) -> None:
    """Let the target answer prompts; what an interrupted call has written is kept."""
    hierarchy = Hierarchy.from_config({"target": {"model": target}, "levels": []})
    plan = answers.AnswerSettings(conversations=settings.conversations, seed=settings.seed)
    answers.write(
        folder, plan, hierarchy, collect(), lambda stage, share: report_progress(stage, 0.0)
    )


def _schedule(settings: Eagle3Settings, passes: Passes) -> Schedule:
    phases = (Phase(1.0, 1, settings.batch),)
    rate = settings.learning_rate
    if settings.minutes is not None:
        seconds = 60 * settings.minutes
        return TimedSchedule(1, phases, adamw_rate=rate, decay_share=_FALL_SHARE, seconds=seconds)
    steps = settings.steps or max(1, round(settings.epochs * passes.batches_per_pass))
    return Schedule(steps, phases, adamw_rate=rate, decay_share=_FALL_SHARE)


Teacher = Callable[[torch.Tensor], torch.Tensor]  # last hidden states [n, d] → scores [n, D]


def teacher(backend: Any, network: Eagle3Network, unembed: torch.Tensor) -> Teacher:
    """Return the target's own head over the draft vocabulary; ``unembed`` is its matrix [V, d]."""
    rows = unembed[network.scored_ids]
    return lambda last: backend.head(last.to(backend.dtype), lambda x: F.linear(x.float(), rows))


def _objective(
    network: Eagle3Network,
    target: Teacher,
    batches: Batches,
    settings: Eagle3Settings,
    report_progress: ReportProgress,
    add_texts: Callable[[Callable[[int], bool]], None],
    write: Callable[[int], None],
    optimiser: AveragingAdamW,
) -> Objective:
    last_write = time.monotonic()

    def objective(step: TrainingStep) -> Losses:
        nonlocal last_write
        if settings.watch_steps and step.number % settings.watch_steps == 0:
            add_texts(lambda tokens: tokens < _WATCH_TOKENS)
        if time.monotonic() - last_write > 60 * settings.measure_minutes:
            write(step.number)
            last_write = time.monotonic()
        texts_read = batches.passes.texts_at(step.number)
        batch = batches.read(texts_read)
        most = 1 if step.progress < _ONE_STEP_SHARE else settings.depth
        # The smaller of two: an average draft of .4 of the most, and all depths are learnt.
        depth = 1 + int(torch.randint(most, (2,), generator=step.generator).min())
        with torch.autocast("cpu", torch.bfloat16):
            losses, distance = draft_losses(network, target, batch, depth)
        total = torch.stack([settings.decay**j * loss for j, loss in enumerate(losses)]).sum()
        parts = {f"loss@{j}": loss.detach() for j, loss in enumerate(losses)}
        optimiser.tokens += sum(len(batches.store.texts[i].ids) for i in texts_read)
        if step.number % _REPORT_EVERY == 0:
            numbers = " ".join(f"{float(loss):.3f}" for loss in parts.values())
            num_texts = len(batches.store.numbers())
            stage = f"step {step.number}, {num_texts} texts, losses {numbers}"
            report_progress(stage, _TRAINING_START + (1 - _TRAINING_START) * step.progress)
        return total, parts | {"tv@0": distance}

    return objective


def draft_losses(
    network: Eagle3Network, target: Teacher, batch: FeatureBatch, depth: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the loss of each step of a draft, and the first step's total variation: row means."""
    with torch.no_grad():
        in_loss = batch.is_predicted.flatten() & network.t2d[batch.targets.flatten()]
        probs = target(batch.last.flatten(0, 1)[in_loss]).float().softmax(-1)
        index_of_row = torch.zeros(len(in_loss), dtype=torch.int64)
        index_of_row[in_loss] = torch.arange(len(probs))
    losses, distances = [], []
    for rows, scores in unroll(network, batch.features, batch.embedded, batch.is_predicted, depth):
        mask = in_loss[rows]
        log_q = F.log_softmax(scores[mask].float(), -1)
        p = probs[index_of_row[rows[mask]]]
        losses.append(-(p * log_q).sum() / mask.sum().clamp(min=1))
        distances.append(total_variation(p, log_q.detach().exp()).mean())
    return losses, distances[0]
