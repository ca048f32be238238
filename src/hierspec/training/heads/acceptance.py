"""Train the head that predicts whether the target accepts a draft model's token (SpecDec++).

As in Huang et al. (2024, §3.2–3.3): of a text of the target, a share of the tokens is exchanged for
tokens drawn from the draft model at those places, and the draft model reads the mixture; the head
learns, at the exchanged places alone, min(1, p/q) of the token drawn, by a cross-entropy in which
rejections weigh more, since most tokens are kept. Both models stay as they are. A text is mixed
several times, so that more of its places are learnt from than are exchanged at once.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console

from hierspec.config import acceptance_head as files
from hierspec.config.vocabulary import check_same_vocabulary
from hierspec.errors import HierspecError
from hierspec.lm.acceptance_head import AcceptanceHead
from hierspec.lm.backend import Backend, Span
from hierspec.profiling.settings import Report
from hierspec.training import restart
from hierspec.training.fit import Losses, TrainingStep, fit
from hierspec.training.models import check_width, hidden_states, load_model, output_file
from hierspec.utils import machine
from hierspec.utils.files import check_writable, json_digest, write_atomically
from hierspec.zoo import fingerprint

from .data import choose, from_files
from .settings import TrainingSettings
from .states import Piece

_CHOSEN, _READ, _TRAINED = 0.1, 0.7, 0.98  # shares of all work, roughly


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
        self._check(
            ("rejection_weight", "learning_rate", "epochs", "tokens", "width"),
            ("depth", "passes", "rows", "held_out", "steps"),
        )
        if not 0 < self.mixed <= 1:
            raise HierspecError(f"mixed must be a share above 0 and at most 1, not {self.mixed}")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Drawn tokens: the draft model's states after them, [N, d] bfloat16; min(1, p/q) [N]."""

    states: torch.Tensor
    kept: torch.Tensor


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
    report: Report = lambda stage, share: None,
    stop_after: int | None = None,
) -> files.HeadFile:
    """Train a head and write it, with a JSON report of the same name beside it.

    An interrupted training leaves a folder ``OUTPUT.training``; the same call reads the texts anew,
    goes on from there and ends with the same head.

    Args:
        target, draft: directory, hub id or ``zoo:NAME``, of one vocabulary.
        output: default: ``acceptance_head.safetensors`` in the draft model's directory.
        texts: as for exit heads; default: for the shipped family the text it was trained on, for
            any other target what it writes itself.
        stop_after: stop after so many steps, as if interrupted.

    Raises:
        HierspecError: other vocabularies, too little text, a file in the way, an interrupted
            training of other settings, an output that cannot be written.
        KeyboardInterrupt: stopped; nothing that was trained is lost.
    """
    path = output_file(draft, output, files.FILE)
    if path.exists() and not overwrite:
        raise HierspecError(f"{path} exists already: give another -o, or --overwrite")
    folder = path.with_name(f"{path.name}.training")
    asked: dict[str, Any] = {"model": draft, "target": target, "dtype": dtype, **asdict(settings)}
    if not overwrite:
        restart.check(folder, asked, "--overwrite")
    check_writable(path, "the acceptance head", "give another -o")
    given = from_files(texts)
    report("loading the models", 0.0)
    p_model, tokenizer = load_model(target, dtype, device)
    q_model, theirs = load_model(draft, dtype, device)
    check_same_vocabulary(target, tokenizer, draft, theirs)
    check_width(settings.width, p_model, q_model)
    restart.keep(folder, asked)
    chosen = choose(
        target,
        p_model,
        tokenizer,
        settings,
        (given, ", ".join(file.name for file in texts)) if texts else None,
        folder,
        lambda stage, share: report(stage, share * _CHOSEN),
    )
    read = [
        samples(
            q_model,
            p_model,
            pieces,
            settings,
            number,
            lambda share, start=start, end=end: report(
                "both models read", _CHOSEN + (start + share * (end - start)) * (_READ - _CHOSEN)
            ),
        )
        for number, (pieces, start, end) in enumerate(
            ((chosen.train, 0.0, 0.9), (chosen.held_out, 0.9, 1.0))
        )
    ]
    learnt, measured = read
    head = AcceptanceHead(q_model.hidden_size, settings.depth).to(q_model.device)
    size = settings.rows * settings.width
    schedule = settings.schedule(len(learnt.kept))
    began = time.monotonic()

    def objective(now: TrainingStep) -> Losses:
        share = _READ + now.done * (_TRAINED - _READ)
        report(f"training, {schedule.steps} steps", share)
        rows = torch.randint(len(learnt.kept), (size,), generator=now.generator)
        found = loss(head, learnt, rows, settings.rejection_weight)
        return found, {"loss": found.detach()}

    label = "acceptance-" + json_digest([asdict(settings), chosen.source["sha256"], draft, target])
    found = fit(
        head,
        objective,
        schedule,
        folder,
        settings.seed,
        label,
        stop_after=stop_after,
        optimisers=lambda model, plan: [
            torch.optim.AdamW(model.parameters(), lr=plan.other_rate, weight_decay=0.01)
        ],
        console=Console(quiet=True),
    )
    if found["steps"] < schedule.steps:
        raise KeyboardInterrupt
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
        "samples": len(learnt.kept),
        "seconds": round(time.monotonic() - began),
        "texts": chosen.source,
        "held_out": figures(head, measured, settings.rejection_weight),
    }
    files.write(path, head, info)
    whole = {"schema_version": files.SCHEMA, **info}
    whole["environment"] = machine.hardware(q_model.device)
    write_atomically(path.with_suffix(".json"), json.dumps(whole, indent=1) + "\n", "the report")
    shutil.rmtree(folder)
    return files.read(path)


@torch.inference_mode()
def samples(
    q_model: Backend,
    p_model: Backend,
    pieces: Sequence[Piece],
    settings: AcceptanceSettings,
    number: int,
    report: Callable[[float], None],
) -> Samples:
    """Draw tokens of the draft model at places of texts; return how likely each is kept.

    Args:
        number: tells apart the random numbers of several calls.
    """
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + number)
    states: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    for done, piece in enumerate(pieces):
        report(done / len(pieces))
        ids = piece.ids.long()
        places = piece.positions[piece.positions + 1 < len(ids)]
        if not len(places):
            continue
        p = p_model.head(_states(p_model, ids)[places]).softmax(-1)
        q = q_model.head(_states(q_model, ids)[places]).softmax(-1)
        width = min(p.shape[1], q.shape[1])
        for _ in range(settings.passes):
            drawn = torch.multinomial(q.cpu(), 1, generator=generator)
            mine = q.cpu().gather(1, drawn).squeeze(1)
            theirs = p[:, :width].cpu().gather(1, drawn.clamp(max=width - 1)).squeeze(1)
            share = torch.where(drawn.squeeze(1) < width, theirs / mine, 0.0).clamp(max=1.0)
            chosen = torch.rand(len(places), generator=generator) < settings.mixed
            mixture = ids.clone()
            mixture[places[chosen] + 1] = drawn.squeeze(1)[chosen]
            after = _states(q_model, mixture)[places[chosen] + 1]
            states.append(after.cpu().bfloat16())
            kept.append(share[chosen].float())
    if not kept or not sum(map(len, kept)):
        raise HierspecError("too little text: no token of it was exchanged; give more texts")
    return Samples(torch.cat(states), torch.cat(kept))


def loss(
    head: AcceptanceHead, found: Samples, rows: torch.Tensor, rejection_weight: float
) -> torch.Tensor:
    """Return the mean cross-entropy of rows, rejections weighted. [Huang et al. 2024, §3.3]"""
    device = head.out.weight.device
    logits, kept = head(found.states[rows].to(device)), found.kept[rows].to(device)
    accepted, rejected = F.logsigmoid(logits), F.logsigmoid(-logits)
    return -(kept * accepted + rejection_weight * (1.0 - kept) * rejected).mean()


@torch.no_grad()
def figures(head: AcceptanceHead, found: Samples, rejection_weight: float) -> dict[str, float]:
    """Measure a head: its loss and that of the best constant, means, and the AUC.

    The AUC is the chance that of two tokens, one kept and one not, the kept one is predicted the
    likelier; a token counts as kept by the share min(1, p/q), and as rejected by the rest.
    """
    rows, kept = torch.arange(len(found.kept)), found.kept.double()
    predicted = head(found.states.to(head.out.weight.device)).sigmoid().cpu().double()
    mean = float(kept.mean())
    constant = mean / (mean + rejection_weight * (1.0 - mean))  # what minimises the loss
    entropy = -mean * math.log(constant) - rejection_weight * (1 - mean) * math.log1p(-constant)
    kept = kept[predicted.argsort()]
    below = (1.0 - kept).cumsum(0) - 0.5 * (1.0 - kept)
    auc = float((kept * below).sum() / (kept.sum() * (1.0 - kept).sum()))
    return {
        "samples": len(rows),
        "acceptance": round(mean, 4),
        "predicted": round(float(predicted.mean()), 4),
        "loss": round(float(loss(head, found, rows, rejection_weight)), 4),
        "constant_loss": round(entropy, 4),
        "auc": round(auc, 4),
    }


def _states(backend: Backend, ids: torch.Tensor) -> torch.Tensor:
    """Return hidden states after the last layer, [n, d], for ids [n]."""
    spans = [Span(backend.new_cache(len(ids)), 0, len(ids))]
    known = torch.where(ids < backend.vocab_size, ids, 0).to(backend.device)
    return hidden_states(backend, known, spans)[-1]
