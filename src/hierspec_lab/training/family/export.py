"""The family's checkpoints in Hugging Face's form, and the model card beside them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .model import NORM_EPS, ROPE_THETA, Llama, Shape

MAX_SHARD_BYTES = 14_000_000


def llama_config(shape: Shape) -> dict[str, Any]:
    """Return ``config.json`` of a model of this shape; token 0 begins and ends every text."""
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


def write_checkpoint(model: Llama, folder: Path) -> None:
    """Write ``config.json`` and bfloat16 shards into ``folder``, replacing it as a whole."""
    write_folder(folder, model.state_dict(), llama_config(model.shape))


def write_folder(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    extra_files: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint into ``folder``, replacing it as a whole.

    Args:
        tensors: by name; those of floating point are rounded to bfloat16.
        extra_files: their texts by their names.
    """
    fresh, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    stored = {
        name: (t.detach().bfloat16() if t.is_floating_point() else t.detach()).contiguous()
        for name, t in tensors.items()
    }
    save_torch_state_dict(stored, fresh, max_shard_size=MAX_SHARD_BYTES)
    for file in fresh.iterdir():
        file.chmod(0o644)  # safetensors writes files for the owner alone
    (fresh / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name, text in (extra_files or {}).items():
        (fresh / name).write_text(text, encoding="utf-8")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def model_card(folder: str, values: dict[str, Any]) -> str:
    """Render a whole model card as Markdown.

    Args:
        folder: of the template, ``family`` or ``smollm2``.
        values: what the report beside the card holds.
    """
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1] / folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return templates.get_template("MODEL_CARD.md.jinja").render({"zip": zip, **values})
