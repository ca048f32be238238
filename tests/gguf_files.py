"""Tiny GGUF files, written as llama.cpp's converter writes them, from models of transformers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

LETTERS = [chr(i) for i in range(ord("a"), ord("z") + 1)]
DIGITS = [str(i) for i in range(10)]
SPECIAL = ["<|end|>", "<|start|>", "<|turn|>", "<think>"]
TOKENS = [*SPECIAL, *LETTERS, *DIGITS, "Ġ", "th", "the", "Ġthe", "12"]
KINDS = [3, 3, 3, 4, *[1] * (len(TOKENS) - len(SPECIAL))]
MERGES = ["t h", "th e", "Ġ the", "1 2"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}<|start|>"

_LLAMA = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA = {
    **_LLAMA,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
PARTS = {"gemma2": _GEMMA, "gemma3": _GEMMA}
CLASSES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "phi3": "Phi3",
    "gemma": "Gemma",
    "gemma2": "Gemma2",
    "gemma3": "Gemma3",
}


def tiny(architecture: str = "llama", **options: Any) -> Any:
    """Return a small random model whose weights bfloat16 holds as they are."""
    torch.manual_seed(3)
    name = CLASSES[architecture]
    sizes: dict[str, Any] = {
        "vocab_size": len(TOKENS),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        "tie_word_embeddings": True,
        "pad_token_id": None,
        **options,
    }
    config = getattr(transformers, f"{name}{'Text' if name == 'Gemma3' else ''}Config")(**sizes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            spread = 0.3 if weight.ndim > 1 else 0.1
            weight.add_(torch.randn_like(weight) * spread)
            weight.copy_(weight.to(torch.bfloat16))
    return model


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return transformers' halves as a Llama's pairs."""
    num, *rest = rows.shape
    return rows.reshape(heads, 2, num // heads // 2, *rest).transpose(1, 2).reshape(num, *rest)


def tensors(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """Return a model's weights under llama.cpp's names, as its converter stores them."""
    config, parts = model.config, PARTS.get(architecture, _LLAMA)
    found = {}
    for name, weight in model.named_parameters():
        part, _, kind = name.rpartition(".")
        weight = weight.detach().float()
        if part in _TOP:
            theirs = _TOP[part]
        else:
            layer, _, part = part.removeprefix("model.layers.").partition(".")
            theirs = f"blk.{layer}.{parts[part]}"
        if architecture == "llama" and part.endswith(("q_proj", "k_proj")):
            heads = config.num_key_value_heads if "k_proj" in part else config.num_attention_heads
            weight = interleaved(weight, heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        found[f"{theirs}.{kind}"] = weight.numpy().astype(np.float32)
    return found


def add_sizes(writer: Any, config: Any, architecture: str) -> None:
    """Write a model's sizes, each under the key of its converter."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture in ("qwen3", "gemma", "gemma2", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    rope = config.rope_parameters
    if architecture == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_string(f"{architecture}.rope.scaling.type", "linear")
        writer.add_rope_scaling_factor(rope["factor"])
    if architecture in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
        part = rope.get("partial_rotary_factor", 1.0)
        heads = config.num_attention_heads
        writer.add_rope_dimension_count(int(part * config.hidden_size) // heads)
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)


def add_vocabulary(writer: Any, pre: str = "smollm") -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_chat_template(TEMPLATE)


def save(
    path: Path,
    model: Any,
    architecture: str = "llama",
    *,
    like: str | None = None,
    quantization: str | None = None,
    vocabulary: Callable[[Any], None] = add_vocabulary,
    edit: Callable[[Any], None] | None = None,
    drop: Collection[str] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    stored: Mapping[str, tuple[np.ndarray, Any]] | None = None,
) -> Path:
    """Write a model as a GGUF file.

    Args:
        like: the family whose keys and names are written, if ``architecture`` is not its name.
        quantization: ggml's name of that of matrices: ``Q8_0``; default: float32.
        edit: writes or changes metadata.
        drop: keys and names of tensors that are left out.
        extra: tensors beside the model's.
        stored: tensors that are quantized already: their blocks, and ggml's type of these.
    """
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    add_sizes(writer, model.config, like or architecture)
    vocabulary(writer)
    if edit:
        edit(writer)
    for key in drop:
        writer.kv_data[0].pop(key, None)
    for name, data in {**tensors(model, like or architecture), **(extra or {})}.items():
        if name in drop:
            continue
        if stored and name in stored:
            blocks, kind = stored[name]
            writer.add_tensor(name, blocks, raw_dtype=kind)
            continue
        if quantization and data.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantization]
            writer.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
