"""The models that the lean forward can run, and the sizes it needs of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hierspec.errors import HierspecError
from hierspec.lm.hf.support import layer_kinds

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """A Llama-shaped model: H query heads, H_kv key/value heads of D dimensions, V tokens.

    ``windows`` holds, for every layer, how many positions it attends to (its own included); None:
    all. ``qk_norm``: whether the heads of queries and keys are normalised, as in Qwen3. ``biased``:
    the projections that have a bias, of q, k, v, o, gate, up and down. ``num_inputs``: of how many
    normalised vectors, side by side, queries, keys and values are made. Where that is not the
    residual stream alone, there is no embedding.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    max_length: int
    qk_norm: bool
    windows: tuple[int | None, ...]
    biased: frozenset[str]
    num_inputs: int = 1

    @property
    def embeds(self) -> bool:
        return self.num_inputs == 1

    @property
    def distinct_windows(self) -> tuple[int | None, ...]:
        """Return each window once; a layer's ``mask_index`` is its window's index here."""
        return tuple(dict.fromkeys(self.windows))

    @classmethod
    def from_config(cls, config: Any) -> LlamaShape:
        """Read the shape from a transformers config.

        Raises:
            HierspecError: the lean forward cannot run it; says why.
        """
        if reason := unsupported_reason(config):
            raise HierspecError(
                f"the lean backend cannot run this model: {reason}; use backend='hf'"
            )
        heads, layers = config.num_attention_heads, config.num_hidden_layers
        window = getattr(config, "sliding_window", None)
        return cls(
            vocab_size=config.vocab_size,
            num_layers=layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            eps=config.rms_norm_eps,
            max_length=config.max_position_embeddings,
            qk_norm=config.model_type == "qwen3",
            windows=tuple(
                window if kind == "sliding_attention" else None
                for kind in layer_kinds(config, layers)
            ),
            biased=_biased_projections(config),
        )


def unsupported_reason(config: Any) -> str | None:
    """Return why the lean forward cannot run a model with this config; None if it can."""
    family = getattr(config, "model_type", None)
    if family not in FAMILIES:
        return f"its architecture is {family}, not one of {', '.join(FAMILIES)}"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantized"
    if config.hidden_act not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}, not silu"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in _ROPE_TYPES:
        return f"its rope type is {rope.get('rope_type')}, not one of {', '.join(_ROPE_TYPES)}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "it rotates only part of each head"
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if heads % kv_heads:
        return f"its {heads} heads do not divide among {kv_heads} heads of keys and values"
    kinds = set(layer_kinds(config, config.num_hidden_layers))
    if unknown := sorted(kinds - {"full_attention", "sliding_attention"}):
        return f"it has layers of type {', '.join(unknown)}"
    return None


def _biased_projections(config: Any) -> frozenset[str]:
    family, biased = config.model_type, set[str]()
    if family == "qwen2":
        biased.update("qkv")
    if family in ("llama", "qwen3") and config.attention_bias:
        biased.update("qkvo")
    if family == "llama" and config.mlp_bias:
        biased.update(("gate", "up", "down"))
    return frozenset(biased)


def rotations(config: Any, length: int) -> torch.Tensor:
    """Return cos + i·sin of every position and frequency, complex64 [length, D / 2].

    They are computed in float32 from float32 frequencies, as in transformers for every dtype, and
    include any scaling of attention (yarn).
    """
    rope = config.rope_parameters
    kind = rope["rope_type"]
    if kind in ("default", "llama3"):  # without transformers, which takes a second to import
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        exponents = torch.arange(0, dim, 2, dtype=torch.float, device="cpu") / dim
        frequencies, scale = 1.0 / (rope["rope_theta"] ** exponents), 1.0
        if kind == "llama3":
            frequencies = _stretched(frequencies, rope)
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    angles = torch.arange(length, device="cpu").float()[:, None] * frequencies.float()
    return torch.complex(angles.cos() * scale, angles.sin() * scale)


def _stretched(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Return Llama 3.1's frequencies: lower by a factor where a text of the original length has few
    turns, as they are where it has many, and between these two in proportion to the turns."""
    turns = rope["original_max_position_embeddings"] / (2 * math.pi / frequencies)
    few, many = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = ((turns - few) / (many - few)).clamp(0, 1)
    # In the order of transformers' operations, so that no bit differs.
    return (1 - kept) * frequencies / rope["factor"] + kept * frequencies


def pair_rows(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return rows [H · D, …] with j and j + D / 2 of each head, which rotate together, adjacent."""
    shape = rows.shape
    return rows.view(-1, 2, head_dim // 2, *shape[1:]).transpose(1, 2).reshape(shape)
