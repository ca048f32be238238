"""Models of released sizes with random weights: what they cost is real, what they write is not."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import common  # noqa: F401  (first: it sets the environment torch reads)
import torch
import transformers

from hierspec.config.checkpoints import load_tokenizer
from hierspec.lm.weights import WeightSource, build_hf_model
from hierspec.zoo import registry

CONFIGS = {
    "qwen3-57m": transformers.Qwen3Config(
        vocab_size=49152, hidden_size=512, intermediate_size=1536, num_hidden_layers=10,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
        max_position_embeddings=4096, dtype=torch.bfloat16,
    ),
    "llama-1.2b": transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
        max_position_embeddings=8192, dtype=torch.bfloat16,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class RandomWeights:
    """A model of these sizes as a :class:`WeightSource`, each weight made when it is asked for."""

    name: str
    config: Any
    device: str = "cpu"
    tokenizer_path: Path | None = None

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(self.config)
        return {name: tuple(weight.shape) for name, weight in model.named_parameters()}

    def names(self) -> list[str]:
        return sorted(self.shapes)

    def tensor(self, name: str) -> torch.Tensor:
        shape, options = self.shapes[name], {"dtype": torch.bfloat16, "device": self.device}
        if len(shape) == 1:
            return torch.ones(shape, **options)
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        return torch.empty(shape, **options).uniform_(-0.035, 0.035, generator=generator)

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a token reads: all but the embedding, unless it is the head."""
        tied = "lm_head.weight" not in self.shapes
        return 2 * sum(
            math.prod(shape)
            for name, shape in self.shapes.items()
            if tied or name != "model.embed_tokens.weight"
        )


def open_source(name: str) -> WeightSource:
    """Open a model's weights: of ``CONFIGS``, or as :func:`registry.open_weights` does."""
    return RandomWeights(name, CONFIGS[name]) if name in CONFIGS else registry.open_weights(name)


def checkpoint(name: str, folder: Path) -> str:
    """Return what a command can load: the name, or a folder with the random model's weights.

    The folder is made if it is not there. Its tokenizer is SmolLM2's.
    """
    if name not in CONFIGS:
        return name
    path = folder / name
    if not path.exists():
        unfinished = folder / f"{name}.unfinished"
        build_hf_model(open_source(name), torch.bfloat16).save_pretrained(unfinished)
        load_tokenizer(registry.resolve("zoo:smollm2")).save_pretrained(unfinished)
        unfinished.rename(path)
    return str(path)
