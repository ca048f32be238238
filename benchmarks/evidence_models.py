"""Train what the evidence needs and no package ships, on Python's own sources.

Three T5-shaped models, since no hub is reachable: a target of four layers on either side and two
smaller ones that learn to write what it would; the encoder reads some tokens of a file, the decoder
writes those that follow. And the shipped family's smallest model, fine-tuned to write what the
middle one would, as P1's Appendix B does.

    python benchmarks/evidence_models.py                    # an hour and a half on two cores
    python benchmarks/evidence.py count --data FOLDER --only p1-t5-0 --only p1-t5-1
    python benchmarks/evidence.py count --data FOLDER --only p1-tuned-0 --only p1-tuned-1

Interrupted, the same command goes on; what is there already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch
from paper_evidence.families import TRAINED_MODELS
from tokenizers import Tokenizer
from torch import nn

from hierspec.lm.weights import build_hf_model
from hierspec.verifiers.formulas import overlap
from hierspec.zoo import registry
from hierspec_lab.families.code import DATA
from hierspec_lab.training.family import corpus
from hierspec_lab.training.fit import Losses, Objective, Phase, TimedSchedule, TrainingStep, fit
from hierspec_lab.training.losses import soft_cross_entropy
from hierspec_lab.training.windows import HeldOutWindows, Stream

FOLDER = common.ROOT / TRAINED_MODELS
READ, WRITTEN = 64, 48  # tokens that an encoder reads, and that are learnt
ROWS = 24
HEAD_DEVIATION = 0.02  # transformers draws an untied head with 1, which begins far too sure


@dataclass(frozen=True, slots=True)
class Shape:
    """A T5's width and its layers on either side."""

    width: int
    layers: int


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained.

    Attributes:
        begin: a T5's shape, or the shipped model that is fine-tuned.
        teacher: whose distribution it learns: another one here, or a shipped one; default: text.
        minutes: of training.
        rate: of Muon; AdamW's is three quarters of it.
    """

    name: str
    begin: Shape | str
    teacher: str | None
    minutes: float
    rate: float = 4e-3


MODELS = (
    Model("t5-target", Shape(192, 4), None, 48.75),
    Model("t5-mid", Shape(96, 2), "t5-target", 15.0),
    Model("t5-small", Shape(64, 1), "t5-target", 11.25),
    Model("tuned", "zoo:small", "zoo:mid", 10.0, rate=1e-3),
)


def t5(shape: Shape, seed: int) -> Any:
    """Return a model of T5 v1.1's kind with random weights."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=corpus.VOCAB_SIZE,
            d_model=shape.width,
            d_kv=32,
            d_ff=2 * shape.width,
            num_layers=shape.layers,
            num_decoder_layers=shape.layers,
            num_heads=shape.width // 32,
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=0,
        )
    )
    nn.init.normal_(model.lm_head.weight, std=HEAD_DEVIATION)
    return model


def logits(model: Any, windows: torch.Tensor) -> torch.Tensor:
    """Return scores of the written tokens, [rows, WRITTEN, V], of windows read and written."""
    source, targets = windows[:, :READ], windows[:, READ:]
    if not model.config.is_encoder_decoder:
        return model(input_ids=windows[:, :-1], use_cache=False).logits[:, READ - 1 :]
    decoder_ids = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], dim=1)
    return model(input_ids=source, decoder_input_ids=decoder_ids, use_cache=False).logits


def text_loss(model: Any, windows: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the written tokens, in nats."""
    scores = logits(model, windows)
    return nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, READ:].flatten())


def agreement(model: Any, teacher: Any, windows: torch.Tensor) -> float:
    """Return Σ min(p, q), the chance that the teacher keeps a sampled token, over all positions."""
    p, q = (logits(network, windows).softmax(-1) for network in (teacher, model))
    return float(overlap(p, q).mean())


def objective(model: Any, stream: Stream, teacher: Any = None) -> Objective:
    """Return what is minimised: the cross-entropy with the text, or with the teacher's rows."""

    def step_losses(now: TrainingStep) -> Losses:
        inputs, last = stream.batch(now.number, ROWS, READ + WRITTEN - 1)
        windows = torch.cat([inputs, last[:, -1:]], dim=1)
        if teacher is None:
            loss = text_loss(model, windows)
        else:
            with torch.no_grad():
                teacher_scores = logits(teacher, windows)
            loss = soft_cross_entropy(teacher_scores, logits(model, windows))
        return loss, {"loss": loss.detach()}

    return step_losses


def load_model(name: str, folder: Path) -> Any:
    """Return a shipped model or one that was trained here, in float32."""
    if registry.can_resolve(name):
        return build_hf_model(registry.resolve(name), torch.float32)
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration.from_pretrained(folder / name, dtype=torch.float32).eval()


def train(
    spec: Model,
    number: int,
    folder: Path,
    minutes: float,
    stream: Stream,
    held_out: Callable[[], torch.Tensor],
) -> dict[str, Any]:
    """Train a model into the folder and return its card."""
    shipped = isinstance(spec.begin, str)
    model = (
        load_model(spec.begin, folder) if isinstance(spec.begin, str) else t5(spec.begin, number)
    )
    teacher = load_model(spec.teacher, folder) if spec.teacher else None
    windows, card = held_out(), dict[str, Any]()
    if teacher is not None and shipped:
        with torch.no_grad():
            card["acceptance_before"] = round(agreement(model, teacher, windows), 4)
    schedule = TimedSchedule(
        0,
        (Phase(1.0, ROWS, READ + WRITTEN),),
        matrix_rate=spec.rate,
        adamw_rate=0.75 * spec.rate,
        seconds=60 * minutes,
    )
    work = folder / "work"
    outcome = fit(model.train(), objective(model, stream, teacher), schedule, work, 0, spec.name)
    with torch.no_grad():
        card["held_out_nats"] = round(float(text_loss(model.eval(), windows)), 4)
        if teacher is not None:
            card["acceptance"] = round(agreement(model, teacher, windows), 4)
    card |= {"steps": outcome["steps"], "minutes": minutes, "teacher": spec.teacher}
    card["tokens"] = outcome["steps"] * ROWS * WRITTEN
    card["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(folder / spec.name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / file, folder / spec.name / file)
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of all times of training")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="+", choices=[spec.name for spec in MODELS])
    parser.add_argument("--name", default="evidence-models", help="of the file of results")
    args = parser.parse_args()
    text = corpus.load_corpus()
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizer.json"))
    stream = corpus.training_stream(text, tokenizer, seed=0)
    cut = HeldOutWindows(count=64, width=READ + WRITTEN - 1)

    def held_out() -> torch.Tensor:
        return cut.cut(corpus.held_out_tokens(text, tokenizer).long())

    path = common.RESULTS / f"{args.name}.json"
    cards = json.loads(path.read_text())["models"] if path.exists() else {}
    for number, spec in enumerate(MODELS):
        is_trained = spec.name in cards and (args.folder / spec.name / "config.json").exists()
        if is_trained or (args.only and spec.name not in args.only):
            continue
        minutes = spec.minutes * args.scale
        cards[spec.name] = train(spec, number, args.folder, minutes, stream, held_out)
        print(spec.name, cards[spec.name], flush=True)
        common.write(args.name, {"environment": common.environment(), "models": cards})


if __name__ == "__main__":
    main()
