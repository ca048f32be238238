"""Train the head that predicts whether the target accepts a draft model's token (SpecDec++).

As in Huang et al. (2024, §3.2–3.3): in a text of the target, a share of the tokens is exchanged for
tokens drawn from the draft model at those positions, and the draft model reads the mixture; the
head learns, at the exchanged positions alone, min(1, p/q) of the token drawn, by a cross-entropy in
which rejections weigh more, since most tokens are accepted. Both models stay as they are. A text is
mixed several times, to learn from more of its positions than are exchanged at once.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from hierspec.config.vocabulary import validate_same_vocabulary
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, Span
from hierspec.profiling.settings import ReportProgress
from hierspec.utils.files import json_digest, validate_writable
from hierspec.verifiers.formulas import capped_ratios
from hierspec.zoo import fingerprint
from hierspec_lab.acceptance import files
from hierspec_lab.acceptance.head import AcceptanceHead
from hierspec_lab.training import resuming
from hierspec_lab.training.fit import Losses, TrainingStep, fit
from hierspec_lab.training.models import (
    hidden_states,
    load_model,
    output_file,
    partial_progress,
    validate_numbers,
    validate_width,
    write_report,
)
from hierspec_lab.training.texts import from_files

from .data import choose_texts
from .settings import TrainingSettings
from .states import Piece

# Shares of all work, roughly, that are done at the end of each stage.
_TEXTS_END, _TRAIN_SAMPLES_END, _SAMPLES_END, _TRAINING_END = 0.1, 0.64, 0.7, 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSettings(TrainingSettings):
    """Everything that decides a head, besides the models and the texts.

    Attributes:
        depth: D, residual blocks; the paper uses 2 to 4.
        rejection_weight: of rejections against acceptances; the paper's w_rej.
        mixed: share of a text's tokens that is exchanged at once; the paper's is 15 %.
        passes: how often each text is mixed.
    """

    depth: int = 3
    rejection_weight: float = 6.0
    mixed: float = 0.15
    passes: int = 4
    learning_rate: float = 1e-3
    epochs: float = 3

    def __post_init__(self) -> None:
        positive = ("rejection_weight", "learning_rate", "epochs", "tokens", "width")
        validate_numbers(self, positive, ("depth", "passes", "rows", "held_out", "steps"))
        if not 0 < self.mixed <= 1:
            raise HierspecError(f"mixed must be a share above 0 and at most 1, not {self.mixed}")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """N tokens drawn from the draft model.

    Attributes:
        states: the draft model's hidden states after reading them, [N, d] bfloat16.
        acceptance: the chance that the target accepts each, min(1, p/q), [N].
    """

    states: torch.Tensor
    acceptance: torch.Tensor


def train(
    target: str,
    draft: str,
    settings: AcceptanceSettings,
    output: Path | None = None,
    texts: Sequence[Path] = (),
    *,
    dtype: str = "auto",
    device: str = "auto",
    overwrite: bool = False,
    report_progress: ReportProgress = lambda stage, share: None,
    stop_after: int | None = None,
) -> files.AcceptanceHeadFile:
    """Train a head and write it, with a JSON report of the same name beside it.

    An interrupted training leaves a folder ``OUTPUT.training``; the same call reads the texts anew,
    goes on from there and ends with the same head.

    Args:
        target, draft: directory, hub id or ``zoo:NAME``, of one vocabulary.
        output: default: ``acceptance_head.safetensors`` in the draft model's directory.
        texts: files and folders of texts or conversations; default: for the shipped family the text
            it was trained on, for any other target what it writes itself.
        stop_after: stop after so many steps, as if interrupted.

    Raises:
        HierspecError: other vocabularies, too little text, a file in the way, an interrupted
            training of other settings, an output that cannot be written.
        KeyboardInterrupt: stopped; nothing that was trained is lost.
    """
    path = output_file(draft, output, files.FILE, overwrite)
    folder = path.with_name(f"{path.name}.training")
    identity = {"model": draft, "target": target, "dtype": dtype, **asdict(settings)}
    if not overwrite:
        resuming.validate_settings(folder, identity, "--overwrite")
    validate_writable(path, "the acceptance head", "give another -o")
    file_texts = from_files(texts)
    report_progress("loading the models", 0.0)
    p_model, tokenizer = load_model(target, dtype, device)
    q_model, draft_tokenizer = load_model(draft, dtype, device)
    validate_same_vocabulary(target, tokenizer, draft, draft_tokenizer)
    validate_width(settings.width, p_model, q_model)
    resuming.save_settings(folder, identity)
    data = choose_texts(
        target,
        p_model,
        tokenizer,
        settings,
        texts,
        file_texts,
        folder,
        partial_progress(report_progress, 0.0, _TEXTS_END),
    )

    def draw(pieces: Sequence[Piece], number: int, start: float, end: float) -> Samples:
        report_share = partial(partial_progress(report_progress, start, end), "both models read")
        return draw_samples(q_model, p_model, pieces, settings, number, report_share)

    samples = draw(data.train, 0, _TEXTS_END, _TRAIN_SAMPLES_END)
    held_out = draw(data.held_out, 1, _TRAIN_SAMPLES_END, _SAMPLES_END)
    num_samples = len(samples.acceptance)
    head = AcceptanceHead(q_model.hidden_size, settings.depth).to(q_model.device)
    size = settings.rows * settings.width
    schedule = settings.schedule(num_samples)
    start_time = time.monotonic()
    report_training = partial_progress(report_progress, _SAMPLES_END, _TRAINING_END)

    def objective(step: TrainingStep) -> Losses:
        report_training(f"training, {schedule.steps} steps", step.progress)
        rows = torch.randint(num_samples, (size,), generator=step.generator)
        value = loss(head, samples, rows, settings.rejection_weight)
        return value, {"loss": value.detach()}

    label = "acceptance-" + json_digest([asdict(settings), data.source["sha256"], draft, target])
    fit(
        head,
        objective,
        schedule,
        folder,
        settings.seed,
        label,
        stop_after=stop_after,
        build_optimisers=lambda model, schedule: [
            torch.optim.AdamW(model.parameters(), lr=schedule.adamw_rate, weight_decay=0.01)
        ],
        show_progress=False,
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.bfloat16())  # as it is stored
    info = {
        "kind": files.KIND,
        "model": draft,
        "target": target,
        "fingerprint": fingerprint.compute_if_local(draft),
        "hidden_size": head.size,
        "depth": head.depth,
        "parameters": sum(p.numel() for p in head.parameters()),
        "settings": asdict(settings),
        "steps": schedule.steps,
        "samples": num_samples,
        "seconds": round(time.monotonic() - start_time),
        "texts": data.source,
        "held_out": measure(head, held_out, settings.rejection_weight),
    }
    files.write(path, head, info)
    write_report(path, files.SCHEMA, info, q_model.device)
    shutil.rmtree(folder)
    return files.read(path)


@torch.inference_mode()
def draw_samples(
    q_model: Backend,
    p_model: Backend,
    pieces: Sequence[Piece],
    settings: AcceptanceSettings,
    number: int,
    report_share: Callable[[float], None],
) -> Samples:
    """Draw tokens of the draft model at positions of texts, and compute how likely each is
    accepted.

    Args:
        number: part of the seed, so that several calls draw different random numbers.
    """
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + number)
    states: list[torch.Tensor] = []
    acceptance: list[torch.Tensor] = []
    for piece_number, piece in enumerate(pieces):
        report_share(piece_number / len(pieces))
        ids = piece.ids.long()
        positions = piece.positions[piece.positions + 1 < len(ids)]
        if not len(positions):
            continue
        p = p_model.head(_states(p_model, ids)[positions]).softmax(-1)
        q = q_model.head(_states(q_model, ids)[positions]).softmax(-1)
        width = min(p.shape[1], q.shape[1])
        for _ in range(settings.passes):
            tokens = torch.multinomial(q.cpu(), 1, generator=generator)
            q_x = q.cpu().gather(1, tokens).squeeze(1)
            p_x = p[:, :width].cpu().gather(1, tokens.clamp(max=width - 1)).squeeze(1)
            tokens = tokens.squeeze(1)
            keep_probs = capped_ratios(torch.where(tokens < width, p_x, 0.0), q_x)
            exchanged = torch.rand(len(positions), generator=generator) < settings.mixed
            token_positions = positions[exchanged] + 1
            mixture = ids.clone()
            mixture[token_positions] = tokens[exchanged]
            states.append(_states(q_model, mixture)[token_positions].cpu().bfloat16())
            acceptance.append(keep_probs[exchanged].float())
    if not sum(map(len, acceptance)):
        raise HierspecError("too little text: no token of it was exchanged; give more texts")
    return Samples(torch.cat(states), torch.cat(acceptance))


def loss(
    head: AcceptanceHead, samples: Samples, rows: torch.Tensor, rejection_weight: float
) -> torch.Tensor:
    """Return the mean cross-entropy of rows, rejections weighted. [Huang et al. 2024, §3.3]"""
    device = head.out.weight.device
    logits, kept = head(samples.states[rows].to(device)), samples.acceptance[rows].to(device)
    log_kept, log_rejected = F.logsigmoid(logits), F.logsigmoid(-logits)
    return -(kept * log_kept + rejection_weight * (1.0 - kept) * log_rejected).mean()


@torch.no_grad()
def measure(head: AcceptanceHead, samples: Samples, rejection_weight: float) -> dict[str, float]:
    """Measure a head: its loss and that of the best constant, means, and the AUC.

    The AUC is the chance that of two tokens, one accepted and one not, the head gives the accepted
    one the higher probability; a token counts as accepted by the share min(1, p/q), and as rejected
    by the rest.
    """
    rows, kept = torch.arange(len(samples.acceptance)), samples.acceptance.double()
    predicted = head(samples.states.to(head.out.weight.device)).sigmoid().cpu().double()
    mean = float(kept.mean())
    constant = mean / (mean + rejection_weight * (1.0 - mean))  # what minimises the loss
    entropy = 0.0  # where all are kept, or none
    if 0.0 < constant < 1.0:
        rejected = rejection_weight * (1 - mean)
        entropy = -mean * math.log(constant) - rejected * math.log1p(-constant)
    kept = kept[predicted.argsort()]
    below = (1.0 - kept).cumsum(0) - 0.5 * (1.0 - kept)
    auc = float((kept * below).sum() / (kept.sum() * (1.0 - kept).sum()))
    return {
        "samples": len(rows),
        "acceptance": round(mean, 4),
        "predicted": round(float(predicted.mean()), 4),
        "loss": round(float(loss(head, samples, rows, rejection_weight)), 4),
        "constant_loss": round(entropy, 4),
        "auc": round(auc, 4),
    }


def _states(backend: Backend, ids: torch.Tensor) -> torch.Tensor:
    """Return hidden states after the last layer, [n, d], for ids [n]."""
    spans = [Span(backend.new_cache(len(ids)), 0, len(ids))]
    ids = torch.where(ids < backend.vocab_size, ids, 0).to(backend.device)
    return hidden_states(backend, ids, spans)[-1]
