"""Train three T5-shaped models on Python sources, for P1's experiments with encoder-decoders.

Where no hub is reachable there is no released T5, so a target of six layers on either side and two
smaller models are trained here, the smaller ones to write what the target would. The encoder reads
some tokens of a file, the decoder writes those that follow. Interrupted, the same command goes on.

    python benchmarks/encoder_decoder.py                    # about twelve minutes on two cores
    python benchmarks/evidence.py count --data FOLDER --only p1-t5-0 --only p1-t5-1
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch
from torch import nn

from hierspec.training.family import corpus
from hierspec.training.fit import Losses, Phase, TimedSchedule, TrainingStep, fit
from hierspec.training.windows import HeldOutWindows, Stream
from hierspec.zoo import registry
from hierspec_papers.evidence.families import T5_FOLDER

FOLDER = common.ROOT / T5_FOLDER
SOURCE, WRITTEN = 48, 48  # tokens read, tokens written
ROWS = 24
RATE = 1.5e-3


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's width, its layers on either side, and its share of the time."""

    width: int
    layers: int
    share: float


SHAPES = {
    "target": Shape(256, 6, 0.6),
    "mid": Shape(128, 3, 0.25),
    "small": Shape(64, 1, 0.15),
}


def build(shape: Shape, seed: int) -> Any:
    """Return a model of T5 v1.1's kind with random weights."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    return T5ForConditionalGeneration(
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


def logits(model: Any, windows: torch.Tensor) -> torch.Tensor:
    """Return scores of the written tokens, [rows, WRITTEN, V], of windows read and written."""
    source, written = windows[:, :SOURCE], windows[:, SOURCE:]
    begun = torch.cat([torch.zeros_like(written[:, :1]), written[:, :-1]], dim=1)
    return model(input_ids=source, decoder_input_ids=begun, use_cache=False).logits


def loss_of(model: Any, windows: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the written tokens, in nats."""
    scores = logits(model, windows)
    return nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, SOURCE:].flatten())


def objective(model: Any, stream: Stream, teacher: Any = None) -> Any:
    """Return what :func:`fit` minimises: the text's loss, or the distance to the teacher."""

    def of(now: TrainingStep) -> Losses:
        inputs, last = stream.batch(now.number, ROWS, SOURCE + WRITTEN - 1)
        windows = torch.cat([inputs, last[:, -1:]], dim=1)
        if teacher is None:
            loss = loss_of(model, windows)
            return loss, {"loss": loss.detach()}
        with torch.no_grad():
            wanted = logits(teacher, windows).softmax(-1)
        loss = -(wanted * logits(model, windows).log_softmax(-1)).sum(-1).mean()
        return loss, {"distance": loss.detach()}

    return of


def _adamw(model: nn.Module, schedule: Any) -> Sequence[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=schedule.other_rate, weight_decay=0.01)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=720.0, help="of training, all models")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    text = corpus.load_corpus()
    tokenizer = corpus.load_tokenizer(registry.DATA)
    stream = corpus.training_stream(text, tokenizer, seed=0)
    held_out = HeldOutWindows(count=64, width=SOURCE + WRITTEN - 1)
    windows = held_out.cut(corpus.held_out_tokens(text, tokenizer).long())
    teacher, card = None, {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        model = build(shape, seed=number)
        phase = Phase(1.0, ROWS, SOURCE + WRITTEN)
        seconds = args.seconds * shape.share
        schedule = TimedSchedule(0, (phase,), other_rate=RATE, seconds=seconds)
        found = fit(
            model,
            objective(model, stream, teacher),
            schedule,
            args.folder / "work",
            seed=0,
            label=name,
            optimisers=_adamw,
        )
        model.eval()
        with torch.no_grad():
            loss = float(loss_of(model, windows))
        parameters = sum(one.numel() for one in model.parameters())
        card[name] = {"steps": found["steps"], "seconds": round(seconds), "held_out_nats": loss}
        card[name] |= {"parameters": parameters, "width": shape.width, "layers": shape.layers}
        model.save_pretrained(args.folder / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(registry.DATA / file, args.folder / name / file)
        teacher = teacher or model
        print(name, card[name], flush=True)
    common.write("encoder-decoder", {"environment": common.environment(), "models": card})
    (args.folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")


if __name__ == "__main__":
    main()
