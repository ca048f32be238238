"""What the engine asks of a language model: scores for positions, and nothing else.

A model never sees the hierarchy. It is handed contexts and returns its scores for the next token at
the positions asked for. A caller never feeds, rewinds or patches a cache: it passes the whole
context, and a :class:`Slot`, which knows the tokens it holds, works out what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions, Uniforms
from hierspec.core.nodes import Draft, LevelNode, Node, Verify
from hierspec.errors import HierspecError
from hierspec.sampling.sampler import Sampler
from hierspec.sampling.scores import ScoreRows
from hierspec.utils.graphs import Graphs

from .trees import Tree


class AttachedState(Protocol):
    """What a model that works on another model's states caches of a sequence, in that slot."""

    def rewind(self, length: int) -> None:
        """Forget all tokens past the first ``length``, committed ones included."""
        ...

    def forget_committed(self) -> None:
        """Forget that any tokens were committed: the next text may differ from this one."""
        ...

    def fork(self, length: int) -> AttachedState:
        """Return an independent copy of what it caches of the first ``length`` tokens."""
        ...


@dataclass(slots=True)
class Slot:
    """One sequence's place in one model's cache.

    Attributes:
        tokens: those whose keys and values (or other state) are cached, in order.
        num_committed: how many of them, from the first, are known to equal the sequence's
            committed tokens, which never change; :meth:`overlap` compares only those that follow.
        state: the model's own.
        prompt_length: of the text as the current call found it; 0: that of its first query.
        attached: states of other models that work on this one's, by the model's ``id``.
    """

    tokens: list[int] = field(default_factory=list[int])
    num_committed: int = 0
    state: Any = None
    prompt_length: int = 0
    attached: dict[int, AttachedState] = field(default_factory=dict[int, "AttachedState"])

    def overlap(self, context: Context, max_length: int) -> int:
        """Return how many leading tokens of ``context`` are cached, at most ``max_length``."""
        length = self.num_committed
        limit = min(len(self.tokens), len(context), max_length)
        if length > limit:
            return limit
        for token in context.tokens(length)[: limit - length]:
            if self.tokens[length] != token:
                break
            length += 1
        self.num_committed = max(self.num_committed, min(length, len(context.committed)))
        return length

    def forget_committed(self) -> None:
        """Keep what is cached, for a text that may begin differently."""
        self.num_committed = 0
        for state in self.attached.values():
            state.forget_committed()


@dataclass(frozen=True, slots=True)
class Query:
    """A request for scores of the token after ``context[:start]``, …, after all of ``context``.

    That is ``len(context) - start + 1`` rows. A draft step asks with ``start == len(context)``
    (one row); the check of n draft tokens asks with ``start == len(context) - n`` (n + 1 rows).
    ``start`` is at least 1. It counts tokens; :attr:`first_row` is the position of the first row,
    as the start of a :class:`~hierspec.lm.backend.Span` is.

    With a ``tree`` the context goes on in several ways at once, and each node adds a row: the
    scores after the path that ends in that node. Only a model that :func:`takes_trees` takes one.

    Attributes:
        temperature: of the request, 0 for greedy; ``None``: unknown. Scores are untempered in any
            case; only a model that chooses its depth by its confidence reads it.
    """

    slot: Slot
    context: Context
    start: int
    temperature: float | None = None
    tree: Tree | None = None

    @property
    def first_row(self) -> int:
        """The position of the last token before the first score: ``start - 1``."""
        return self.start - 1

    @property
    def num_rows(self) -> int:
        return len(self.context) + (len(self.tree) if self.tree else 0) - self.start + 1

    @staticmethod
    def for_rows(job: ScoreRows, slot: Slot, tree: Tree | None = None) -> Query:
        """Return the query for the rows that ``job`` reads, and for those of a tree after them."""
        temperature = job.params.temperature if job.temperature is None else job.temperature
        return Query(slot, job.context, job.start, temperature, tree)


def validate_query(query: Query, name: str, max_length: int) -> None:
    """Refuse a query of more than ``max_length`` tokens, or with ``start`` out of range."""
    longest = len(query.context) + (query.tree.depth if query.tree is not None else 0)
    if longest > max_length:
        raise HierspecError(
            f"{longest} tokens exceed the longest context of {name}, {max_length}: shorten the "
            "prompt or lower max_new_tokens"
        )
    end = query.start + query.num_rows - 1
    if not 1 <= query.start <= end:
        raise HierspecError(
            f"{name} needs at least one token to condition on: start must lie between 1 and {end}, "
            f"got {query.start}"
        )


@runtime_checkable
class CacheOwner(Protocol):
    """Anything that caches something for every sequence: a model, a trunk, a look-up.

    One that makes room beforehand has ``reserve(num_tokens)``: texts in slots opened next will have
    up to so many tokens, drafts not counted.
    """

    def open(self) -> Any:
        """Return a new, empty slot for one sequence."""
        ...

    def close(self, slot: Any) -> None:
        """Free a slot's memory."""
        ...


@runtime_checkable
class ForkingCacheOwner(CacheOwner, Protocol):
    """A cache owner that can give a new sequence what another has cached of a shared prefix."""

    def fork(self, slot: Slot, length: int) -> Slot:
        """Return a new slot with a copy of what ``slot`` has cached of ``length`` tokens."""
        ...

    def compact(self, slot: Slot) -> None:
        """Free the part of a slot's cache that its tokens do not need."""
        ...


class CacheUser(Protocol):
    """Anything whose slots an owner opens, usually itself: a model, a look-up.

    Attributes:
        cache_owner: that owner; users with one owner share a sequence's slot.
    """

    @property
    def cache_owner(self) -> CacheOwner: ...


class LevelModel(CacheOwner, CacheUser, Protocol):
    """What drafts or verifies at a level of a hierarchy: a language model, or a look-up.

    Attributes:
        max_length: the longest context it can take, in tokens.
    """

    @property
    def name(self) -> str: ...
    @property
    def max_length(self) -> int: ...


@runtime_checkable
class LanguageModel(LevelModel, Protocol):
    """Anything that can score positions: a transformer, an early exit of one, a table.

    Attributes:
        vocab_size: V, the number of token ids it scores (a padded embedding counts its padding).
        device: of its scores.
        graphs: recorded calls of its device; ``None`` for a device that records nothing.
    """

    vocab_size: int
    device: torch.device

    @property
    def graphs(self) -> Graphs | None: ...

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return the logits of all rows of all queries, in order, before any temperature.

        They are a tensor [Σ num_rows, V], float32 (float64 for float64 models). Slots are brought
        up to date on the way: rewound to what they share with the context, then fed what is
        missing. Queries of one call may differ in length; a slot appears at most once.
        """
        ...


class UncachedModel:
    """What language models have in common that compute on the host and cache nothing."""

    max_length: int = 2**31 - 1
    device = torch.device("cpu")
    graphs: Graphs | None = None

    @property
    def cache_owner(self) -> CacheOwner:
        return self

    def open(self) -> Slot:
        return Slot()

    def close(self, slot: Slot) -> None:
        slot.tokens.clear()


# Nodes whose levels are models; only language models verify.
ModelDraft = Draft[LevelModel]
ModelVerify = Verify[LanguageModel, LevelModel]
ModelLevelNode = LevelNode[LanguageModel, LevelModel]
ScoringNode = ModelVerify | Draft[LanguageModel]  # any level but a look-up
ModelNode = Node[LanguageModel, LevelModel]


def takes_trees(model: CacheUser) -> bool:
    """Return whether a model scores a whole token tree in one call (:attr:`Query.tree`).

    A model that does says so by its attribute ``trees``.
    """
    return getattr(model, "trees", False)


# (indices of queries, the token just picked for each) → scores [n, V] of the tokens after these
NextScores = Callable[[Sequence[int], Sequence[int]], torch.Tensor]


@runtime_checkable
class StepwiseModel(LanguageModel, Protocol):
    """A language model that continues a draft step by step without a new query for each step."""

    def score_stepwise(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, NextScores]:
        """Return scores [B, V] after the contexts of B queries for one row each, and a function
        that takes the tokens picked and returns the scores after them.

        The scores are those of :meth:`LanguageModel.score` with the picked tokens in the context.
        Up to ``counts[b]`` ≥ 1 tokens are picked for query b.
        """
        ...


class DeviceDrafts(NamedTuple):
    """The drafts that a model made on its device, sequence by sequence.

    Attributes:
        distributions: those the tokens were drawn from, a row for each token.
        signals: the number per token that the sampler's window reads; ``None`` without one.
    """

    tokens: list[list[int]]
    distributions: list[Distributions]
    calls: int
    signals: list[list[float]] | None = None


SampledDraft = tuple[list[int], Distributions]  # tokens, and what each was drawn from


class TreeDepth(NamedTuple):
    """A depth of a tree of likeliest continuations, of up to K nodes.

    Attributes:
        continuations: number of a node above → the likeliest tokens after it: their chances, and
            ids. The text is node 0 above the first depth.
        kept: number of a node → (number of its parent above, its token).
    """

    continuations: dict[int, tuple[list[float], list[int]]]
    kept: dict[int, tuple[int, int]]


class DeviceTrees(NamedTuple):
    """The token trees that a model made on its device, sequence by sequence.

    Attributes:
        drafts: of each tree that was drawn; empty where none were.
        depths: of each tree of likeliest continuations; empty where they were drawn.
    """

    drafts: list[list[SampledDraft]]
    depths: list[list[TreeDepth]]
    calls: int


@runtime_checkable
class DeviceModel(LanguageModel, Protocol):
    """A language model that drafts on its device, each token picked and fed to the next step there.

    It does so where it has :attr:`LanguageModel.graphs`, for requests with equal samplers; and
    where its ``drafts_in_one_call`` is true, for those whose sampler does not race and that have no
    signal.
    """

    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        samplers: Sequence[Sampler],
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """Draft ``counts[b]`` ≥ 1 tokens after the context of query b, all side by side.

        Args:
            queries: B queries for one row each (``start == len(context)``).
            samplers: of each query; where calls are recorded, all are equal.
            uniforms: for each query as many as its count, used in order; none where greedy. Where
                its sampler races, the noise of these positions instead, [count, V].

        Raises:
            NoDistributionError: some row of scores has NaN or forbids every token.
        """
        ...


@runtime_checkable
class DeviceTreeModel(DeviceModel, Protocol):
    """A language model that drafts token trees on its device."""

    def draft_trees(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        width: int,
        sampler: Sampler,
        uniforms: Sequence[np.ndarray] | None,
        distinct: bool,
    ) -> DeviceTrees:
        """Draft trees of ``counts[b]`` depths after the context of query b, all side by side.

        Args:
            width: K, nodes of a depth.
            uniforms: for each query [count, K], for K drafts of which each draws its own tokens;
                ``None``: of every depth the K likeliest continuations of those above go on.
            distinct: the drafts' first tokens are drawn without replacement. Where the first row
                has fewer, there are fewer drafts.

        Raises:
            NoDistributionError: as in :meth:`draft`.
        """
        ...


@runtime_checkable
class PredictingModel(LanguageModel, Protocol):
    """A draft model that predicts whether its tokens will be accepted."""

    def acceptance(self, queries: Sequence[Query]) -> list[float]:
        """Predict how likely the last token of each context is accepted, if those before it are.

        Args:
            queries: for one row each (``start == len(context)``), as in the next step.
        """
        ...
