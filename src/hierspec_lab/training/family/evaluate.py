"""Measure how well the shipped models draft for each other: held-out loss, acceptance, agreement.

Acceptance is 1 − TV of two next-token distributions; at temperature 0 it is the share of equal
argmaxes. All figures are means over the same held-out windows, every position of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch.nn import functional as F

from hierspec.core.context import Context
from hierspec.drafters.ngram_table import NgramModel
from hierspec.lm.base import Query
from hierspec.lm.weights import WeightSource
from hierspec.verifiers.formulas import overlap
from hierspec_lab.families.synthetic import CALIBRATION_FILE, DEEPEN, Calibration, inflate
from hierspec_lab.training.windows import HeldOutWindows

from .model import EXITS, Llama, Shape

TEMPERATURES = (0.0, 0.6, 1.0)
EPS_VALUES = (0.05, 0.1, 0.2)
EPS_OF_MATRIX = 0.2
CALIBRATE_EPS, CALIBRATE_ACCEPTANCE = 0.1, 0.96


def load_llama(source: WeightSource, dtype: torch.dtype = torch.bfloat16) -> Llama:
    """Load a shipped model in the form used for training, which gives access to its early exits."""
    config = source.config
    shape = Shape(
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        config.vocab_size,
        config.max_position_embeddings,
    )
    model = Llama(shape, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source.tensor(name))
    return model.to(dtype).requires_grad_(False)


Scorer = Callable[[torch.Tensor], dict[str, torch.Tensor]]  # ids [T] → name → scores [T, V]


def scorer(name: str, model: Llama, exits: tuple[int, ...] = ()) -> Scorer:
    """Return a scorer of a model and of its early exits, named ``name@exit``."""
    names = [*(f"{name}@{number}" for number in exits), name]

    def score(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        states = model(ids[None], exits)
        scores = (model.logits(state)[0].float() for state in states)
        return dict(zip(names, scores, strict=True))

    return score


def ngram_scorer(table: NgramModel) -> Scorer:
    """Return a scorer of an n-gram table."""

    def score(ids: torch.Tensor) -> dict[str, torch.Tensor]:
        query = Query(table.open(), Context(ids.tolist()), 1)
        return {"ngram": table.score([query])}

    return score


def compare_models(scorers: list[Scorer], windows: torch.Tensor) -> dict[str, Any]:
    """Measure losses and, per temperature, the matrix of acceptances between all models."""
    losses: dict[str, float] = {}
    sums: dict[float, torch.Tensor] = {}
    for window in track(windows, description="acceptance", transient=True):
        ids, targets = window[:-1], window[1:]
        scores = {name: s for score in scorers for name, s in score(ids).items()}
        for name, rows in scores.items():
            loss = float(F.cross_entropy(rows, targets))
            losses[name] = losses.get(name, 0.0) + loss / len(windows)
        for t in TEMPERATURES:
            sums[t] = sums.get(t, 0.0) + _acceptances(list(scores.values()), t)
    means = {f"{t:g}": (total / len(windows)).tolist() for t, total in sums.items()}
    return {
        "held_out_loss": {name: round(loss, 4) for name, loss in losses.items()},
        "names": list(losses),
        "acceptance": {t: [[round(x, 4) for x in row] for row in m] for t, m in means.items()},
    }


def _acceptances(scores: list[torch.Tensor], temperature: float) -> torch.Tensor:
    """Return the acceptances [n, n] of n models with scores [T, V]."""
    if temperature == 0:
        top = torch.stack([rows.argmax(-1) for rows in scores])
        return (top[:, None] == top).float().mean(-1)
    distributions = [(rows / temperature).softmax(-1) for rows in scores]
    out = torch.eye(len(scores))
    for i, j in itertools.combinations(range(len(scores)), 2):
        out[i, j] = out[j, i] = overlap(distributions[i], distributions[j]).mean()
    return out


def calibrate(trunk: WeightSource, folder: Path, tokens: torch.Tensor) -> None:
    """Find the noise scale that makes α(trunk, large) .96 at eps = .1; write it into ``folder``."""
    windows = HeldOutWindows(8, 256).cut(tokens)[:, :-1]
    model = load_llama(trunk)
    rms = torch.zeros(model.shape.layers)
    x = F.embedding(windows, model.model.embed_tokens.weight)
    rope = model.cos[: windows.shape[1]], model.sin[: windows.shape[1]]
    for number, layer in enumerate(model.model.layers):
        x = layer(x, rope, None)
        rms[number] = x.float().pow(2).mean(-1).sqrt().mean()
    target = model.logits(model(windows)[-1]).float().softmax(-1)
    start = inflate(trunk, folder, CALIBRATE_EPS)
    scale = 0.5
    for _ in track(range(6), description="calibrating eps", transient=True):
        calibration = Calibration(scale, tuple(round(v, 4) for v in rms.tolist()))
        large = load_llama(replace(start, calibration=calibration))
        probs = large.logits(large(windows)[-1]).float().softmax(-1)
        acceptance = float(overlap(target, probs).mean())
        if abs(acceptance - CALIBRATE_ACCEPTANCE) < 0.001:
            break
        scale *= min(4.0, max(0.25, (1 - CALIBRATE_ACCEPTANCE) / max(1e-4, 1 - acceptance)))
    values = {"scale": round(calibration.scale, 5), "residual_rms": calibration.residual_rms}
    (folder / CALIBRATION_FILE).write_text(json.dumps(values, indent=1) + "\n")


def evaluate(
    sources: Mapping[str, WeightSource], table: NgramModel, folder: Path, windows: torch.Tensor
) -> dict[str, Any]:
    """Compare the whole family, and measure how far ``eps`` moves the large model."""
    trunk = load_llama(sources["trunk"])
    exits = tuple(number for number in EXITS if number < trunk.shape.layers)
    small = [scorer(name, load_llama(s)) for name, s in sources.items() if name != "trunk"]

    def large(eps: float, name: str = "large", exits: tuple[int, ...] = ()) -> Scorer:
        return scorer(name, load_llama(inflate(sources["trunk"], folder, eps)), exits)

    family = [ngram_scorer(table), *small, scorer("trunk", trunk, exits)]
    large_exits = (4 * DEEPEN,) if 4 in exits else ()
    noisy = large(EPS_OF_MATRIX, f"large eps={EPS_OF_MATRIX:g}", large_exits)
    result = compare_models([*family, noisy], windows)
    result["large"] = {}
    for eps in (0.0, *EPS_VALUES):
        pair = compare_models([scorer("trunk", trunk), large(eps)], windows)
        result["large"][f"{eps:g}"] = {t: rows[0][1] for t, rows in pair["acceptance"].items()} | {
            "held_out_loss": pair["held_out_loss"]["large"]
        }
    return result
