"""Tiny models on disk with a tokenizer, what is measured of them, and pools of random tables."""

from __future__ import annotations

import torch
from fakes.tokenizers import bytes_tokenizer
from tiny_models import tiny_model

from hierspec import TargetConfig
from hierspec.lm.tabular import TabularModel
from hierspec.profiling.candidates import CandidatePool, PoolMember, parse
from hierspec.profiling.settings import ProfileSettings

V = 256
SMALL = ProfileSettings(
    max_speculative_tokens=3,
    tokens=12,
    places=2,
    rounds=1,
    places_per_class=1,
    prompts=2,
    repeats=1,
)
PROMPTS = ["hello world, hello world", "abcabcabcabc"]


def save_model(folder, noise=0.0, tokenizer=None):
    model = tiny_model("llama", seed=1, layers=3, vocab_size=V, max_position_embeddings=256)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            draw = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise * draw)
    model.save_pretrained(folder)
    (bytes_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    return str(folder)


def tables(*found, temperatures=None):
    """A pool of tabular models, the target last."""
    temperatures = temperatures or [None] * len(found)
    members = [
        PoolMember(
            f"m{i}",
            model,
            f"m{i}",
            parse(f"m{i}" if t is None else f"m{i},temperature={t}"),
        )
        for i, (model, t) in enumerate(zip(found[:-1], temperatures, strict=False))
    ]
    members.append(PoolMember("target", found[-1], "target"))
    return CandidatePool(TargetConfig(model="target"), tuple(members), None)


def random_tables(count, vocab=4, order=1, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [TabularModel.random(vocab, order, generator) for _ in range(count)]


class Stop(Exception):  # noqa: N818 not an error
    """Ends a measurement in its middle."""
