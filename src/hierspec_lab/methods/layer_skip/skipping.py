"""A model without some of its layers, on the same weights: what drafts in self-speculation.

Zhang et al. (2023, Draft & Verify) and Xia et al. (2025, SWIFT) draft with the target itself and
leave parts out: the attention of some layers, the MLP of others. The remaining ones read the
target's keys and values of all text that the target has seen (:mod:`hierspec.lm.trunk.self_draft`).
:mod:`.search` searches for parts that a draft can do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, LayerParts, Span, position_switch
from hierspec.lm.in_steps import RunsInSteps

if TYPE_CHECKING:
    import torch


class Skip(NamedTuple):
    """The parts left out of a model.

    Attributes:
        attention: the layers, from 0, ascending, whose attention is left out.
        mlp: those whose MLP is left out.
    """

    attention: tuple[int, ...]
    mlp: tuple[int, ...]

    @staticmethod
    def whole_layers(layers: Sequence[int]) -> Skip:
        """Return the skip of both parts of these layers."""
        return Skip(tuple(sorted(layers)), tuple(sorted(layers)))


@runtime_checkable
class DivisibleBackend(Backend, Protocol):
    """A backend whose layers can be run without their attention, or without their MLP."""

    def run_parts(
        self, h: torch.Tensor, parts: Sequence[LayerParts], spans: Sequence[Span]
    ) -> torch.Tensor:
        """Run these parts on ``h`` [N, d] and return [N, d]; ``h`` is not modified.

        As :meth:`Backend.layers`. Parts left out add nothing to the hidden states, and a layer
        without attention writes no keys and values.

        Args:
            parts: by ascending layer.

        Raises:
            HierspecError: the architecture's layers cannot be divided like that.
        """
        ...


class SkippingBackend(RunsInSteps):
    """A :class:`~hierspec.lm.backend.Backend` that runs another's layers without skipped parts.

    Layers keep their numbers, and caches are ``backend``'s own, with room for skipped layers.

    Args:
        backend: whose layers, embedding, norm and head are used.
        skip: the parts left out; or layers, both parts of which are left out.

    Attributes:
        kept: what is run of each layer; ``attended``: the layers whose attention is run.

    Raises:
        HierspecError: a layer does not exist or is named twice, nothing is left out, or nothing
            kept; or the layers cannot be divided into attention and MLP.
    """

    def __init__(self, backend: Backend, skip: Skip | Sequence[int]) -> None:
        depth = backend.num_layers
        skip = skip if isinstance(skip, Skip) else Skip.whole_layers(skip)
        for key, layers in zip(("skip_attention", "skip_mlp"), skip, strict=True):
            key = "skip_layers" if skip.attention == skip.mlp else key
            if len(set(layers)) < len(layers) or not all(0 <= i < depth for i in layers):
                raise HierspecError(
                    f"{key} must name layers 0 to {depth - 1} of {backend.name}, each once; "
                    f"got {list(layers)}"
                )
        parts = [LayerParts(i, i not in skip.attention, i not in skip.mlp) for i in range(depth)]
        self.kept = tuple(part for part in parts if part.attention or part.mlp)
        self.attended = tuple(part.layer for part in self.kept if part.attention)
        if not self.kept or not any(skip):
            fault = "leaves no layer" if any(skip) else "skips nothing"
            raise HierspecError(f"skip_layers {fault} of {backend.name}: keep at least one")
        self.backend, self.skip = backend, skip
        self.divides_layers = any(not (part.attention and part.mlp) for part in self.kept)
        self.new_cache, self.embed = backend.new_cache, backend.embed
        self.head, self.unembedding, self.copy = backend.head, backend.unembedding, backend.copy
        self.move, self.trees = backend.move, backend.trees
        self.position_switch = position_switch(backend)
        num_kept = sum(part.attention + part.mlp for part in self.kept) / 2
        self.name = f"{backend.name}~{num_kept:g}/{depth}"
        self.num_layers = depth
        self.vocab_size, self.hidden_size = backend.vocab_size, backend.hidden_size
        self.max_length = backend.max_length
        self.device = backend.device
        self.dtype, self.weight_dtype = backend.dtype, backend.weight_dtype
        if self.divides_layers:
            validate_divisible(backend)

    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        parts = [part for part in self.kept if lo <= part.layer < hi]
        if self.divides_layers:
            return cast(DivisibleBackend, self.backend).run_parts(h, parts, spans)
        for first, end in contiguous_ranges([part.layer for part in parts]):
            h = self.backend.layers(h, first, end, spans)
        return h


def validate_divisible(backend: Backend) -> None:
    """Refuse a model whose layers cannot be run without their attention or their MLP.

    A layer without both must return its input, which is tried on two tokens: the structure of its
    modules does not guarantee it.

    Raises:
        HierspecError: the layers cannot be divided.
    """
    import torch

    fix = "leave whole layers out (skip_layers, or skip without a search)"
    if not isinstance(backend, DivisibleBackend):
        raise HierspecError(f"{backend.name} runs whole layers only: {fix}")
    with torch.inference_mode():
        spans = [Span(backend.new_cache(2), 0, 2)]
        h = backend.embed(torch.arange(2, device=backend.device) % backend.vocab_size, spans)
        unchanged = torch.equal(backend.run_parts(h, [LayerParts(0, False, False)], spans), h)
    if not unchanged:
        raise HierspecError(
            f"the layers of {backend.name} do not add their parts to their input: {fix}"
        )


def contiguous_ranges(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending layers as ranges [first, end) of consecutive ones."""
    ranges: list[tuple[int, int]] = []
    for layer in layers:
        if ranges and ranges[-1][1] == layer:
            ranges[-1] = (ranges[-1][0], layer + 1)
        else:
            ranges.append((layer, layer + 1))
    return ranges


def evenly_spaced_layers(share: float, depth: int) -> tuple[int, ...]:
    """Return about ``share`` of ``depth`` layers, evenly spaced, from the second on.

    The first and the last layer are never among them; at least one other layer is.

    Raises:
        HierspecError: there are fewer than three layers.
    """
    num_middle = depth - 2
    if num_middle < 1:
        raise HierspecError(
            f"layer_skip by a share needs a target of at least 3 layers, this one has {depth}: "
            "name skip_layers, or use another method"
        )
    return _spread_evenly(min(max(1, round(share * depth)), num_middle), num_middle)


def evenly_spaced_parts(share: float, depth: int) -> Skip:
    """Return a share of the attentions and MLPs between the first and last layer, evenly spread.

    SWIFT's search starts from these [Xia et al. 2025, §4.1].

    Raises:
        HierspecError: there are fewer than three layers.
    """
    evenly_spaced_layers(share, depth)  # refuses a shallow model
    num_middle = depth - 2
    count = min(max(1, int(2 * num_middle * share)), 2 * num_middle)
    attention, mlp = (_spread_evenly(n, num_middle) for n in ((count + 1) // 2, count // 2))
    return Skip(attention, mlp)


def _spread_evenly(count: int, num_middle: int) -> tuple[int, ...]:
    return tuple(1 + j * num_middle // count for j in range(count))
