"""A model without some of its layers, on the same weights: what drafts in self-speculation.

Zhang et al. (2023, Draft & Verify) and Xia et al. (2024, SWIFT) draft with the target itself and
leave layers out. The hidden states of that path are not the target's, so it keeps keys and values
of its own; its weights are the target's. Whole layers are skipped here, where those papers choose
attention and MLP parts apart, and the choice is given: no search for good layers is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.errors import HierspecError

from .backend import Backend, Span


class SkippingBackend:
    """A :class:`~hierspec.lm.backend.Backend` that runs a subset of another's layers.

    Layer i of this backend is the i-th layer kept. Caches come from ``backend``: they have places
    for skipped layers too, which are never written.

    Args:
        backend: whose layers, embedding, norm and head are used.
        skip: layers left out, counted from 0.

    Raises:
        HierspecError: a layer that is not there, named twice, or none left out, or none kept.
    """

    def __init__(self, backend: Backend, skip: Sequence[int]) -> None:
        depth = backend.num_layers
        if not skip or len(set(skip)) < len(skip) or not all(0 <= i < depth for i in skip):
            raise HierspecError(
                f"skip_layers must name layers 0 to {depth - 1} of {backend.name}, each once; "
                f"got {list(skip)}"
            )
        self.kept = tuple(i for i in range(depth) if i not in set(skip))
        if not self.kept:
            raise HierspecError(f"skip_layers leaves no layer of {backend.name}: keep at least one")
        self.backend = backend
        self.new_cache, self.grow, self.embed = backend.new_cache, backend.grow, backend.embed
        self.head, self.unembedding, self.copy = backend.head, backend.unembedding, backend.copy
        self.move, self.trees = backend.move, backend.trees
        self.name = f"{backend.name}~{len(self.kept)}/{depth}"
        self.fast_path = backend.fast_path
        self.num_layers = len(self.kept)
        self.vocab_size, self.hidden_size = backend.vocab_size, backend.hidden_size
        self.max_length = backend.max_length
        self.device = backend.device
        self.dtype, self.weight_dtype = backend.dtype, backend.weight_dtype

    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        for first, end in runs(self.kept[lo:hi]):
            h = self.backend.layers(h, first, end, spans)
        return h


def runs(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Increasing layers as ranges [first, end) of neighbours."""
    out: list[tuple[int, int]] = []
    for layer in layers:
        if out and out[-1][1] == layer:
            out[-1] = (out[-1][0], layer + 1)
        else:
            out.append((layer, layer + 1))
    return out


def evenly(share: float, depth: int) -> tuple[int, ...]:
    """About ``share`` of ``depth`` layers, at even distances from the second on.

    The first and the last layer are never among them, and at least one other is.

    Raises:
        HierspecError: fewer than three layers: there is no middle.
    """
    middle = depth - 2
    if middle < 1:
        raise HierspecError(
            f"layer_skip by a share needs a target of at least 3 layers, this one has {depth}: "
            "name skip_layers, or use another method"
        )
    count = min(max(1, round(share * depth)), middle)
    return tuple(1 + j * middle // count for j in range(count))
