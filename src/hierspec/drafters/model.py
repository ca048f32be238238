"""A leaf that drafts with a language model: token by token on the host, or all on its device.

The device loop takes requests that share one sampler and whose scores are not edited (penalties,
grammars and processors read tokens on the host). A window that reads the tokens is then asked about
a few at once, and the uniforms of those beyond a stop are discarded. A leaf that could draft so
discards them in the host loop as well, since which loop runs depends on other sequences.

On a CPU the kernels draft like that, for requests whose scores are not edited, where no window
reads the tokens. Which requests do depends on nothing beside them, since torch rounds otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from hierspec.core.distributions import (
    Distributions,
    OneHotDistributions,
    Uniforms,
    concatenate,
    draw_each,
)
from hierspec.core.nodes import Draft
from hierspec.core.proposals import Proposal
from hierspec.core.windows import Window
from hierspec.errors import HierspecError
from hierspec.lm.base import (
    DeviceDrafts,
    DeviceModel,
    DeviceTrees,
    LanguageModel,
    PredictingModel,
    Query,
    StepwiseModel,
)
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.sampling.scores import ScoreRows, compute_signals, distributions, scores_error

from .base import DraftCall, Drafts, draft_proposal

D = TypeVar("D", DeviceDrafts, DeviceTrees)
_CHUNK = 4  # tokens drafted on the device before a window is asked about them


@dataclass(slots=True, eq=False)
class GrowingDraft:
    """A draft in the making; ``number`` tells the drafts of one call apart.

    Attributes:
        signals: a number a token where a window reads them, else none.
    """

    call: DraftCall
    number: int = 0
    tokens: list[int] = field(default_factory=list[int])
    distributions: list[Distributions] = field(default_factory=list[Distributions])
    signals: list[float] = field(default_factory=list[float])

    def next_job(self) -> ScoreRows:
        """Return the request for its next token's scores, with context and sampling parameters."""
        job = self.call.job
        if not self.tokens:
            return job
        context = job.context.with_tokens(self.tokens)
        return replace(job, context=context, start=len(context), num_rows=1)

    def append(self, token: int, row: Distributions) -> None:
        """Add a token, and the one row that it was drawn from."""
        self.tokens.append(token)
        self.distributions.append(row)

    def proposal(self, index: int) -> Proposal:
        return draft_proposal(index, self.tokens, concatenate(self.distributions), self.signals)


# (indices of n drafts, each of which it makes one token longer) → scores [n, V] of those tokens
Step = Callable[[Sequence[int]], torch.Tensor]


class ModelDrafter:
    """A leaf whose model is a :class:`~hierspec.lm.base.LanguageModel`."""

    def __init__(self, node: Draft[LanguageModel]) -> None:
        model = self.model = node.model
        self.node = node
        self.device_model = self.stepwise_model = None
        if node.window.signal == "acceptance":
            pass  # the ordinary loop: a prediction already runs the token through the model
        elif model.graphs is not None:
            self.device_model = model if isinstance(model, DeviceModel) else None
        else:
            self.stepwise_model = model if isinstance(model, StepwiseModel) else None
        self.kernels_model = None  # what drafts in one call of the kernels
        if getattr(model, "drafts_in_one_call", False) and node.window.signal is None:
            self.kernels_model = model if isinstance(model, DeviceModel) else None
        self.forwards, self.seconds = 0, 0.0

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        self.forwards, self.seconds = 0, 0.0
        drafts = [GrowingDraft(call) for call in calls]
        samplers = [self._kernels_sampler(draft) for draft in drafts]
        pairs = [*zip(drafts, samplers, strict=True)]
        alike = [(draft, sampler) for draft, sampler in pairs if sampler is not None]
        others = [draft for draft, sampler in pairs if sampler is None]
        if others and all(sampler.greedy for _, sampler in alike):
            alike, others = [], drafts  # the best tokens are the same in either way
        if self.kernels_model is not None and alike:
            self.grow_on_device(self.kernels_model, alike)
        if others:
            self._grow_together(others)
        proposals = [draft.proposal(self.node.index) for draft in drafts]
        return Drafts(proposals, self.forwards, self.seconds)

    def _kernels_sampler(self, draft: GrowingDraft) -> Sampler | None:
        """Return the sampler with which the kernels make a draft; ``None`` where they cannot."""
        sampler = None if self.kernels_model is None else shared_sampler([draft.call.job])
        return None if sampler is None or sampler.races else sampler

    def _grow_together(self, drafts: Sequence[GrowingDraft]) -> None:
        sampler = None
        if self.device_model is not None or self.stepwise_model is not None:
            sampler = shared_sampler([draft.call.job for draft in drafts])
        if sampler is None or (sampler.races and self.device_model is None):
            self.grow(drafts, self.scoring_step(drafts))
        elif self.device_model is not None:
            self.grow_on_device(self.device_model, [(draft, sampler) for draft in drafts])
        else:
            assert self.stepwise_model is not None
            # Rows that nobody edits need no version counters.
            with torch.inference_mode():
                self.grow(drafts, self.stepwise_step(self.stepwise_model, drafts, sampler))

    def grow(self, drafts: Sequence[GrowingDraft], step: Step) -> None:
        """Extend drafts on the host, token by token, each up to its own limit or window's stop."""
        window = self.node.window
        active = [i for i, draft in enumerate(drafts) if len(draft.tokens) < draft.call.limit]
        while active := self.select_willing(drafts, active):
            scores = step(active)
            values = self._signals([drafts[i] for i in active], scores)
            unfinished: list[int] = []
            for n, i in enumerate(active):
                draft = drafts[i]
                remaining = draft.call.limit - len(draft.tokens)
                if values is None:
                    stops = False
                else:
                    draft.signals.append(values[n])
                    stops = window.stops(draft.signals, draft.call.state)
                if remaining and not stops:
                    unfinished.append(i)
                elif remaining and not isinstance(draft.distributions[-1], OneHotDistributions):
                    # As the loop on a device, which has drawn for the rest of its chunk.
                    num_unused = min(-len(draft.tokens) % self._chunk_size(draft.call), remaining)
                    draft.call.rng.take(num_unused)
            active = unfinished

    def select_willing(self, drafts: Sequence[GrowingDraft], active: Sequence[int]) -> list[int]:
        """Return those of ``active`` to which the model will add a token: here, all of them."""
        return list(active)

    def grow_on_device(
        self, model: DeviceModel, drafts: Sequence[tuple[GrowingDraft, Sampler]]
    ) -> None:
        """Extend drafts on the device, each up to its own limit or to where its window stops it.

        A window that reads the tokens is asked about a chunk at a time: tokens beyond the stop are
        discarded with the uniforms that drew them, so that nothing kept depends on them.
        """
        signal = self.node.window.signal
        active = [(draft, replace(sampler, signal=signal)) for draft, sampler in drafts]
        while active:
            counts = [
                min(self._chunk_size(draft.call), draft.call.limit - len(draft.tokens))
                for draft, _ in active
            ]
            drafted = self._draft_on_device(model, active, counts)
            unfinished: list[tuple[GrowingDraft, Sampler]] = []
            for row, ((draft, sampler), n) in enumerate(zip(active, counts, strict=True)):
                values = None if drafted.signals is None else drafted.signals[row]
                kept, stopped = n, False
                if values is not None:
                    kept, stopped = _keep_until_stop(self.node.window, draft, values)
                    draft.signals += values[:kept]
                rows = drafted.distributions[row]
                draft.tokens += drafted.tokens[row][:kept]
                draft.distributions.append(rows.rows(0, kept) if stopped else rows)
                if not stopped and len(draft.tokens) < draft.call.limit:
                    unfinished.append((draft, sampler))
            active = unfinished

    def scoring_step(self, drafts: Sequence[GrowingDraft]) -> Step:
        """Return a step that scores the drafts, each with sampling parameters of its own."""

        def step(active: Sequence[int]) -> torch.Tensor:
            scores, rows = self.rows([drafts[i] for i in active])
            tokens = draw_each(rows, [drafts[i].call.rng for i in active])
            for i, token, row in zip(active, tokens, rows, strict=True):
                drafts[i].append(token, row)
            return scores

        return step

    def rows(self, drafts: Sequence[GrowingDraft]) -> tuple[torch.Tensor, list[Distributions]]:
        """Return scores [n, V] of the drafts' next tokens, and the distributions made of them."""
        jobs, queries = self.next_queries(drafts)
        began = time.perf_counter()
        scores = self.model.score(queries)
        self._count_forward(began)
        return scores, distributions(jobs, scores)

    def next_queries(self, drafts: Sequence[GrowingDraft]) -> tuple[list[ScoreRows], list[Query]]:
        """Return each draft's :meth:`GrowingDraft.next_job`, and the query for its scores."""
        jobs = [draft.next_job() for draft in drafts]
        slots = [draft.call.slot(self.model, draft.number) for draft in drafts]
        return jobs, [Query.for_rows(job, slot) for job, slot in zip(jobs, slots, strict=True)]

    def stepwise_step(
        self, model: StepwiseModel, drafts: Sequence[GrowingDraft], sampler: Sampler
    ) -> Step:
        """Return a step of a model that continues from its last call, with one sampler for all."""
        next_scores = None

        def step(active: Sequence[int]) -> torch.Tensor:
            nonlocal next_scores
            began = time.perf_counter()
            if next_scores is None:
                queries = [self._query(draft) for draft in drafts]
                limits = [draft.call.limit for draft in drafts]
                scores, next_scores = model.score_stepwise(queries, limits)
            else:
                scores = next_scores(active, [drafts[i].tokens[-1] for i in active])
            self._count_forward(began)
            if sampler.greedy:
                uniforms: Uniforms = ()
            elif len(active) == 1:
                uniforms = drafts[active[0]].call.rng.take(1)
            else:
                uniforms = [drafts[i].call.rng.take(1).item() for i in active]
            try:
                tokens, rows = sampler.pick(scores, uniforms)
            except NoDistributionError:
                jobs = [drafts[i].next_job() for i in active]
                raise scores_error(jobs, scores, scores) from None
            for n, (i, token) in enumerate(zip(active, tokens, strict=True)):
                drafts[i].append(token, rows if len(active) == 1 else rows.rows(n, n + 1))
            return scores

        return step

    def _signals(self, drafts: Sequence[GrowingDraft], scores: torch.Tensor) -> list[float] | None:
        """Return what the window reads of the drafts' last tokens, drawn from ``scores`` [n, V].

        A prediction is not asked for where a draft ends anyway: it would take a forward.
        """
        signal = self.node.window.signal
        if signal is None:
            return None
        if signal != "acceptance":
            return compute_signals(scores, [draft.tokens[-1] for draft in drafts], signal)
        assert isinstance(self.model, PredictingModel)
        ends = [len(draft.tokens) == draft.call.limit for draft in drafts]
        queries = [self._query(draft) for draft, end in zip(drafts, ends, strict=True) if not end]
        began = time.perf_counter()
        predicted = iter(self.model.acceptance(queries) if queries else ())
        self.seconds += time.perf_counter() - began
        return [math.nan if end else next(predicted) for end in ends]

    def _chunk_size(self, call: DraftCall) -> int:
        """Return how many uniforms are taken at once, wherever a window may stop.

        It depends on the leaf alone, so that a sequence spends the same uniforms whatever shares
        its batch, and whichever loop runs.
        """
        if self.node.window.signal is None:
            return call.budget
        return 1 if self.device_model is None else min(call.budget, _CHUNK)

    def _query(self, draft: GrowingDraft) -> Query:
        context = draft.call.job.context
        if draft.tokens:
            context = context.with_tokens(draft.tokens)
        return Query(draft.call.slot(self.model, draft.number), context, len(context))

    def _count_forward(self, began: float) -> None:
        self.seconds += time.perf_counter() - began
        self.forwards += 1

    def _draft_on_device(
        self,
        model: DeviceModel,
        drafts: Sequence[tuple[GrowingDraft, Sampler]],
        counts: Sequence[int],
    ) -> DeviceDrafts:
        uniforms = [
            _random_numbers(draft, n, sampler, model.vocab_size)
            for (draft, sampler), n in zip(drafts, counts, strict=True)
        ]
        own = [draft for draft, _ in drafts]
        queries, samplers = [self._query(draft) for draft in own], [each for _, each in drafts]
        return self.on_device(own, lambda: model.draft(queries, counts, samplers, uniforms))

    def on_device(self, drafts: Sequence[GrowingDraft], make: Callable[[], D]) -> D:
        """Return what a model makes on its device; count the time and the calls."""
        began = time.perf_counter()
        try:
            drafted = make()
        except NoDistributionError as error:
            if error.scores is None:
                raise HierspecError(
                    f"{self.node.name} produced scores that are not a distribution; "
                    "try --dtype float32"
                ) from None
            jobs = [draft.call.job for draft in drafts]
            raise scores_error(jobs[: len(error.scores)], error.scores, error.scores) from None
        self.seconds += time.perf_counter() - began
        self.forwards += drafted.calls
        return drafted


def shared_sampler(jobs: Sequence[ScoreRows]) -> Sampler | None:
    """Return the sampler of all jobs; ``None`` where they differ or edit scores."""
    if any(job.params.edits_scores for job in jobs):
        return None
    samplers = [
        replace(sampler, races=job.noise is not None and not sampler.greedy)
        for job, sampler in ((job, job.sampler()) for job in jobs)
    ]
    return samplers[0] if all(own == samplers[0] for own in samplers[1:]) else None


def _random_numbers(draft: GrowingDraft, n: int, sampler: Sampler, width: int) -> Uniforms:
    """Return what n tokens are drawn with: uniforms or, where they race, noise [n, V]."""
    if sampler.greedy:
        return ()
    noise = draft.call.job.noise
    if noise is None:
        return draft.call.rng.take(n)
    width, first = min(width, sampler.vocab_size), draft.next_job().start
    return np.stack([noise(position, width) for position in range(first, first + n)])


def _keep_until_stop(
    window: Window, draft: GrowingDraft, signals: Sequence[float]
) -> tuple[int, bool]:
    """Return how many tokens of a new chunk are kept, and whether the window stopped there."""
    for n in range(1, len(signals) + 1):
        if window.stops((*draft.signals, *signals[:n]), draft.call.state):
            return n, True
    return len(signals), False
