"""Drafting on while the target verifies: PEARL (Liu et al. 2024, arXiv 2408.11850).

While the target checks a draft, its drafter continues that draft as if all of it were accepted, in
a thread of its own. Where it is, the next round has its draft already (the paper's post-verify);
for that the target adds no bonus token to a draft accepted whole. Where it is not, what was drafted
ahead is thrown away, and the next draft is a single token, which the target checks while the
drafter goes on after it (pre-verify).

Neither this nor the threads' timing changes the output's distribution. The uniforms of the draft
ahead are taken before the thread starts and are used for nothing else, so they are independent of
whether the draft is accepted; given the text it continues, its tokens are drawn from the drafter's
distributions like any others. Its length depends only on how many tokens the last round accepted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from hierspec.core.context import Context
from hierspec.core.proposals import Proposal
from hierspec.core.rng import Rng
from hierspec.drafters.base import DraftCall, Drafter, Drafts
from hierspec.lm.base import ModelDraft, ModelVerify
from hierspec.sampling.scores import ScoreRows

from .sequences import AheadDraft, LiveSequence


@dataclass(slots=True, eq=False)
class ReservedUniforms:
    """Uniforms taken from a sequence's rng beforehand, to be used in another thread."""

    rng: Rng
    uniforms: Any
    num_used: int = 0

    def take(self, n: int) -> Any:
        start, self.num_used = self.num_used, self.num_used + n
        assert self.num_used <= len(self.uniforms), "a draft uses at most what was reserved for it"
        part: Any = self.uniforms[start : self.num_used]
        kind = cast(Any, type(self.uniforms))  # tests give lists of a class that slices lose
        return part if type(part) is kind else kind(part)

    def noise(self, position: int, n: int) -> Any:
        return self.rng.noise(position, n)


@dataclass(frozen=True, slots=True, eq=False)
class AheadCall:
    """A call of the drafter for a sequence while its draft ``tail`` is verified."""

    sequence: LiveSequence
    tail: tuple[int, ...]
    call: DraftCall


class BackgroundDrafting:
    """A thread that drafts while the target verifies."""

    def __init__(self) -> None:
        self._worker: ThreadPoolExecutor | None = None

    def start(self, work: Callable[[], Drafts]) -> Callable[[], Drafts]:
        """Start ``work`` → a function that waits for the result and returns it."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "hierspec-ahead")
        return self._worker.submit(work).result

    @contextmanager
    def drafting(
        self,
        drafter: Drafter,
        calls: Sequence[AheadCall],
        in_thread: bool,
        report: Callable[[int, float], None],
    ) -> Generator[None, None, None]:
        """Draft ahead while the body runs, and give each sequence its draft afterwards.

        Args:
            in_thread: see :func:`can_draft_in_thread`; if false, the body waits for the drafts.
            report: called at the end with the number of forwards and the seconds they took.
        """

        def work() -> Drafts:
            return drafter.draft([ahead.call for ahead in calls])

        drafts = None if in_thread else work()
        result = self.start(work) if in_thread else None
        try:
            yield
        finally:  # also where the body fails: nothing may still write to a draft model's cache
            drafts = result() if result is not None else drafts
        assert drafts is not None
        for ahead, proposal in zip(calls, drafts.proposals, strict=True):
            length = len(ahead.call.job.context)
            ahead.sequence.ahead = AheadDraft(length, ahead.tail, proposal)
        report(drafts.forwards, drafts.seconds)


def ahead_call(
    leaf: ModelDraft, sequence: LiveSequence, tail: tuple[int, ...], job: ScoreRows, limit: int
) -> AheadCall:
    """Prepare the call for a draft after ``tail``, the draft that is being verified.

    Penalties count the text anew: the target may be updating the sequence's own history meanwhile.
    """
    job = dataclasses.replace(job, history=None)
    uniforms = sequence.rng.take(0 if sequence.params.greedy else leaf.budget)
    rng, state = ReservedUniforms(sequence.rng, uniforms), sequence.states[leaf.index]
    call = DraftCall(job, limit, leaf.budget, state, rng, sequence.slot)
    return AheadCall(sequence, tail, call)


def can_draft_in_thread(node: ModelVerify, leaf: ModelDraft, calls: Sequence[AheadCall]) -> bool:
    """Return whether drafts may be made in another thread than the target's forward.

    They may not where both write to one cache, where calls are recorded in CUDA graphs, or where a
    user's logits processors would be called from two threads.
    """
    shared = leaf.model.cache_owner is node.model.cache_owner or node.model.graphs is not None
    return not shared and not any(ahead.sequence.params.logits_processors for ahead in calls)


def take_ahead_draft(sequence: LiveSequence, context: Context, limit: int) -> Proposal | None:
    """Remove a sequence's draft ahead → its first ``limit`` tokens if it was made for this text."""
    draft, sequence.ahead = sequence.ahead, None
    if draft is None or len(context) != draft.length:
        return None
    is_for_this = tuple(context.tokens(draft.length - len(draft.tail))) == draft.tail
    return draft.proposal.truncated(limit) if is_for_this else None
