"""Tiny random transformers models of the tried families, saved to disk: for tests and benchmarks.

They go through the same loading code as real checkpoints. Nothing here is random but the weights,
and those come from a seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {"num_key_value_heads": 2}
# name → configuration class and what sets the family apart at this size
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen3": ("Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**_GROUPED, "head_dim": 8, "sliding_window": 16}),
    "gemma3": ("Gemma3TextConfig", {**_GROUPED, "head_dim": 8, "sliding_window": 16}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": 16}),
    "gpt2": ("GPT2Config", {}),
    "opt": ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 24}),
}


def tiny_config(family: str, layers: int = 3, **changes: Any) -> Any:
    """The transformers configuration of a tiny model."""
    import transformers

    kind, own = FAMILIES[family]
    values = {**_COMMON, "num_hidden_layers": layers, **own, **changes}
    if family == "gpt2":
        values = {
            "vocab_size": values["vocab_size"],
            "n_embd": values["hidden_size"],
            "n_layer": layers,
            "n_head": values["num_attention_heads"],
            "n_positions": values["max_position_embeddings"],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
    return getattr(transformers, kind)(**values)


def tiny_model(
    family: str, seed: int = 0, layers: int = 3, dtype: torch.dtype = torch.float64, **changes: Any
) -> Any:
    """A model with weights large enough that its choices are not all ties."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_config(family, layers, **changes), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = 0.3 if parameter.dim() > 1 else 0.1
            centre = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(centre + scale * noise)
    return model.eval()


def save_tiny(
    family: str,
    folder: Path,
    seed: int = 0,
    layers: int = 3,
    dtype: torch.dtype = torch.float64,
    **changes: Any,
) -> Path:
    """A tiny model's directory, as ``save_pretrained`` writes it."""
    tiny_model(family, seed, layers, dtype, **changes).save_pretrained(folder)
    return folder
