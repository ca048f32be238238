"""Tiny transformers models of the tested families with random weights.

Saved to disk, they go through the same loading code as real checkpoints. A seed determines the
weights.
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
# name → configuration class, and the values by which the family differs from _COMMON
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen3": ("Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**_GROUPED, "head_dim": 8, "sliding_window": 16}),
    "gemma3": ("Gemma3TextConfig", {**_GROUPED, "head_dim": 8, "sliding_window": 16}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": 16}),
    "gpt2": ("GPT2Config", {}),
    "opt": ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 24}),
    "qwen2": ("Qwen2Config", _GROUPED),
    "mixtral": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "phi3": ("Phi3Config", _GROUPED),
    "olmo2": ("Olmo2Config", _GROUPED),
    "bloom": ("BloomConfig", {}),
    "falcon": ("FalconConfig", {"ffn_hidden_size": 64}),
    "falcon_alibi": ("FalconConfig", {"ffn_hidden_size": 64, "alibi": True}),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
            "first_k_dense_replace": 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "moe_intermediate_size": 16,
        },
    ),
}
_T5: dict[str, Any] = {
    "d_model": 32,
    "d_ff": 64,
    "num_heads": 4,
    "d_kv": 8,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
# Families with an encoder that reads the prompt
ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5Config", _T5),
    "flan_t5": (
        "T5Config",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5Config", _T5),
    "umt5": ("UMT5Config", _T5),
}
# Families that are refused by name, likewise
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {"state_size": 4}),
    "bart": ("BartConfig", {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **_GROUPED,
            "head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        {
            **_GROUPED,
            "head_dim": 8,
            "num_kv_shared_layers": 1,
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 96,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
        },
    ),
}


def tiny_config(family: str, layers: int = 3, **changes: Any) -> Any:
    """Return the transformers configuration of a tiny model."""
    import transformers

    config_class, own = {**FAMILIES, **ENCODER_DECODERS, **REFUSED}[family]
    values = {**_COMMON, "num_hidden_layers": layers, **own, **changes}
    if family in ENCODER_DECODERS:
        shared = {key: _COMMON[key] for key in ("vocab_size", "eos_token_id", "pad_token_id")}
        depth = {"num_layers": layers, "num_decoder_layers": layers}
        values = {**shared, **depth, **own, **changes}
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
    return getattr(transformers, config_class)(**values)


def tiny_model(
    family: str, seed: int = 0, layers: int = 3, dtype: torch.dtype = torch.float64, **changes: Any
) -> Any:
    """Return a tiny model, with weights large enough that its most likely tokens rarely tie."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = tiny_config(family, layers, **changes)
    auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model: Any = auto.from_config(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = 0.3 if parameter.dim() > 1 else 0.1
            centre = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(centre + scale * noise)
    return model.eval()


def add_noise(model: Any, noise: float) -> Any:
    """Move the weights of a copy, which then agrees often with the model that it drafts for."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            draw = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise * draw)
    return model


def save_tiny(
    family: str,
    folder: Path,
    seed: int = 0,
    layers: int = 3,
    dtype: torch.dtype = torch.float64,
    **changes: Any,
) -> Path:
    """Save a tiny model with ``save_pretrained`` and return its folder."""
    tiny_model(family, seed, layers, dtype, **changes).save_pretrained(folder)
    return folder
