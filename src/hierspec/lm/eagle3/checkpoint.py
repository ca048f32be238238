"""EAGLE-3 checkpoints in the published layout: ``config.json`` beside ``model.safetensors``.

At position t the network [Li et al. 2025, §3.1] reads the target's features of token x_t (three
hidden states, fused by ``fc``) and the embedding of x_{t+1}, and scores x_{t+2} over a vocabulary
of its own. Where the target's features are not computed yet, its own output at the position before
replaces the fused ones.

Tensors: ``fc``, ``midlayer.*``, ``norm``, ``lm_head``, ``d2t``; sometimes ``embed_tokens``, a copy
of the target's embedding, and ``t2d``, which follows from ``d2t``: both are ignored. In some files
the layer is called ``layers.0``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hierspec.errors import HierspecError
from hierspec.lm.weights import Checkpoint, locate, validate_shape
from hierspec.utils.files import expand_user

from .config import Eagle3Config, read_config

_IGNORED = ("embed_tokens.weight", "t2d")


@dataclass(frozen=True, slots=True, eq=False)
class Eagle3Weights:
    """A network's parameters, float32, by the names that they are published under.

    ``d2t[i]`` + i, int64 [D], is the target's id of draft id i.
    """

    config: Eagle3Config
    tensors: dict[str, torch.Tensor]

    @property
    def scored_ids(self) -> torch.Tensor:
        """The target's ids that the network scores, int64 [D] ascending."""
        d2t = self.tensors["d2t"]
        return d2t + torch.arange(len(d2t), device=d2t.device)


def read_network(folder: str | Path) -> Eagle3Weights:
    """Read a network.

    Raises:
        HierspecError: there is no such folder, or no EAGLE-3 drafter in it.
    """
    config, folder = read_folder(folder), expand_user(folder)
    source = Checkpoint(folder, str(folder), None, locate(folder), None)
    tensors = {_rename(n): source.tensor(n) for n in source.names() if n not in _IGNORED}
    if "d2t" not in tensors and config.draft_vocab_size == config.vocab_size:
        tensors["d2t"] = torch.zeros(config.vocab_size)
    shapes = _shapes(config)
    for name, shape in shapes.items():
        if name not in tensors:
            raise HierspecError(
                f"{folder} lacks {name!r}: it is not an EAGLE-3 drafter of one layer"
            )
        validate_shape(source.name, name, tensors[name].shape, shape)
    if unknown := sorted(set(tensors) - set(shapes)):
        raise HierspecError(f"{folder} holds {unknown[0]!r}, which no EAGLE-3 drafter has")
    d2t = tensors.pop("d2t").long()
    network = Eagle3Weights(config, {n: one.float() for n, one in tensors.items()} | {"d2t": d2t})
    ids = network.scored_ids
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise HierspecError(f"{folder}: d2t leads out of the target's vocabulary")
    return network


def read_folder(folder: str | Path) -> Eagle3Config:
    """Read what a network's folder says of it.

    Raises:
        HierspecError: there is no such folder, or no EAGLE-3 drafter in it.
    """
    folder = expand_user(folder)
    if not folder.is_dir():
        raise HierspecError(f"no directory {str(folder)!r}: give the folder of an EAGLE-3 drafter")
    return read_config(folder / "config.json")


def _rename(name: str) -> str:
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _shapes(config: Eagle3Config) -> dict[str, tuple[int, ...]]:
    d, inner, size = config.hidden_size, config.intermediate_size, config.draft_vocab_size
    heads, kv = (
        n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads)
    )
    attention, mlp = "midlayer.self_attn.", "midlayer.mlp."
    matrices = {
        "fc": (d, 3 * config.target_hidden_size),
        attention + "q_proj": (heads, 2 * d),
        attention + "k_proj": (kv, 2 * d),
        attention + "v_proj": (kv, 2 * d),
        attention + "o_proj": (d, heads),
        mlp + "gate_proj": (inner, d),
        mlp + "up_proj": (inner, d),
        mlp + "down_proj": (d, inner),
        "lm_head": (size, d),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    shapes = {f"{name}.weight": shape for name, shape in matrices.items()}
    shapes |= dict.fromkeys((*(f"midlayer.{name}.weight" for name in norms), "norm.weight"), (d,))
    if config.attention_bias:
        biased = (name for name in matrices if name.startswith(attention))
        shapes |= {f"{name}.bias": matrices[name][:1] for name in biased}
    return {**shapes, "d2t": (size,)}
