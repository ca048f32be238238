"""A compact Llama for training, with early exits.

Parameters carry Hugging Face's names, so a checkpoint is this module's ``state_dict``. Weights
are kept in float32 and used in ``dtype``; the loss is float32. :func:`continue_rows` lets a model
write text, many rows at once, with a key-value cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

ROPE_THETA = 10_000.0
NORM_EPS = 1e-5
INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama with tied embeddings and one key-value head per query head."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocab: int = 4096
    max_length: int = 2048


SHAPES = {
    "trunk": Shape(hidden=384, layers=8, heads=6, intermediate=1024),
    "mid": Shape(hidden=256, layers=4, heads=4, intermediate=640),
    "small": Shape(hidden=192, layers=2, heads=3, intermediate=512),
}
EXITS = (1, 2, 4)  # of the trunk, besides the last


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), NORM_EPS)


class _Linear(nn.Module):
    """A weight without a ``forward``: the layer decides how weights are combined."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))


def rope_tables(
    length: int, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine, each [length, head_dim]; the second half repeats the first."""
    rates = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply RoPE to x [..., length, head_dim]."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


class Cache:
    """Keys and values of rows that grow together, in place; for sampling."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._stored: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def extend(
        self, layer: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append a layer's [rows, heads, width, head_dim] tensors; return views of all so far."""
        if layer not in self._stored:
            size = (*key.shape[:2], self.capacity, key.shape[3])
            self._stored[layer] = key.new_empty(size), key.new_empty(size)
        end = self.length + key.shape[2]
        keys, values = self._stored[layer]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = _Linear(shape.hidden, shape.hidden)
        self.k_proj = _Linear(shape.hidden, shape.hidden)
        self.v_proj = _Linear(shape.hidden, shape.hidden)
        self.o_proj = _Linear(shape.hidden, shape.hidden)

    def forward(self, x: torch.Tensor, rope: tuple, cache: Cache | None) -> torch.Tensor:
        rows, width, hidden = x.shape
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        qkv = F.linear(x, weight.to(x.dtype)).view(rows, width, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        query, key = rotate(query, *rope), rotate(key, *rope)
        if cache is not None:
            key, value = cache.extend(self, key, value)
        # Several tokens at once are always the first ones; a single one attends to all before it.
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=width > 1)
        attended = attended.transpose(1, 2).reshape(rows, width, hidden)
        return F.linear(attended, self.o_proj.weight.to(x.dtype))


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = _Linear(shape.hidden, shape.intermediate)
        self.up_proj = _Linear(shape.hidden, shape.intermediate)
        self.down_proj = _Linear(shape.intermediate, shape.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = F.linear(x, self.gate_proj.weight.to(x.dtype))
        up = F.linear(x, self.up_proj.weight.to(x.dtype))
        return F.linear(F.silu(gate) * up, self.down_proj.weight.to(x.dtype))


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = _Norm(shape.hidden)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = _Norm(shape.hidden)
        self.mlp = _MLP(shape)

    def forward(self, x: torch.Tensor, rope: tuple, cache: Cache | None) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Body(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = _Linear(shape.hidden, shape.vocab)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape.hidden)


class Llama(nn.Module):
    """The training model; ``forward`` gives hidden states, ``logits`` the head on top of them."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.model = _Body(shape)
        cos, sin = rope_tables(shape.max_length, shape.hidden // shape.heads, dtype)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw small normal weights; matrices that write to the residual stream start at zero."""
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                std = INIT_STD if "embed" in name else 0.6 * parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, std=std, generator=generator)

    def forward(
        self, tokens: torch.Tensor, exits: tuple[int, ...] = (), cache: Cache | None = None
    ) -> list[torch.Tensor]:
        """Return normed hidden states [rows, width, hidden] after ``exits`` and the last layer.

        With a ``cache``, ``tokens`` follow those in it: a prompt first, then one token at a time.
        """
        start = cache.length if cache is not None else 0
        end = start + tokens.shape[1]
        rope = self.cos[start:end], self.sin[start:end]
        x = self.embed(tokens)
        states = []
        for number, layer in enumerate(self.model.layers):
            x = layer(x, rope, cache)
            if number + 1 in exits or number + 1 == self.shape.layers:
                states.append(self.model.norm(x))
        if cache is not None:
            cache.length = end
        return states

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input [..., hidden] for ids [...], in the working dtype."""
        return F.embedding(tokens, self.model.embed_tokens.weight).to(self.dtype)

    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """Return scores [..., vocab] in the working dtype."""
        return F.linear(state, self.model.embed_tokens.weight.to(state.dtype))


@torch.no_grad()
def continue_rows(
    model: Llama,
    prompts: torch.Tensor,
    length: int,
    temperatures: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Continue prompts [rows, n] up to ``length`` tokens, one temperature per row; int64.

    A temperature of 0 takes the likeliest token.
    """
    cache = Cache(length)
    tokens, new_tokens = prompts, prompts
    greedy = temperatures == 0
    divisor = torch.where(greedy, 1.0, temperatures)[:, None]
    while tokens.shape[1] < length:
        state = model(new_tokens, cache=cache)[-1][:, -1]
        scores = model.logits(state).float() / divisor
        samples = torch.multinomial(scores.softmax(-1), 1, generator=generator)
        new_tokens = torch.where(greedy[:, None], scores.argmax(-1, keepdim=True), samples)
        tokens = torch.cat((tokens, new_tokens), dim=1)
    return tokens
