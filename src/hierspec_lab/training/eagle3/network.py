"""The EAGLE-3 draft network as modules that are trained, named as they are published.

Shapes: d hidden, D draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hierspec.lm.eagle3.checkpoint import Eagle3Weights
from hierspec.lm.eagle3.config import Eagle3Config


class _Eagle3Attention(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        d, size, bias = 2 * config.hidden_size, config.head_dim, config.attention_bias
        self.q_proj = nn.Linear(d, config.num_attention_heads * size, bias=bias)
        self.k_proj = nn.Linear(d, config.num_key_value_heads * size, bias=bias)
        self.v_proj = nn.Linear(d, config.num_key_value_heads * size, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * size, config.hidden_size, bias=bias)


class _Eagle3MLP(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class _Midlayer(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.self_attn = _Eagle3Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.mlp = _Eagle3MLP(config)


class Eagle3Network(nn.Module):
    """The network's parameters, which :mod:`.unroll` computes with.

    ``d2t[i]`` + i is the target's id of draft id i; ``t2d`` is whether the network scores each id
    of the target.
    """

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        d, size = config.hidden_size, config.draft_vocab_size
        self.fc = nn.Linear(3 * config.target_hidden_size, d, bias=False)
        self.midlayer = _Midlayer(config)
        self.norm = nn.RMSNorm(d, config.rms_norm_eps)
        self.lm_head = nn.Linear(d, size, bias=False)
        self.d2t: Tensor
        self.t2d: Tensor
        self.register_buffer("d2t", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    @staticmethod
    def of(weights: Eagle3Weights) -> Eagle3Network:
        """Return a network with copies of the weights of a checkpoint."""
        network = Eagle3Network(weights.config)
        network.set_vocabulary(weights.scored_ids)
        network.load_state_dict({**weights.tensors, "t2d": network.t2d})
        return network.eval()

    def set_vocabulary(self, ids: Tensor) -> None:
        """Set the target's ids that the network scores, [D] ascending."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    @property
    def scored_ids(self) -> Tensor:
        """The target's ids that the network scores, int64 [D]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)
