"""Checkpoints in Hugging Face's form: ``config.json`` and bfloat16 safetensors, in small shards.

The model card, written from ``metrics.json`` so that it cannot disagree with it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

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


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def matrix(names: list[str], values: list[list[float]]) -> str:
    """A symmetric matrix as a table; the lower half says it all."""
    rows = [
        [f"**{name}**", *(f"{values[i][j]:.3f}" if j <= i else "" for j in range(len(names)))]
        for i, name in enumerate(names)
    ]
    return table(["", *names], rows)


def model_card(metrics: dict[str, Any]) -> str:
    """The whole card as Markdown."""
    corpus, training, tokenizer = (metrics[k] for k in ("corpus", "training", "tokenizer"))
    models, result = metrics["models"], metrics["evaluation"]
    parts = [
        "# The hierspec zoo",
        "Small Llama-shaped language models of Python source code, for trying, testing and "
        "measuring speculative decoding where no other model is at hand. Written by "
        "`hierspec zoo train`; this page is made from `metrics.json`. They imitate the look of "
        "Python. They are too small to program.",
        "## Data",
        f"Sources of the standard library of Python {corpus['python_version']} "
        f"(licence {corpus['licence']}): {corpus['train_files']} files to train on, "
        f"{corpus['held_out_files']} held out by a hash of their names "
        f"({corpus['held_out_tokens']:,} tokens); functions with docstrings once more on their "
        f"own; library files {corpus['library_copies']} times for one of tests. "
        f"sha256 of the text: `{corpus['sha256'][:16]}…`. Tokenizer: byte-level BPE, "
        f"{tokenizer['vocab_size']} tokens, {tokenizer['characters_per_token']:.2f} characters "
        "per token on held-out text.",
        "The n-gram table, the tokenizer and the models saw the same training files.",
        "## Models",
        table(
            ["model", "layers", "hidden", "parameters", "megabytes"],
            [
                [n, m["layers"], m["hidden"], f"{m['parameters']:,}", f"{m['bytes'] / 1e6:.1f}"]
                for n, m in models.items()
            ],
        ),
        "The trunk learns the text at its last layer and at one random early exit per step (after "
        "layers 1, 2, 4; same norm and head). mid and small are distilled from the trunk on "
        "training text and on text that the trunk wrote, first by KL divergence, then by total "
        "variation. `zoo:large` is no trained model: it is the trunk widened and deepened at load "
        "time, **a synthetic cost with a real distribution**; say so, with eps, wherever it is "
        "used.",
        table(
            ["run", "steps", "tokens", "wall seconds"],
            [[n, r["steps"], f"{r['tokens']:,}", r["seconds"]] for n, r in training.items()],
        ),
        f"Hardware: {metrics['hardware']}. Seed {metrics['seed']}. {metrics.get('notes', '')}",
        "## Held-out loss",
        table(
            ["model", "nats per token"],
            [[n, f"{v:.3f}"] for n, v in result["held_out_loss"].items()],
        ),
        "## Acceptance",
        "1 − TV of next-token laws on held-out text, mean over positions; at temperature 0 the "
        f"share of equal argmaxes. {metrics['windows']}. `trunk@2` is the trunk's exit after two "
        "layers.",
    ]
    for temperature, values in result["acceptance"].items():
        parts += [f"### Temperature {temperature}", matrix(result["names"], values)]
    parts += [
        "### trunk and large",
        table(
            ["eps", "α at T = 1", "α at T = 0.6", "equal argmaxes", "held-out loss of large"],
            [
                [eps, *(f"{v[t]:.3f}" for t in ("1", "0.6", "0")), f"{v['held_out_loss']:.3f}"]
                for eps, v in result["large"].items()
            ],
        ),
        "(bfloat16; at eps = 0 what remains is rounding.)",
        f"## Sample\nThe trunk at temperature {metrics['sample']['temperature']}:",
        f"```python\n{metrics['sample']['text']}\n```",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"
