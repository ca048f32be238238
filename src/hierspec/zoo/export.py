"""Checkpoints in Hugging Face's form: ``config.json`` and bfloat16 safetensors, in small shards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from .model import NORM_EPS, ROPE_THETA, Llama, Shape

MAX_SHARD_BYTES = 14_000_000


def llama_config(shape: Shape) -> dict:
    """``config.json`` of a model of this shape; token 0 begins and ends every text."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_length,
        "vocab_size": shape.vocab,
        "rms_norm_eps": NORM_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "dtype": "bfloat16",
    }


def shards(tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The tensors in their order, cut so that no part exceeds ``MAX_SHARD_BYTES``."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > MAX_SHARD_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def export(model: Llama, folder: Path) -> None:
    """Write the model into ``folder``, replacing what was there as a whole."""
    tensors = {n: t.detach().bfloat16().contiguous() for n, t in model.state_dict().items()}
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    parts = shards(tensors)
    where = {}
    for number, part in enumerate(parts, 1):
        whole = len(parts) == 1
        name = "model.safetensors" if whole else f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file(part, fresh / name, metadata={"format": "pt"})
        where |= dict.fromkeys(part, name)
    if len(parts) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (fresh / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    for file in fresh.iterdir():
        file.chmod(0o644)  # safetensors writes files for the owner alone
    (fresh / "config.json").write_text(json.dumps(llama_config(model.shape), indent=2) + "\n")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
