"""Drafting on while the target verifies: PEARL (Liu et al. 2024, arXiv 2408.11850).

While the target checks a draft, its drafter continues that draft as if all of it were kept, in a
thread of its own. Where it is, the next round has its draft already (the paper's post-verify); for
that the target adds no bonus token to a draft kept whole. Where it is not, what was drafted ahead
is thrown away, and the next draft is a single token, which the target checks while the drafter goes
on after it (pre-verify).

None of this bears on the output's distribution, nor does the threads' timing. The uniforms of the
draft ahead are taken before the threads part and never used for anything else, so they are
independent of whether it is kept; given the text it continues, its tokens are drawn from the
drafter's rows there like any others. Its length is decided by what the last round kept, by count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify
from hierspec.core.proposals import Proposal
from hierspec.core.rng import Rng
from hierspec.drafters.base import DraftCall, Drafter, Drafts
from hierspec.sampling.scores import ScoreRows

from .sequences import AheadDraft, LiveSequence


@dataclass(slots=True, eq=False)
class TakenBefore:
    """Uniforms taken from a sequence's rng in its own thread, to be spent in another one."""

    rng: Rng
    numbers: Any
    at: int = 0

    @staticmethod
    def of(rng: Rng, n: int) -> TakenBefore:
        return TakenBefore(rng, rng.take(n))

    def take(self, n: int) -> Any:
        self.at += n
        assert self.at <= len(self.numbers), "as many as a draft may spend"
        part: Any = self.numbers[self.at - n : self.at]
        kind = cast(Any, type(self.numbers))  # what tests deal is no array, nor is its slice
        return part if type(part) is kind else kind(part)

    def noise(self, position: int, n: int) -> Any:
        return self.rng.noise(position, n)


@dataclass(frozen=True, slots=True, eq=False)
class AheadCall:
    """What a drafter is to do for a sequence while its draft ``tail`` is checked."""

    sequence: LiveSequence
    tail: tuple[int, ...]
    call: DraftCall


@dataclass(slots=True)
class Spent:
    """What drafts ahead took: forwards of their model, and seconds inside them."""

    forwards: int = 0
    seconds: float = 0.0


class Beside:
    """A thread of its own for what drafters do while the target verifies."""

    def __init__(self) -> None:
        self._worker: ThreadPoolExecutor | None = None

    def start(self, work: Callable[[], Drafts]) -> Callable[[], Drafts]:
        """Start ``work`` → a function that waits for its end and returns the result."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "hierspec-ahead")
        return self._worker.submit(work).result

    @contextmanager
    def drafting(
        self, drafter: Drafter, calls: Sequence[AheadCall], apart: bool
    ) -> Generator[Spent, None, None]:
        """Draft ahead for these sequences until the body has ended, and leave it with them.

        Args:
            apart: see :func:`parted`; where it is false the drafts are made before the body runs.
        """

        def work() -> Drafts:
            return drafter.draft([one.call for one in calls])

        made = None if apart else work()
        result = self.start(work) if apart else None
        spent = Spent()
        try:
            yield spent
        finally:  # also where the body fails: nothing may still write to a draft model's cache
            made = result() if result is not None else made
        assert made is not None
        spent.forwards, spent.seconds = made.forwards, made.seconds
        for one, proposal in zip(calls, made.proposals, strict=True):
            length = len(one.call.job.context)
            one.sequence.ahead = AheadDraft(length, one.tail, proposal)


def ahead_limit(leaf: Draft, sequence: LiveSequence, checked: int, room: int) -> int:
    """Return how many tokens may be drafted after ``checked`` drafted ones; 0 or less for none.

    Args:
        room: the longest context of the models.
    """
    if not checked:
        return 0  # no draft to go on from
    # The verification of the round to come adds a token of its own.
    wanted = sequence.wanted - checked - 1
    return min(leaf.budget, wanted, room - len(sequence.tokens) - checked)


def ahead_call(
    leaf: Draft, sequence: LiveSequence, tail: tuple[int, ...], job: ScoreRows, limit: int
) -> AheadCall:
    """Prepare the call for a draft after ``tail``, the draft that is checked.

    A history is counted afresh: the one of the sequence may be counting for the target meanwhile.
    """
    job = dataclasses.replace(job, history=None)
    rng = TakenBefore.of(sequence.rng, 0 if sequence.params.greedy else leaf.budget)
    state = sequence.states[leaf.index]
    call = DraftCall(job, limit, leaf.budget, state, rng, sequence.slot)
    return AheadCall(sequence, tail, call)


def parted(node: Verify, leaf: Draft, calls: Sequence[AheadCall]) -> bool:
    """Return whether drafts may be made in another thread than the target's call.

    Not where both write to one cache, where a device records calls, or where somebody's logits
    processors would be called from two threads.
    """
    shared = leaf.model.cache_owner is node.model.cache_owner or node.model.graphs is not None
    return not shared and not any(one.sequence.params.logits_processors for one in calls)


def taken(sequence: LiveSequence, context: Context, limit: int) -> Proposal | None:
    """Take what was drafted ahead for this text, at most ``limit`` tokens; drop it for another."""
    made, sequence.ahead = sequence.ahead, None
    if made is None or not made.continues(context):
        return None
    return made.proposal.truncated(limit)
