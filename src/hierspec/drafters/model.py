"""A leaf that drafts with a language model: token by token on the host, or all on its device.

The device loop takes requests that share one sampler, whose scores nobody edits (penalties,
grammars and processors read tokens on the host), and which draw uniforms, not races.
A window that reads the tokens is then asked about a few at once, and a stop throws uniforms away;
where a leaf could draft so, the host loop throws them away too, since which loop runs depends on
other sequences.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
    LanguageModel,
    PredictingModel,
    Query,
    StepwiseModel,
)
from hierspec.sampling.sampler import NoDistributionError, Sampler
from hierspec.sampling.scores import ScoreRows, distributions, scores_error
from hierspec.sampling.scores import signals as compute_signals

from .base import DraftCall, Drafts, proposal_of

_CHUNK = 4  # tokens drafted on the device before a window is asked about them


@dataclass(slots=True, eq=False)
class Growing:
    """A draft in the making; ``number`` tells the drafts of one call apart.

    Attributes:
        signals: a number a token where a window reads them, else none.
    """

    call: DraftCall
    number: int = 0
    tokens: list[int] = field(default_factory=list[int])
    distributions: list[Distributions] = field(default_factory=list[Distributions])
    signals: list[float] = field(default_factory=list[float])

    def job(self) -> ScoreRows:
        """Return how the scores of its next token become a distribution."""
        job = self.call.job
        if not self.tokens:
            return job
        context = job.context.plus(self.tokens)
        return ScoreRows(
            params=job.params,
            context=context,
            start=len(context),
            num_rows=1,
            prompt_length=job.prompt_length,
            vocab_size=job.vocab_size,
            temperature=job.temperature,
            history=job.history,
            model=job.model,
            noise=job.noise,
            partial=job.partial,
        )

    def proposal(self, index: int) -> Proposal:
        signals = self.signals or [math.nan] * len(self.tokens)
        return proposal_of(index, self.tokens, concatenate(self.distributions), signals)


# (which drafts) → scores [n, V] of their next tokens, a token drawn from each, and from what
Step = Callable[[Sequence[int]], tuple[torch.Tensor, Sequence[int], Sequence[Distributions]]]


class ModelDrafter:
    """A leaf whose model is a :class:`~hierspec.lm.base.LanguageModel`."""

    def __init__(self, node: Draft) -> None:
        model: LanguageModel = node.model
        self.node, self.model = node, model
        self.device = self.following = None
        if node.window.signal == "acceptance":
            pass  # a prediction takes the token through the model before the next step asks for it
        elif model.graphs is not None:
            self.device = model if isinstance(model, DeviceModel) else None
        else:
            self.following = model if isinstance(model, StepwiseModel) else None
        self.forwards, self.seconds = 0, 0.0

    def draft(self, calls: Sequence[DraftCall]) -> Drafts:
        self.forwards, self.seconds = 0, 0.0
        drafts = [Growing(call) for call in calls]
        sampler = None
        if self.device is not None or self.following is not None:
            sampler = shared_sampler([call.job for call in calls])
        if sampler is None:
            self.grow(drafts, self.scoring_step(drafts))
        elif self.device is not None:
            self.grow_on_device(self.device, drafts, sampler)
        else:
            assert self.following is not None
            # Rows that nobody edits need no version counters.
            with torch.inference_mode():
                self.grow(drafts, self.follow(self.following, drafts, sampler))
        proposals = [draft.proposal(self.node.index) for draft in drafts]
        return Drafts(proposals, self.forwards, self.seconds)

    def grow(self, drafts: Sequence[Growing], step: Step) -> None:
        """Extend drafts on the host, token by token, each up to its own limit or window's stop."""
        window = self.node.window
        going = [i for i, draft in enumerate(drafts) if len(draft.tokens) < draft.call.limit]
        while going := self.willing(drafts, going):
            scores, tokens, rows = step(going)
            for at, i in enumerate(going):
                drafts[i].tokens.append(tokens[at])
                drafts[i].distributions.append(rows[at])
            values = self._signals([drafts[i] for i in going], scores, tokens)
            still: list[int] = []
            for at, i in enumerate(going):
                draft = drafts[i]
                left = draft.call.limit - len(draft.tokens)
                if values is None:
                    stops = False
                else:
                    draft.signals.append(values[at])
                    stops = window.stops(draft.signals, draft.call.state)
                if left and not stops:
                    still.append(i)
                elif left and not isinstance(rows[at], OneHotDistributions):
                    spent = min(-len(draft.tokens) % self._chunk(draft.call), left)
                    draft.call.rng.take(spent)
            going = still

    def willing(self, drafts: Sequence[Growing], going: Sequence[int]) -> list[int]:
        """Return those of ``going`` to which the model will add a token: here, all of them."""
        return list(going)

    def grow_on_device(
        self, model: DeviceModel, drafts: Sequence[Growing], sampler: Sampler
    ) -> None:
        """Extend drafts on the device, each up to its own limit or to where its window stops it.

        A window that reads the tokens is asked about a chunk at a time: what lies beyond the stop
        is thrown away with the uniforms it was drawn from, so that nothing kept depends on it.
        """
        sampler = replace(sampler, signal=self.node.window.signal)
        steps = max(self._chunk(draft.call) for draft in drafts)
        going = drafts
        while going:
            counts = [
                min(self._chunk(draft.call), draft.call.limit - len(draft.tokens))
                for draft in going
            ]
            found = self._draft_on_device(model, going, counts, steps, sampler)
            still: list[Growing] = []
            for row, (draft, n) in enumerate(zip(going, counts, strict=True)):
                values = None if found.signals is None else found.signals[row]
                kept, stopped = n, False
                if values is not None:
                    kept, stopped = _keep_until_stop(self.node.window, draft, values)
                    draft.signals += values[:kept]
                rows = found.distributions[row]
                draft.tokens += found.tokens[row][:kept]
                draft.distributions.append(rows.rows(0, kept) if stopped else rows)
                if not stopped and len(draft.tokens) < draft.call.limit:
                    still.append(draft)
            going = still

    def scoring_step(self, drafts: Sequence[Growing]) -> Step:
        """Return a step that scores the drafts, each with sampling parameters of its own."""

        def step(going: Sequence[int]):
            now = [drafts[i] for i in going]
            scores, rows = self.rows(now)
            return scores, draw_each(rows, [draft.call.rng for draft in now]), rows

        return step

    def rows(self, drafts: Sequence[Growing]) -> tuple[torch.Tensor, list[Distributions]]:
        """Return scores [n, V] of the drafts' next tokens, and the distributions made of them."""
        jobs, queries = self.next_queries(drafts)
        began = time.perf_counter()
        scores = self.model.score(queries)
        self._count_forward(began)
        return scores, distributions(jobs, scores)

    def next_queries(self, drafts: Sequence[Growing]) -> tuple[list[ScoreRows], list[Query]]:
        """Return each draft's :meth:`Growing.job`, and the query for its scores."""
        jobs = [draft.job() for draft in drafts]
        slots = [draft.call.slot(self.model, draft.number) for draft in drafts]
        return jobs, [Query.for_rows(job, slot) for job, slot in zip(jobs, slots, strict=True)]

    def follow(self, model: StepwiseModel, drafts: Sequence[Growing], sampler: Sampler) -> Step:
        """Return a step of a model that goes on from its last call, with one sampler for all."""
        after = None

        def step(going: Sequence[int]):
            nonlocal after
            began = time.perf_counter()
            if after is None:
                queries = [self._query(draft) for draft in drafts]
                scores, after = model.score_stepwise(
                    queries, [draft.call.limit for draft in drafts]
                )
            else:
                scores = after(going, [drafts[i].tokens[-1] for i in going])
            self._count_forward(began)
            if sampler.greedy:
                uniforms: Uniforms = ()
            elif len(going) == 1:
                uniforms = drafts[going[0]].call.rng.take(1)
            else:
                uniforms = [drafts[i].call.rng.take(1).item() for i in going]
            try:
                tokens, found = sampler.pick(scores, uniforms)
            except NoDistributionError:
                raise scores_error([drafts[i].job() for i in going], scores, scores) from None
            if len(going) == 1:
                return scores, tokens, [found]
            return scores, tokens, [found.rows(row, row + 1) for row in range(len(going))]

        return step

    def _signals(
        self, drafts: Sequence[Growing], scores: torch.Tensor, tokens: Sequence[int]
    ) -> list[float] | None:
        """Return what the window reads of the latest ``tokens``, drawn from ``scores`` [n, V].

        A prediction is not asked for where a draft ends anyway: it would take a forward.
        """
        signal = self.node.window.signal
        if signal != "acceptance":
            return None if signal is None else compute_signals(scores, tokens, signal)
        assert isinstance(self.model, PredictingModel)
        ends = [len(draft.tokens) == draft.call.limit for draft in drafts]
        queries = [self._query(draft) for draft, end in zip(drafts, ends, strict=True) if not end]
        began = time.perf_counter()
        predicted = iter(self.model.acceptance(queries) if queries else ())
        self.seconds += time.perf_counter() - began
        return [math.nan if end else next(predicted) for end in ends]

    def _chunk(self, call: DraftCall) -> int:
        """Return for how many tokens uniforms are taken at once, wherever a window may stop.

        It depends on the leaf alone. So a sequence spends the same uniforms whatever shares its
        batch, and whichever loop runs.
        """
        if self.device is None:
            return 1
        return call.budget if self.node.window.signal is None else min(call.budget, _CHUNK)

    def _query(self, draft: Growing) -> Query:
        context = draft.call.job.context
        if draft.tokens:
            context = context.plus(draft.tokens)
        return Query(draft.call.slot(self.model, draft.number), context, len(context))

    def _count_forward(self, began: float) -> None:
        self.seconds += time.perf_counter() - began
        self.forwards += 1

    def _draft_on_device(
        self,
        model: DeviceModel,
        drafts: Sequence[Growing],
        counts: Sequence[int],
        steps: int,
        sampler: Sampler,
    ) -> DeviceDrafts:
        """Draft ``counts`` tokens for each draft; count the time and the calls."""
        uniforms = [
            () if sampler.greedy else draft.call.rng.take(n)
            for draft, n in zip(drafts, counts, strict=True)
        ]
        queries = [self._query(draft) for draft in drafts]
        began = time.perf_counter()
        try:
            found = model.draft(queries, counts, steps, sampler, uniforms)
        except NoDistributionError as error:
            if error.scores is None:
                text = (
                    f"{self.node.name} produced scores that are not a distribution; "
                    "try --dtype float32"
                )
                raise HierspecError(text) from None
            jobs = [draft.call.job for draft in drafts]
            raise scores_error(jobs[: len(error.scores)], error.scores, error.scores) from None
        self.seconds += time.perf_counter() - began
        self.forwards += found.calls
        return found


def shared_sampler(jobs: Sequence[ScoreRows]) -> Sampler | None:
    """Return the sampler of all jobs; ``None`` where they differ, edit scores, or race."""
    if any(job.params.edits_scores or job.noise is not None for job in jobs):
        return None
    first = jobs[0].sampler()
    return first if all(job.sampler() == first for job in jobs[1:]) else None


def _keep_until_stop(window: Window, draft: Growing, signals: Sequence[float]) -> tuple[int, bool]:
    """Return how many tokens of a new chunk are kept, and whether the window stopped there."""
    for n in range(1, len(signals) + 1):
        if window.stops((*draft.signals, *signals[:n]), draft.call.state):
            return n, True
    return len(signals), False
