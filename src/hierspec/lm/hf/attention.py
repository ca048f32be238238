"""Attention over packed sequences for transformers layers: one weights pass, no padding.

A layer hands its projected queries [1, H, N, d] to the attention function that its config names.
For packed sequences that function is ours, and calls the model's own attention once per sequence,
on that sequence's cache and mask.

The model belongs to somebody who may be running or training it in another thread at this moment,
so nothing of it is changed, not even for a while. What our loop runs in such cases are *stand-ins*:
objects of the same classes that share parameters, buffers and most submodules with the model's own,
and differ in an attribute or two. They are made anew for a call and cost a few dictionaries a
layer, so whatever the owner does to the weights or puts in place of a projection is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hierspec.errors import HierspecError
from hierspec.lm.backend import Span

from .cache import ManySpans

_NAME = "hierspec_packed"


def stand_in(one: Any, **changes: Any) -> Any:
    """An object of the same class with the same attributes, ``changes`` excepted."""
    twin = object.__new__(type(one))
    twin.__dict__.update(one.__dict__)
    twin.__dict__.update(changes)
    return twin


def _module(module: nn.Module, **changes: Any) -> Any:
    # A compiled call is one of the module it was compiled for.
    return stand_in(module, _compiled_call_impl=None, **changes)


def stands_alone(module: nn.Module) -> bool:
    """Whether a stand-in would run; a ``forward`` put on the object itself runs the original."""
    return "forward" not in vars(module)


def evaluating(module: nn.Module, memo: dict[int, nn.Module] | None = None) -> Any:
    """``module`` in eval mode, all the way down, whatever mode its owner keeps it in.

    Args:
        memo: stand-ins by the id of their originals, for modules that are met again.
    """
    memo = {} if memo is None else memo
    if not stands_alone(module):
        return module
    if id(module) not in memo:
        below = {
            name: child if child is None else evaluating(child, memo)
            for name, child in module._modules.items()
        }
        memo[id(module)] = _module(module, _modules=below, training=False)
    return memo[id(module)]


def detached(module: nn.Module) -> Any:
    """A stand-in with buffers of its own, for a module whose forward writes to them."""
    buffers = {name: b if b is None else b.clone() for name, b in module._buffers.items()}
    return _module(module, _buffers=buffers)


def attention_paths(layer: nn.Module) -> tuple[str, ...]:
    """The dotted names of a layer's attentions; empty where a stand-in cannot take their place."""
    modules = dict(layer.named_modules())
    found = [
        name
        for name, module in modules.items()
        if name and hasattr(module, "config") and hasattr(module, "layer_idx")
    ]
    for name in found:
        parts = name.split(".")
        above = [modules[".".join(parts[:i])] for i in range(len(parts) + 1)]
        if not all(map(stands_alone, above)):
            return ()
    return tuple(found)


def own_masks(module: nn.Module) -> list[str]:
    """The dotted names of its triangles [1, 1, L, L]: what a place may see by its number."""
    return [name for name, buffer in module.named_buffers() if buffer.ndim == 4]


def masks_by_position(layer: nn.Module) -> bool:
    """Whether :func:`seeing` makes of a layer what runs on a token tree; it has masks or none."""
    masks = [layer.get_buffer(name) for name in own_masks(layer)]
    if not all(mask.dtype == torch.bool and mask.shape[:2] == (1, 1) for mask in masks):
        return False
    return not masks or all(map(stands_alone, layer.modules()))


def seeing(module: nn.Module, masks: Sequence[str], span: Span) -> Any:
    """A stand-in for ``module`` whose own masks are read by position, not by order of storage.

    Args:
        masks: :func:`own_masks`.
        span: with branches. A library's layer reads the last ``n`` of the first ``start + n`` rows.
    """
    assert span.branches is not None
    end = span.start + span.n
    at = torch.tensor(span.branches.positions(0, end))
    for name in masks:
        *path, last = name.split(".")
        triangle = module.get_buffer(name)[0, 0]
        own = triangle.new_zeros(end, end)
        places = at.to(triangle.device)
        own[span.start :] = triangle[places[span.start :, None], places]
        module = _with_buffer(module, path, last, own[None, None])
    return module


def _with_buffer(module: nn.Module, path: Sequence[str], name: str, buffer: torch.Tensor) -> Any:
    if not path:
        return _module(module, _buffers={**module._buffers, name: buffer})
    child: Any = _with_buffer(module.get_submodule(path[0]), path[1:], name, buffer)
    return _module(module, _modules={**module._modules, path[0]: child})


class _Nothing(nn.Module):
    """Stands where an attention or an MLP is left out: adds nothing to the hidden states."""

    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.pair = pair  # attentions return their weights as well

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self.pair else nothing


def divided(layer: nn.Module, paths: Sequence[str], attention: bool, mlp: bool) -> Any:
    """A stand-in for ``layer`` without its attention at ``paths``, or without its MLP.

    Raises:
        HierspecError: the layer is not made of such parts.
    """
    left_out = {} if attention else dict.fromkeys(paths, True)
    if not mlp:
        left_out["mlp"] = False
    known = all(name in layer._modules for name in left_out)
    if not known or (not attention and not paths) or not stands_alone(layer):
        raise HierspecError(
            f"the layers of a {type(layer).__name__} cannot be divided into attention and MLP: "
            "leave whole layers out (skip_layers, or skip without a search)"
        )
    parts = {name: _Nothing(pair) for name, pair in left_out.items()}
    return _module(layer, _modules={**layer._modules, **parts})


class PackedAttention:
    """Attention of one call over several sequences, and the layers that use it.

    Args:
        own: the attention the model would have used: ``"sdpa"`` or ``"eager"``.
        cache: where the layers write, span by span.
        masks: per kind of layer, a mask for every span.
        kinds: of every layer of the model.
    """

    def __init__(
        self,
        own: str,
        cache: ManySpans,
        masks: dict[str, list[torch.Tensor | None]],
        kinds: Sequence[str],
    ) -> None:
        self.own, self.cache, self.masks, self.kinds = own, cache, masks, kinds
        self._configs: dict[int, Any] = {}

    def layer(self, layer: nn.Module, paths: Sequence[str]) -> Any:
        """A stand-in for ``layer`` whose attentions, at ``paths``, are this one."""
        for path in paths:
            layer = self._with_attention(layer, path)
        return layer

    def _with_attention(self, module: nn.Module, path: str) -> Any:
        name, _, rest = path.partition(".")
        child: Any = module._modules[name]
        if rest:
            child = self._with_attention(child, rest)
        else:
            child = _module(child, config=self._config(child.config), hierspec_packed=self)
        return _module(module, _modules={**module._modules, name: child})

    def _config(self, config: Any) -> Any:
        if id(config) not in self._configs:
            self._configs[id(config)] = stand_in(config, _attn_implementation_internal=_NAME)
        return self._configs[id(config)]

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """[1, H, N, d] → [1, N, H, d]: one call of the model's attention per sequence."""
        cache = self.cache
        if len(cache.views) != len(cache.spans):
            raise KeyError(f"{type(module).__name__} attended without writing to its cache")
        attention = _own_attention(module, self.own)
        masks = self.masks[self.kinds[int(module.layer_idx)]]
        expand = getattr(module, "expand_kv", None)  # DeepSeek's MLA caches what both come from
        parts, row = [], 0
        for span, (k, v), mask in zip(cache.spans, cache.views, masks, strict=True):
            q = query[:, :, row : row + span.n]
            if expand is not None:
                k, v = expand(k, v)
            parts.append(attention(module, q, k, v, mask, **kwargs)[0])
            row += span.n
        cache.views = []  # so that a layer that writes nothing cannot read another's
        return torch.cat(parts, dim=1), None


def _own_attention(module: Any, name: str) -> Callable[..., Any]:
    """The attention the model would have used: sdpa's, or the eager one of its own file."""
    if name != "eager":
        return ALL_ATTENTION_FUNCTIONS[name]
    return sys.modules[type(module).__module__].eager_attention_forward


def _packed(module: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """What the name stands for: the attention that the stand-in was made with."""
    return module.hierspec_packed(module, *args, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(_NAME, _packed)
