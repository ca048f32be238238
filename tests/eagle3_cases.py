"""Tiny EAGLE-3 drafters in the published layout, and a plain implementation to compare with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

LAYERS = (1, 2, 3)


def save_drafter(
    folder: Path, target: Any, *, seed: int = 0, known: int = 9, **changes: Any
) -> Path:
    """A random drafter for a transformers config, written tensor by tensor."""
    g = torch.Generator().manual_seed(seed)
    d, heads, kv, size, wide = target.hidden_size, 4, 2, 8, 24
    V = target.vocab_size

    def normal(*shape: int, std: float = 0.3) -> torch.Tensor:
        return torch.randn(shape, generator=g) * std

    ids = torch.randperm(V, generator=g)[:known].sort().values
    tensors = {
        "fc.weight": normal(d, 3 * d),
        "midlayer.input_layernorm.weight": 1 + normal(d),
        "midlayer.hidden_norm.weight": 1 + normal(d),
        "midlayer.post_attention_layernorm.weight": 1 + normal(d),
        "midlayer.self_attn.q_proj.weight": normal(heads * size, 2 * d),
        "midlayer.self_attn.k_proj.weight": normal(kv * size, 2 * d),
        "midlayer.self_attn.v_proj.weight": normal(kv * size, 2 * d),
        "midlayer.self_attn.o_proj.weight": normal(d, heads * size),
        "midlayer.mlp.gate_proj.weight": normal(wide, d),
        "midlayer.mlp.up_proj.weight": normal(wide, d),
        "midlayer.mlp.down_proj.weight": normal(d, wide),
        "norm.weight": 1 + normal(d),
        "lm_head.weight": normal(known, d, std=1.0),
        "d2t": ids - torch.arange(known),
        "t2d": torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True),
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": d,
        "intermediate_size": wide,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": size,
        "hidden_act": "silu",
        "vocab_size": V,
        "draft_vocab_size": known,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
    } | changes
    if config.get("attention_bias"):
        for name in "qkvo":
            weight = tensors[f"midlayer.self_attn.{name}_proj.weight"]
            tensors[f"midlayer.self_attn.{name}_proj.bias"] = normal(len(weight))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def _turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """x [n, heads, 8] by rotary angles."""
    angles = places[:, None].double() * 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    cos, sin = angles.cos().to(x)[:, None], angles.sin().to(x)[:, None]
    a, b = x[..., :4], x[..., 4:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def reference(
    model: Any, folder: Path, committed: list[int], pending: list[int] | tuple[int, ...]
) -> torch.Tensor:
    """Scores [V] after committed + pending, all computed anew with a transformers model."""
    w = {
        name: t.to(model.dtype) if t.is_floating_point() else t
        for name, t in load_file(folder / "model.safetensors").items()
    }
    with torch.no_grad():
        states = model(torch.tensor([committed]), output_hidden_states=True).hidden_states
        rows = len(committed) - 1
        # transformers puts the embedding first: entry i is the state after i layers.
        features = torch.cat([states[i][0, :rows] for i in LAYERS], -1)
        following = torch.tensor([*committed, *pending][1:], dtype=torch.int64)
        embedded = model.get_input_embeddings()(following)
        hidden = list(features @ w["fc.weight"].T)
        out: list[torch.Tensor] = []
        layer = "midlayer."

        def projected(x: torch.Tensor, name: str) -> torch.Tensor:
            name = f"{layer}self_attn.{name}_proj"
            return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

        for t in range(rows + len(pending)):
            if t >= rows:
                hidden.append(out[-1] if out else torch.zeros_like(embedded[0]))
            h = torch.stack(hidden[: t + 1])
            x = torch.cat(
                (
                    _rms(embedded[: t + 1], w[layer + "input_layernorm.weight"]),
                    _rms(h, w[layer + "hidden_norm.weight"]),
                ),
                -1,
            )
            q, k, v = (projected(x, name).unflatten(-1, (-1, 8)) for name in "qkv")
            places = torch.arange(t + 1)
            q, k = _turned(q, places), _turned(k, places)
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            weights = (torch.einsum("hs,nhs->hn", q[-1], k) / 8**0.5).softmax(-1)
            attended = torch.einsum("hn,nhs->hs", weights, v).flatten()
            y = h[-1] + projected(attended, "o")
            z = _rms(y, w[layer + "post_attention_layernorm.weight"])
            gate, up = (
                z @ w[layer + "mlp.gate_proj.weight"].T,
                z @ w[layer + "mlp.up_proj.weight"].T,
            )
            out.append(y + (F.silu(gate) * up) @ w[layer + "mlp.down_proj.weight"].T)
        last = out[-1] if out else torch.zeros(model.config.hidden_size, dtype=model.dtype)
        scores = _rms(last, w["norm.weight"]) @ w["lm_head.weight"].T
    whole = torch.full((model.config.vocab_size,), -torch.inf, dtype=scores.dtype)
    whole[w["d2t"] + torch.arange(len(w["d2t"]))] = scores
    return whole
