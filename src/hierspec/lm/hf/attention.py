"""Attention over packed sequences for transformers layers: one pass over the weights, no padding.

A layer passes its projected queries [1, H, N, d] to the attention function that its config names.
For packed sequences that function is ours and calls the model's own attention once per sequence, on
that sequence's cache and mask.

The model's owner may be running or training it in another thread at the same time, so nothing of it
is changed, not even temporarily. In such cases our loop runs *stand-ins*: objects of the same
classes that share parameters, buffers and most submodules with the model's own, and differ in an
attribute or two. They are made anew for every call and cost a few dictionaries a layer, so changed
weights and replaced projections of the model take effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hierspec.errors import HierspecError
from hierspec.lm.backend import Span

from .cache import SpansCache

_NAME = "hierspec_packed"


def stand_in(original: Any, **changes: Any) -> Any:
    """Return an object of the same class with the same attributes, except for ``changes``."""
    twin = object.__new__(type(original))
    twin.__dict__.update(original.__dict__)
    twin.__dict__.update(changes)
    return twin


def _stand_in_module(module: nn.Module, **changes: Any) -> Any:
    # A compiled call would run the original module.
    return stand_in(module, _compiled_call_impl=None, **changes)


def can_be_replaced(module: nn.Module) -> bool:
    """Return whether a stand-in would run; a ``forward`` set on the object runs the original."""
    return "forward" not in vars(module)


def in_eval_mode(module: nn.Module, memo: dict[int, nn.Module] | None = None) -> Any:
    """Return a stand-in in eval mode, submodules included, whatever the mode of ``module``.

    Args:
        memo: stand-ins by the ``id`` of their originals, for modules that occur several times.
    """
    memo = {} if memo is None else memo
    if not can_be_replaced(module):
        return module
    if id(module) not in memo:
        children = {
            name: child if child is None else in_eval_mode(child, memo)
            for name, child in module._modules.items()
        }
        memo[id(module)] = _stand_in_module(module, _modules=children, training=False)
    return memo[id(module)]


def with_own_buffers(module: nn.Module) -> Any:
    """Return a stand-in with copies of the buffers, for a module whose forward writes to them."""
    buffers = {name: b if b is None else b.clone() for name, b in module._buffers.items()}
    return _stand_in_module(module, _buffers=buffers)


def attention_paths(layer: nn.Module) -> tuple[str, ...]:
    """Return the dotted names of a layer's attentions; empty if stand-ins cannot replace them."""
    modules = dict(layer.named_modules())
    paths = [
        name
        for name, module in modules.items()
        if name and hasattr(module, "config") and hasattr(module, "layer_idx")
    ]
    for path in paths:
        names = path.split(".")
        chain = [modules[".".join(names[:i])] for i in range(len(names) + 1)]
        if not all(map(can_be_replaced, chain)):
            return ()
    return tuple(paths)


def mask_names(module: nn.Module) -> list[str]:
    """Return the dotted names of a module's buffers that are masks by position, [1, 1, L, L]."""
    return [name for name, buffer in module.named_buffers() if buffer.ndim == 4]


def can_run_trees(layer: nn.Module) -> bool:
    """Return whether a layer runs on token trees: without masks, or by :func:`with_tree_masks`."""
    masks = [layer.get_buffer(name) for name in mask_names(layer)]
    if not all(mask.dtype == torch.bool and mask.shape[:2] == (1, 1) for mask in masks):
        return False
    return not masks or all(map(can_be_replaced, layer.modules()))


def with_tree_masks(module: nn.Module, masks: Sequence[str], span: Span) -> Any:
    """Return a stand-in whose own masks are indexed by position, not by order of storage.

    Args:
        masks: :func:`mask_names`.
        span: with branches. The layer reads the last ``n`` of the first ``start + n`` rows.
    """
    assert span.branches is not None
    end = span.start + span.n
    stored = torch.tensor(span.branches.positions(0, end), device="cpu")
    for name in masks:
        *path, buffer_name = name.split(".")
        mask = module.get_buffer(name)[0, 0]
        tree_mask = mask.new_zeros(end, end)
        positions = stored.to(mask.device)
        tree_mask[span.start :] = mask[positions[span.start :, None], positions]
        masks_of = partial(_with_buffer, name=buffer_name, buffer=tree_mask[None, None])
        module = _with_submodule(module, path, masks_of)
    return module


def _with_buffer(module: nn.Module, name: str, buffer: torch.Tensor) -> Any:
    return _stand_in_module(module, _buffers={**module._buffers, name: buffer})


def _with_submodule(module: Any, path: Sequence[str], make: Callable[[Any], Any]) -> Any:
    if not path:
        return make(module)
    child = _with_submodule(module._modules[path[0]], path[1:], make)
    return _stand_in_module(module, _modules={**module._modules, path[0]: child})


class _Zero(nn.Module):
    """Replaces an attention or an MLP that is left out: adds nothing to the hidden states."""

    def __init__(self, is_attention: bool) -> None:
        super().__init__()
        self.is_attention = is_attention  # attentions return their weights as well

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self.is_attention else zeros


def without_parts(layer: nn.Module, paths: Sequence[str], attention: bool, mlp: bool) -> Any:
    """Return a stand-in for ``layer`` without its attention (at ``paths``) or MLP, where False.

    Raises:
        HierspecError: the layer does not consist of such parts.
    """
    left_out = {} if attention else dict.fromkeys(paths, True)
    if not mlp:
        left_out["mlp"] = False
    has_parts = all(name in layer._modules for name in left_out)
    if not has_parts or (not attention and not paths) or not can_be_replaced(layer):
        raise HierspecError(
            f"the layers of a {type(layer).__name__} cannot be divided into attention and MLP: "
            "leave whole layers out (skip_layers, or skip without a search)"
        )
    zeros = {name: _Zero(is_attention) for name, is_attention in left_out.items()}
    return _stand_in_module(layer, _modules={**layer._modules, **zeros})


class PackedAttention:
    """Attention of one call over several sequences, and the layers that use it.

    Args:
        name: of the model's own attention: ``"sdpa"`` or ``"eager"``.
        cache: the one that the layers write to, span by span.
        masks: per kind of layer, a mask for every span.
        kinds: the kind of every layer of the model.
    """

    def __init__(
        self,
        name: str,
        cache: SpansCache,
        masks: dict[str, list[torch.Tensor | None]],
        kinds: Sequence[str],
    ) -> None:
        self.name, self.cache, self.masks, self.kinds = name, cache, masks, kinds
        self._configs: dict[int, Any] = {}

    def layer(self, layer: nn.Module, paths: Sequence[str]) -> Any:
        """Return a stand-in for ``layer`` whose attentions, at ``paths``, are this one."""
        for path in paths:
            layer = _with_submodule(layer, path.split("."), self._attention)
        return layer

    def _attention(self, own: Any) -> Any:
        key = id(own.config)
        if key not in self._configs:
            self._configs[key] = stand_in(own.config, _attn_implementation_internal=_NAME)
        return _stand_in_module(own, config=self._configs[key], hierspec_packed=self)

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return the attention of queries [1, H, N, d] as [1, N, H, d], one call per sequence."""
        cache = self.cache
        if len(cache.views) != len(cache.spans):
            raise KeyError(f"{type(module).__name__} attended without writing to its cache")
        attention = _model_attention(module, self.name)
        masks = self.masks[self.kinds[int(module.layer_idx)]]
        expand = getattr(module, "expand_kv", None)  # DeepSeek's MLA caches compressed states
        parts, row = [], 0
        for span, (k, v), mask in zip(cache.spans, cache.views, masks, strict=True):
            q = query[:, :, row : row + span.n]
            if expand is not None:
                k, v = expand(k, v)
            parts.append(attention(module, q, k, v, mask, **kwargs)[0])
            row += span.n
        cache.views = []  # so that a layer that writes nothing cannot read another's
        return torch.cat(parts, dim=1), None


def _model_attention(module: Any, name: str) -> Callable[..., Any]:
    """Return the model's own attention: sdpa's, or the eager one of its source file."""
    if name != "eager":
        return ALL_ATTENTION_FUNCTIONS[name]
    return sys.modules[type(module).__module__].eager_attention_forward


def _packed(module: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """Call the stand-in's attention; transformers finds this function under ``_NAME``."""
    return module.hierspec_packed(module, *args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(_NAME, _packed)
