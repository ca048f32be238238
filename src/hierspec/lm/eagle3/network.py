"""The EAGLE-3 draft network [Li et al. 2025, §3.1], its parameters named as they are published.

At position t it reads the target's features of token x_t (three hidden states, fused by ``fc``) and
the embedding of x_{t+1}, and scores x_{t+2} over a vocabulary of its own. Where the target's
features are not computed yet, its own output at the position before replaces the fused ones.

Shapes: N rows, d hidden, D draft vocabulary, V target's vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import Eagle3Config


class _Eagle3Attention(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        d, size, bias = 2 * config.hidden_size, config.head_dim, config.attention_bias
        self.q_proj = nn.Linear(d, config.num_heads * size, bias=bias)
        self.k_proj = nn.Linear(d, config.num_kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(d, config.num_kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * size, config.hidden_size, bias=bias)


class _Eagle3MLP(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Midlayer(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.eps
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.self_attn = _Eagle3Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.mlp = _Eagle3MLP(config)


class Eagle3Network(nn.Module):
    """The network as it is trained; its caller computes the attention.

    ``d2t[i]`` + i is the target's id of draft id i; ``t2d`` is whether the network scores each id
    of the target.
    """

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        d, size = config.hidden_size, config.draft_vocab_size
        self.fc = nn.Linear(3 * config.target_hidden_size, d, bias=False)
        self.midlayer = _Midlayer(config)
        self.norm = nn.RMSNorm(d, config.eps)
        self.lm_head = nn.Linear(d, size, bias=False)
        self.d2t: Tensor
        self.t2d: Tensor
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def set_vocabulary(self, ids: Tensor) -> None:
        """Set the target's ids that the network scores, [D] ascending."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    @property
    def scored_ids(self) -> Tensor:
        """The target's ids that the network scores, int64 [D]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def qkv(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, H, D_h], keys and values [N, H_kv, D_h] of embeddings and hidden
        states [N, d], not rotated."""
        layer, attention = self.midlayer, self.midlayer.self_attn
        x = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), -1)
        heads = (-1, self.config.head_dim)
        q, k, v = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)
        return q.unflatten(-1, heads), k.unflatten(-1, heads), v.unflatten(-1, heads)

    def output(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output for hidden states [N, d] and their attention [N, H · D_h]."""
        layer = self.midlayer
        if self.config.norm_before_residual:
            hidden = layer.hidden_norm(hidden)
        hidden = hidden + layer.self_attn.o_proj(attended)
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    def scores(self, output: Tensor) -> Tensor:
        """Return scores over the draft vocabulary [N, D] of the layer's output [N, d]."""
        return self.lm_head(self.norm(output))
