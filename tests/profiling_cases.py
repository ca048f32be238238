"""Tiny models on disk with a tokenizer, and what is measured of them."""

from __future__ import annotations

import torch
from fakes import bytes_tokenizer

from hierspec.profiling.settings import ProfileSettings
from hierspec.utils.testing import tiny_model

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
