"""Attention over packed sequences for transformers layers: one weights pass, no padding.

A layer hands its projected queries [1, H, N, d] to a named attention function. While our loop
runs several sequences, that name is ours, and the function calls the model's own attention once
per sequence, on that sequence's cache and mask. Outside the loop the model is as it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_NAME = "hierspec_packed"


class _Active(NamedTuple):
    own: str
    cache: Any
    masks: dict[str, list[torch.Tensor | None]]
    kinds: Sequence[str]


_local = threading.local()
# Held while layers run: the name of the attention is the model's, and so every thread's.
ATTENTION = threading.RLock()


def _own_attention(module: Any, name: str) -> Callable[..., Any]:
    """The attention the model would have used: sdpa's, or the eager one of its own file."""
    if name != "eager":
        return ALL_ATTENTION_FUNCTIONS[name]
    return sys.modules[type(module).__module__].eager_attention_forward


def _packed(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """[1, H, N, d] → [1, N, H, d]: one call of the model's attention per sequence."""
    active: _Active = _local.active
    if len(active.cache.views) != len(active.cache.spans):
        raise KeyError(f"{type(module).__name__} attended without writing to its cache")
    attention = _own_attention(module, active.own)
    masks = active.masks[active.kinds[int(module.layer_idx)]]
    parts, row = [], 0
    for span, (k, v), mask in zip(active.cache.spans, active.cache.views, masks, strict=True):
        q = query[:, :, row : row + span.n]
        parts.append(attention(module, q, k, v, mask, **kwargs)[0])
        row += span.n
    active.cache.views = []  # so that a layer that writes nothing cannot read another's
    return torch.cat(parts, dim=1), None


ALL_ATTENTION_FUNCTIONS.register(_NAME, _packed)


@contextmanager
def packed_attention(
    config: Any,
    own: str,
    cache: Any,
    masks: dict[str, list[torch.Tensor | None]],
    kinds: Sequence[str],
) -> Iterator[None]:
    """Within it, layers of this config attend span by span (``cache.spans``, ``cache.views``)."""
    _local.active = _Active(own, cache, masks, kinds)
    before = config._attn_implementation_internal
    config._attn_implementation_internal = _NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = before
        _local.active = None
