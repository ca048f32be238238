"""What a transformer must offer to be run in segments: a range of layers over packed tokens.

A backend knows nothing of contexts, rewinds or exits: :class:`~hierspec.lm.trunk.trunk.Trunk` does.
Tokens of many sequences are *packed*: hidden states are ``[N, d]`` without padding, and each span
names the rows of one sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from hierspec.core.distributions import Uniforms
    from hierspec.sampling.sampler import Sampler

    from .base import CacheUser, SampledDraft
    from .trees import Branches

Linear = Callable[["torch.Tensor"], "torch.Tensor"]  # [N, in] → [N, out]


class Span(NamedTuple):
    """``n`` consecutive packed rows: the tokens stored at ``start … start + n - 1``.

    ``cache`` is what the backend's ``new_cache`` returned for that sequence. Without ``branches``
    tokens are stored by position. Where a token tree is stored behind the text, ``branches`` has
    its nodes' positions and what each row attends to; only backends with ``trees`` get such spans.
    """

    cache: Any
    start: int
    n: int
    branches: Branches | None = None

    @property
    def positions(self) -> Sequence[int]:
        """The rows' positions in the text."""
        if self.branches is not None:
            return self.branches.positions(self.start, self.n)
        return range(self.start, self.start + self.n)


class HiddenStates(NamedTuple):
    """Hidden states of consecutive tokens, ``rows`` [n, d], of those stored from ``first`` on."""

    rows: torch.Tensor
    first: int = 0


ScoredStates = tuple[HiddenStates, Sequence[int]]  # states, and at which places they are scored


class PositionSwitch(NamedTuple):
    """How a model encodes positions that depends on how long a text is: Phi-3's longrope.

    Up to a length positions are encoded by one set of factors, beyond it by another. Where a text
    passes that length while it is written, transformers computes the whole cache of a Phi-3 anew;
    that of other architectures keeps the old keys, and tokens behind them get the other factors.

    Attributes:
        length: the longest text with the factors of short ones.
        recomputes: whether all tokens of a text have the same factors, those of its own length;
            otherwise those of a prompt's length, and tokens from ``length`` on the others.
    """

    length: int
    recomputes: bool

    def first_long(self, text_length: int, prompt_length: int) -> int:
        """Return the first position with a long text's factors, for a text with such a prompt."""
        decisive = text_length if self.recomputes else prompt_length
        return 0 if decisive > self.length else self.length

    def divides(self, first: int, last: int) -> bool:
        """Return whether texts of ``first`` to ``last`` tokens cannot share one cache."""
        return self.recomputes and first <= self.length < last


class LayerParts(NamedTuple):
    """The parts of a layer to run: its attention, its MLP, or both."""

    layer: int
    attention: bool
    mlp: bool


@runtime_checkable
class Backend(Protocol):
    """A transformer that can be run layer range by layer range.

    Attributes:
        hidden_size: d, the width of the hidden states between layers.
        dtype: of the hidden states; scores are float32 (float64 for a float64 model).
        weight_dtype: of the weights.
        trees: whether spans may have branches.
    """

    name: str
    num_layers: int
    vocab_size: int
    hidden_size: int
    max_length: int
    device: torch.device
    dtype: torch.dtype
    weight_dtype: torch.dtype
    trees: bool

    def new_cache(self, capacity: int) -> Any:
        """Return an empty cache for the keys and values of ``capacity`` tokens of one sequence."""
        ...

    def copy(self, source: Any, destination: Any, length: int) -> None:
        """Copy the first ``length`` tokens' keys and values from one cache into another."""
        ...

    def move(self, cache: Any, indices: Sequence[int], start: int) -> None:
        """Copy the keys and values stored at ``indices`` to ``start …``, in order."""
        ...

    def run(
        self,
        lo: int,
        hi: int,
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        *,
        ids: Sequence[int] = (),
        inputs: Sequence[HiddenStates] = (),
        scored: Sequence[ScoredStates] = (),
    ) -> torch.Tensor:
        """Run layers ``lo … hi - 1`` on tokens, as :meth:`layers` does, then score.

        Args:
            outputs: of each span, where its rows are written.
            ids: of all tokens, where ``lo`` is 0; else
            inputs: of each span, what its rows are read from.
            scored: states whose rows are scored as by :meth:`head`, ``outputs`` included.

        Returns:
            Scores [rows, V], which callers may write to.
        """
        ...

    def embed(self, ids: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
        """Return the input of layer 0, [N, d], for token ids [N] (int64) at ``spans``."""
        ...

    def layers(self, h: torch.Tensor, lo: int, hi: int, spans: Sequence[Span]) -> torch.Tensor:
        """Run layers ``lo … hi - 1`` on ``h`` [N, d] and return [N, d]; ``h`` is not modified.

        Writes keys and values at ``start … start + n - 1`` of every span's cache and attends to
        ``0 … position``. What a cache holds beyond ``start + n`` is ignored, so that a rewind is
        nothing but a smaller ``start``.
        """
        ...

    def head(self, h: torch.Tensor, unembed: Linear | None = None) -> torch.Tensor:
        """Return scores [N, V] of the last layer's output [N, d].

        That is the final norm, the output matrix (or ``unembed`` in its place), soft-capping and
        scaling.
        """
        ...

    def unembedding(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return rows ``ids`` [v] of the output matrix, ``weight_dtype``, and of any bias."""
        ...


@runtime_checkable
class HasBackend(Protocol):
    """What runs a backend: a trunk, or a backend that leaves out parts of another."""

    @property
    def backend(self) -> Backend: ...


def position_switch(owner: object) -> PositionSwitch | None:
    """Return how the positions of a backend, or of whoever owns its caches, depend on a text's
    length; ``None``: not at all."""
    return getattr(owner, "position_switch", None)


def backend_of(model: CacheUser) -> Backend | None:
    """Return what runs a model's layers; ``None`` for tables and look-ups."""
    owner = model.cache_owner
    return owner.backend if isinstance(owner, HasBackend) else None


@runtime_checkable
class DraftingBackend(Backend, Protocol):
    """A backend that goes on by itself: with a token picked by its scores, and the one after."""

    def draft(
        self,
        hi: int,
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        ids: Sequence[int],
        counts: Sequence[int],
        samplers: Sequence[Sampler],
        uniforms: Sequence[Uniforms],
    ) -> list[SampledDraft]:
        """Return ``counts[b]`` ≥ 1 tokens after span b, each picked given those before it.

        Layers 0 … hi − 1 are run on ``ids``, and on all tokens drafted but the last ones, as by
        :meth:`Backend.run`; of equal scores a greedy sampler takes the lower id.

        Args:
            spans: without branches, in caches with room for the drafts.
            outputs: of each span, where its rows and those of the drafted tokens are written.
            samplers: of each span, of one vocabulary; none races.
            uniforms: for each span as many as its count; none where greedy.

        Raises:
            NoDistributionError: some row of scores has NaN or forbids every token.
        """
        ...
