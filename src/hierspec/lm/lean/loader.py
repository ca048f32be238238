"""A Llama-shaped model's weights, read from their source into the lean forward's layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hierspec.lm.weights import (
    EMBEDDING,
    HEAD,
    SCORED,
    WeightSource,
    validate_shape,
    validate_unused,
)
from hierspec.utils.machine import give_back_memory

from .layers import Layer, Matrix, Norm
from .shape import LlamaShape, pair_rows


class LeanLoader:
    """Reads and fuses one layer after the other, so that no second copy ever exists.

    Args:
        backend: the lean backend that is being built, for its device and data types.

    Attributes:
        scored: token ids of the head's rows, where it has them for a part of the vocabulary alone.
        num_weights: read so far.
    """

    def __init__(self, source: WeightSource, shape: LlamaShape, backend: Any) -> None:
        self.source, self.shape, self.backend = source, shape, backend
        self.names = set(source.names())
        self.unused = self.names - {SCORED}
        self.scored: torch.Tensor | None = None
        self.num_weights = 0
        if SCORED in self.names:
            self.scored = source.tensor(SCORED).to(backend.device, torch.int64)

    def load(self) -> tuple[torch.Tensor, list[Layer], Norm, Matrix]:
        """Load the embedding [V, d], the layers, the final norm and the head."""
        # A tensor of a checkpoint may be a view of the mapped file; a copy lets the file go.
        width, vocab = self.shape.hidden_size, self.shape.vocab_size
        embedding = torch.empty(0)
        if self.shape.embeds:
            embedding = self.get(EMBEDDING, vocab, width).clone()
        layers = []
        for i in range(self.shape.num_layers):
            layers.append(self.layer(i))
            give_back_memory()
        tied = HEAD not in self.names and self.source.config.tie_word_embeddings
        rows = vocab if self.scored is None else len(self.scored)
        head = Matrix(embedding if tied else self.get(HEAD, rows, width))
        norm = self.norm("model.norm")
        self.validate_all_used()
        return embedding, layers, norm, head

    def validate_all_used(self) -> None:
        """Refuse a source with weights of the model's own parts that were not read."""
        parts = ("model.layers.", "model.norm.", "model.embed_tokens.", "lm_head.")
        validate_unused(self.source.name, (n for n in self.unused if n.startswith(parts)))

    def get(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self.read(name, *shape)
        return tensor.to(self.backend.device, self.backend.weight_dtype)

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """Read a parameter as it is."""
        tensor = self.source.tensor(name)
        self.use(name, tensor.shape, shape)
        return tensor

    def use(self, name: str, shape: Sequence[int], expected: Sequence[int]) -> None:
        """Note that a parameter is used, and check its shape."""
        validate_shape(self.source.name, name, shape, expected)
        self.unused.discard(name)
        self.num_weights += math.prod(shape)

    def norm(self, name: str, num: int = 1) -> Norm:
        """Read the weight of a norm [d], or of several that lie side by side, [num, d]."""
        width = self.shape.hidden_size
        weight = self.get(f"{name}.weight", num * width).to(self.backend.dtype)
        weight = weight.view(num, width).squeeze(0)
        return Norm(weight, width, self.shape.eps, self.backend.weight_dtype)

    def layer(self, i: int) -> Layer:
        prefix, shape = f"model.layers.{i}.", self.shape
        width, inner = shape.hidden_size, shape.intermediate_size
        heads, kv = (n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads))
        sizes = dict(zip("qkv", (heads, kv, kv), strict=True))
        read = shape.num_inputs * width
        qkv = {f"{prefix}self_attn.{p}_proj": (rows, read) for p, rows in sizes.items()}
        gate_up = {f"{prefix}mlp.{p}_proj": (inner, width) for p in ("gate", "up")}
        return Layer(
            norm=self.norm(prefix + "input_layernorm", shape.num_inputs),
            qkv=self.fuse(qkv, num_rotated=2),
            qk_norm=self.qk_norm(prefix) if shape.qk_norm else None,
            out=self.fuse({prefix + "self_attn.o_proj": (width, heads)}),
            mlp_norm=self.norm(prefix + "post_attention_layernorm"),
            gate_up=self.fuse(gate_up),
            down=self.fuse({prefix + "mlp.down_proj": (width, inner)}),
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            attention_dtype=self.backend.attention_dtype,
            mask_index=shape.distinct_windows.index(shape.windows[i]),
        )

    def fuse(self, parts: Mapping[str, tuple[int, int]], num_rotated: int = 0) -> Matrix:
        """Return one matrix of several, given by name and shape; rows of the first
        ``num_rotated``, those of queries and keys, are paired (:func:`~.shape.pair_rows`)."""
        weights, biases = [], []
        biased = [name.split(".")[-1].removesuffix("_proj") in self.shape.biased for name in parts]
        for j, ((name, shape), has_bias) in enumerate(zip(parts.items(), biased, strict=True)):
            weight = self.get(f"{name}.weight", *shape)
            bias = self.get(f"{name}.bias", shape[0]) if has_bias else weight.new_zeros(len(weight))
            if j < num_rotated:
                weight, bias = self.pair(weight), self.pair(bias)
            weights.append(weight)
            biases.append(bias)
        if not any(biased):
            return Matrix(torch.cat(weights))
        return Matrix(torch.cat(weights), torch.cat(biases))

    def qk_norm(self, prefix: str) -> Norm:
        """Return Qwen3's norms of the query and key heads as one, [H + H_kv, D]."""
        q = self.pair(self.get(prefix + "self_attn.q_norm.weight", self.shape.head_dim))
        k = self.pair(self.get(prefix + "self_attn.k_norm.weight", self.shape.head_dim))
        shape, exact = self.shape, self.backend.dtype
        weight = torch.cat((q.expand(shape.num_heads, -1), k.expand(shape.num_kv_heads, -1)))
        return Norm(weight.to(exact), shape.head_dim, shape.eps, exact)

    def pair(self, rows: torch.Tensor) -> torch.Tensor:
        return pair_rows(rows, self.shape.head_dim)
