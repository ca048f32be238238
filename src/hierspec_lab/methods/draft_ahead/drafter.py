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

from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal
from hierspec.core.rng import Rng
from hierspec.drafters.base import DraftCall, Drafts
from hierspec.drafters.model import ModelDrafter
from hierspec.lm.base import LanguageModel


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
class AheadDraft:
    """A draft made while the one before it, ``tail``, was verified."""

    tail: tuple[int, ...]
    proposal: Proposal


class AheadDrafts(dict[int, AheadDraft]):
    """A sequence's drafts ahead, by the length of the text that each continues.

    The one in use stays until the text has grown, so that a call that failed can be repeated.
    """

    def take(self, call: DraftCall) -> Proposal | None:
        """Return the draft made for a call's text, up to its limit; forget those for others."""
        context = call.job.context
        length = len(context)
        for other in [key for key in self if key != length]:
            del self[other]
        draft = self.get(length)
        if draft is None or tuple(context.tokens(length - len(draft.tail))) != draft.tail:
            return None
        return draft.proposal.truncated(call.limit)


class AheadDrafter(ModelDrafter):
    """A leaf that drafts on while the target verifies."""

    def __init__(self, node: Draft[LanguageModel]) -> None:
        super().__init__(node)
        self._worker: ThreadPoolExecutor | None = None

    @property
    def cache_owner(self) -> AheadDrafter:
        return self

    def open(self) -> AheadDrafts:
        return AheadDrafts()

    def close(self, slot: AheadDrafts) -> None:
        """There is nothing to free."""

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        """Return drafts made ahead where they fit; for the other calls draft a single token."""
        proposals = [call.slot(self, 0).take(call) for call in calls]
        pairs = zip(calls, proposals, strict=True)
        missing = [dataclasses.replace(call, limit=1) for call, made in pairs if made is None]
        drafts = super().draft(missing) if missing else Drafts([], 0, 0.0)
        new = iter(drafts.proposals)
        return drafts._replace(proposals=[next(new) if p is None else p for p in proposals])

    @contextmanager
    def drafting_on(
        self,
        calls: Sequence[DraftCall],
        target: LanguageModel,
        report: Callable[[int, int, float], None],
    ) -> Generator[None, None, None]:
        """Draft ahead while the body runs, and give each sequence its draft afterwards."""
        ahead = [_reserve(call) for call in calls]

        def work() -> Drafts:
            return super(AheadDrafter, self).draft(ahead)

        if self._can_use_thread(calls, target):
            result = self.start(work)
        else:
            drafts = work()
            result = lambda: drafts  # noqa: E731
        try:
            yield
        finally:  # also where the body fails: nothing may still write to a draft model's cache
            drafts = result()
        for call, proposal in zip(calls, drafts.proposals, strict=True):
            context = call.job.context
            call.slot(self, 0)[len(context)] = AheadDraft(context.pending, proposal)
        report(self.node.index, drafts.forwards, drafts.seconds)

    def start(self, work: Callable[[], Drafts]) -> Callable[[], Drafts]:
        """Start ``work`` → a function that waits for the result and returns it."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "hierspec-ahead")
        return self._worker.submit(work).result

    def _can_use_thread(self, calls: Sequence[DraftCall], target: LanguageModel) -> bool:
        """Return whether drafts may be made in another thread than the target's forward.

        They may not where both write to one cache, where calls are recorded in CUDA graphs, or
        where a user's logits processors would be called from two threads.
        """
        shared = self.model.cache_owner is target.cache_owner or target.graphs is not None
        return not shared and not any(call.job.params.logits_processors for call in calls)


def _reserve(call: DraftCall) -> DraftCall:
    """Return a call with uniforms of its own.

    Penalties count the text anew: the target may be updating the sequence's own history meanwhile.
    """
    uniforms = call.rng.take(0 if call.job.params.greedy else call.budget)
    job = dataclasses.replace(call.job, history=None)
    return dataclasses.replace(call, job=job, rng=ReservedUniforms(call.rng, uniforms))
