"""The network as it drafts: a model of one layer without an embedding, run as its target is.

Queries, keys and values are made of two normalised vectors side by side: the embedding of a token,
and the hidden state of the token before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from hierspec.lm.backend import Backend, Span
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.layers import Norm
from hierspec.lm.lean.shape import LlamaShape
from hierspec.lm.native.backend import NativeBackend
from hierspec.lm.products import product
from hierspec.lm.weights import HEAD, SCORED

from .checkpoint import Eagle3Weights

_LAYER = "model.layers.0."
_NORM = _LAYER + "input_layernorm.weight"


class Eagle3Layer:
    """``fc``, the layer and the head over packed rows.

    Args:
        backend: of the target. Where it runs in the compiled kernels, so does the network, and a
            row's bits do not depend on what is computed beside it.

    Attributes:
        model: the layer and the head, which scores tokens that are none of the network's −∞; its
            caches are those of any model.
    """

    def __init__(self, network: Eagle3Weights, backend: Backend) -> None:
        source, dtype = _NetworkSource(network), backend.weight_dtype
        tensors = network.tensors
        shape = replace(LlamaShape.from_config(source.config), num_inputs=2)
        self.model: LeanBackend
        if isinstance(backend, NativeBackend):
            kind, library = backend.attention_dtype, backend.library
            self.model = NativeBackend(source, dtype, library, kind, shape=shape)
        else:
            self.model = LeanBackend(source, dtype, backend.device, shape)
        self.dtype, self.hidden_size = self.model.dtype, shape.hidden_size
        self._fc = product(self.model, tensors["fc.weight"])
        matrices = (each.numel() for each in tensors.values() if each.ndim == 2)
        self.num_bytes = sum(matrices) * dtype.itemsize
        self._first_norm: Norm | None = None
        if network.config.norm_before_residual:
            weight = tensors["midlayer.hidden_norm.weight"].to(backend.device, self.dtype)
            self._first_norm = Norm(weight, len(weight), shape.eps, self.dtype)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Combine the target's hidden states [N, 3 d] into [N, d]."""
        return self._fc(features).to(self.dtype)

    def __call__(
        self, hidden: torch.Tensor, embedded: torch.Tensor, spans: Sequence[Span]
    ) -> torch.Tensor:
        """Return outputs [N, d] of hidden states and embeddings [N, d], the rows of ``spans``."""
        hidden = hidden.to(self.dtype)
        inputs = torch.stack((embedded.to(self.dtype), hidden), 1)
        start = hidden if self._first_norm is None else self._first_norm(hidden)
        return self.model.layers(start, 0, 1, spans, inputs)


class _NetworkSource:
    """A network's parameters by the names of a model of one layer."""

    name, tokenizer_path = "eagle3", None

    def __init__(self, network: Eagle3Weights) -> None:
        self.config: Any = network.config.llama
        tensors = dict(network.tensors)
        kinds = ("input_layernorm", "hidden_norm")
        norms = [tensors.pop(f"midlayer.{kind}.weight") for kind in kinds]
        self._tensors = {_NORM: torch.cat(norms), SCORED: network.scored_ids}
        for name, tensor in tensors.items():
            if name.startswith("midlayer."):
                self._tensors[name.replace("midlayer.", _LAYER)] = tensor
        self._tensors |= {"model.norm.weight": tensors["norm.weight"], HEAD: tensors[HEAD]}

    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]
