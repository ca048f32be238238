"""What every drafter does: it turns a batch of draft calls into proposals."""

from __future__ import annotations

import dataclasses
import math
import operator
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from hierspec.core.context import Context
from hierspec.core.distributions import Distributions, OneHotDistributions
from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal
from hierspec.core.rng import Rng
from hierspec.core.windows import State
from hierspec.errors import HierspecError
from hierspec.lm.base import CacheUser, LanguageModel
from hierspec.sampling.scores import ScoreRows
from hierspec.utils import plugins
from hierspec.utils.schema import short_repr


@dataclass(slots=True, eq=False)
class DraftCall:
    """One sequence's request for a draft.

    Attributes:
        job: how the row after the text so far becomes a distribution: the context, the sampling
            parameters.
        limit: how many tokens can be used, at least 1 and at most ``budget``.
        budget: how many tokens its leaf usually drafts.
        state: of the leaf's window.
        slot: (model, number of the draft) → the sequence's slot in that model's cache.
    """

    job: ScoreRows
    limit: int
    budget: int
    state: State
    rng: Rng
    slot: Callable[[Any, int], Any]


class Drafts(NamedTuple):
    """What a drafter made of a batch of calls.

    Attributes:
        proposals: one a call, in order.
        forwards: of its model; of a look-up, how many searches.
        seconds: inside the model's forwards.
    """

    proposals: list[Proposal]
    forwards: int
    seconds: float


class Drafter(Protocol):
    """A leaf of a hierarchy at work."""

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        """Make one proposal for every call, all sequences side by side.

        What a call gets depends on its own sequence alone, whatever shares the batch: tokens,
        distributions, and the uniforms spent.
        """
        ...


@runtime_checkable
class DraftsOn(Protocol):
    """A drafter that drafts on while the target checks what it drafted (:attr:`Draft.drafter`)."""

    def drafting_on(
        self,
        calls: Sequence[DraftCall],
        target: LanguageModel,
        report: Callable[[int, int, float], None],
    ) -> AbstractContextManager[None]:
        """Return the context in which the target checks drafts.

        Args:
            calls: one for each draft with room behind it, whose tokens are pending: for the next
                draft if all of them are accepted.
            report: takes forwards of the drafter: node index, number, and seconds.
        """
        ...


LookUpDraft = tuple[tuple[int, ...], Distributions]  # tokens, and what each was drawn from
CheckedDraft = tuple[Proposal, Distributions]  # a draft, and the target's rows along it


@runtime_checkable
class Learner(CacheUser, Protocol):
    """A drafter that learns from what the target verifies."""

    def learn_from(
        self,
        text: Sequence[int],
        draft: Proposal,
        p: Distributions,
        num_accepted: int,
        checked: Sequence[CheckedDraft],
        slot: Any,
    ) -> None:
        """Learn from a check by the target of ``draft`` after ``text``.

        Args:
            p: the target's distributions at every position of the draft, and after it.
            num_accepted: how many of its tokens were accepted.
            checked: all drafts that were checked, this one among them.
        """
        ...


class LookUp:
    """The base of drafters without a model, which copy what followed similar text.

    Nothing is scored: the distribution of every proposed token is one-hot, unless :meth:`draft`
    says otherwise. One that learns from the target's checks is a :class:`Learner`, too.

    Attributes:
        vocab_size: V of the target, where it was told; no token from there on may be proposed.
        has_distributions: false: it proposes tokens, but has no next-token distribution for each
            context.
    """

    name: str
    vocab_size: int = sys.maxsize
    has_distributions: ClassVar[bool] = False
    max_length: int = sys.maxsize

    @property
    def cache_owner(self) -> LookUp:
        return self

    def make_drafter(self, node: Draft) -> Drafter:
        return LookUpDrafter(node, self)

    def open(self) -> Any:
        """Return a slot for one sequence, what is remembered of it: here, nothing."""
        return None

    def open_private(self) -> Any:
        """Return a slot that no other sequence reads or writes."""
        return self.open()

    def close(self, slot: Any) -> None:
        """Free a sequence's memory."""

    def propose(self, context: Context, limit: int, slot: Any) -> tuple[int, ...]:
        """Return up to ``limit`` tokens that may follow ``context``; ``()`` where nothing is known.

        Its committed tokens are all there is to copy from: an encoder's input comes first
        (:meth:`hierspec.core.context.Context.with_source`).
        """
        name = type(self).__name__
        raise HierspecError(f"{name} has no method propose(context, limit, slot): write it")

    def draft(self, call: DraftCall, slot: Any) -> LookUpDraft:
        """Return the tokens proposed for a call, and the distribution each was drawn from."""
        proposed = self.propose(call.job.context.with_source(), call.limit, slot)
        ids = self._token_ids(proposed, call.limit)
        return ids, OneHotDistributions(ids)

    def _token_ids(self, proposed: Any, limit: int) -> tuple[int, ...]:
        try:
            ids = tuple(map(operator.index, () if proposed is None else proposed))
        except TypeError:
            ids = (-1,)
        if len(ids) <= limit and all(0 <= token < self.vocab_size for token in ids):
            return ids
        raise HierspecError(
            f"{plugins.where(type(self).propose)}: {self.name} proposes up to {limit} token ids "
            f"below {self.vocab_size}, not {short_repr(proposed)}"
        )

    def drafts(self, call: DraftCall, slot: Any) -> Sequence[LookUpDraft]:
        """Return several drafts as :meth:`draft` makes one; none is longer than the first."""
        return [self.draft(call, slot)]


class LookUpDrafter:
    """A leaf that copies from text; it may find nothing."""

    def __init__(self, node: Draft, look_up: LookUp) -> None:
        self._index, self._look_up = node.index, look_up

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        proposals: list[Proposal] = []
        for call in calls:
            drafts = self._look_up.drafts(call, call.slot(self._look_up, 0))
            proposals.append(
                join_drafts([draft_proposal(self._index, ids, rows) for ids, rows in drafts])
            )
        return Drafts(proposals, len(calls), 0.0)


def draft_proposal(
    index: int, tokens: Sequence[int], distributions: Distributions, signals: Sequence[float] = ()
) -> Proposal:
    n = len(tokens)
    nodes, signals = (index,) * n, tuple(signals) or (math.nan,) * n
    return Proposal(tuple(tokens), distributions, nodes, nodes, signals)


def join_drafts(drafts: Sequence[Proposal]) -> Proposal:
    """Return the first of a call's drafts, with the others as its alternatives."""
    if len(drafts) < 2:
        return drafts[0] if drafts else Proposal()
    return dataclasses.replace(drafts[0], alternatives=tuple(drafts[1:]))
