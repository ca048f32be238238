"""Writes Llama weights as a GGUF file for llama.cpp: the same numbers, and no tokenizer.

Written with the ``gguf`` package of llama.cpp. Two conventions differ from transformers': rows of
the query and key projections interleave the two halves that a rotation mixes, and norms are
float32. Matrices keep their dtype.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from hierspec_lab.bench.methods.base import Unavailable

from .base import import_peer

TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def write_gguf(model: Any, path: Path, dtype: str | None = None) -> None:
    """Write a transformers ``LlamaForCausalLM`` to ``path``.

    Args:
        dtype: torch's name for the dtype of the matrices; default: the model's. The narrower one
            that weights were widened from changes none of them.

    Raises:
        Unavailable: the model is of another family, dtype or rotation, or ``gguf`` is missing.
    """
    gguf = import_peer("gguf", "gguf")
    config = model.config
    dtype = dtype or str(model.dtype).removeprefix("torch.")
    if reason := unsupported(config, dtype):
        raise Unavailable(f"no GGUF file of this model is written: {reason}")
    from .partial_head import PartialHead

    if isinstance(model.lm_head, PartialHead):
        raise Unavailable("no GGUF file of this model is written: it scores a part of its tokens")
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    kind = gguf.GGMLQuantizationType[TYPES[dtype]]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for name, parameter in model.named_parameters():  # a tied head is not among them, nor in GGUF
        values = parameter.detach().float().cpu().numpy()
        if name.endswith("q_proj.weight"):
            values = interleave_halves(values, heads)
        elif name.endswith("k_proj.weight"):
            values = interleave_halves(values, config.num_key_value_heads)
        stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        name = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize_gguf(source: Path, path: Path, kind: str) -> None:
    """Have llama.cpp quantize a GGUF file to ``path``; ``kind``: as ``Q8_0`` or ``Q4_K_M``.

    Raises:
        Unavailable: llama.cpp refuses the model, or ``llama_cpp`` is missing.
    """
    package = import_peer("llama_cpp", "llama-cpp-python")
    options = package.llama_model_quantize_default_params()
    options.ftype = getattr(package, f"LLAMA_FTYPE_MOSTLY_{kind}")
    if package.llama_model_quantize(
        str(source).encode(), str(path).encode(), ctypes.byref(options)
    ):
        raise Unavailable(f"llama.cpp does not quantize this model to {kind}")


def unsupported(config: Any, dtype: str) -> str | None:
    """Return why a model cannot be written, or ``None`` if it can."""
    rope = (config.rope_parameters or {}) if config.model_type == "llama" else {}
    if config.model_type != "llama":
        return f"its architecture is {config.model_type}, not llama"
    if dtype not in TYPES:
        return f"its dtype is {dtype}, not one of {', '.join(TYPES)}"
    if rope.get("rope_type", "default") != "default":
        return f"its rope type is {rope['rope_type']}, not default"
    if config.attention_bias or config.mlp_bias:
        return "it has biases"
    return None


def interleave_halves(weight: Any, heads: int) -> Any:
    """Order each head's rows [heads · D, d] as 0, D/2, 1, D/2 + 1, …: pairs to rotate adjoin."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
