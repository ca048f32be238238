"""One hierarchy at work: it begins texts, prefills their prompts and runs their rounds.

The engine (:mod:`hierspec.engine.engine`) decides which requests are served, and when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import walk, walk_levels
from hierspec.core.proposals import Verdict
from hierspec.drafters.base import LookUp
from hierspec.errors import FAILURES, HierspecError
from hierspec.lm.base import ModelVerify
from hierspec.lm.encoder_decoder import split_prompt, validate_decoder_only
from hierspec.sampling.scores import logprobs, top_logprobs
from hierspec.utils.graphs import Graphs

from .control import Controller, Steering, label
from .load_control import LoadControl, Plans, class_of
from .prefixes import PrefixCache, prefill
from .request import Request, TokenScore
from .results import LevelStats
from .runtime import Runtime
from .stopping import TextStream

log = logging.getLogger(__name__)

_MOST_LEFT_OUT = 16  # rounds in a row that are not measured, since their calls were recorded


class Runner:
    """A hierarchy at work for a fixed set of requests: all run it as it is, or as steered.

    Args:
        controller: chooses the plan of every request's next round; ``None``: always ``root``.
        lock: held while models run, since others may use them.

    Attributes:
        root: has every node of every plan.

    Raises:
        HierspecError: the controller belongs to another hierarchy.
    """

    def __init__(
        self,
        root: ModelVerify,
        tokenizer: Any = None,
        *,
        controller: Controller | None = None,
        lock: AbstractContextManager[Any] | None = None,
        log_observer_errors: bool = False,
    ) -> None:
        if controller is not None:
            if controller.root.model is not root.model:
                raise HierspecError(
                    "the controller was made for another hierarchy: make it from this one's root"
                )
            root = controller.root
        self.root, self.tokenizer, self.controller = root, tokenizer, controller
        self.lock = lock or nullcontext()
        self.runtime = Runtime(root, root.model.vocab_size, log_observer_errors)
        self.names = {node.index: node.name for node in walk(root)}
        self.prefixes = PrefixCache()

    def begin(self, request: Request) -> None:
        request.tokens, request.source = split_prompt(self.root.model, request.prompt)
        limit = request.stop.max_output_tokens(len(request.tokens))
        assert limit is not None, "there is always a limit: max_new_tokens, or the context's length"
        steering = None
        if self.controller is not None:
            steering = Steering(self.controller, len(request.tokens), limit)
        stream = TextStream(self.tokenizer, request.stop, request.tokens)
        request.begin(self.root, limit, stream, self.names, steering)

    def copy_prefix(self, request: Request, live: Sequence[Request]) -> None:
        with self.lock:
            copied = self.prefixes.copy_prefix(request, live)
        request.num_prefilled = request.num_cached_tokens = copied
        request.prefix_searched = True

    def prefill(self, request: Request, end: int) -> None:
        wants_logprobs = request.num_prompt_logprobs is not None
        # The first row scores the token after so many.
        first = request.num_prefilled + 1 if wants_logprobs else None
        with self.lock:
            rows = prefill(request, end, first)
        if wants_logprobs:
            request.prompt_logprobs += _token_scores(rows, request)
        request.num_prefilled = end

    def run_round(
        self,
        requests: Sequence[Request],
        num_streams: int,
        draft_plan: ModelVerify | None = None,
    ) -> list[Verdict | BaseException]:
        """Run a round of the target for these requests → the verdict or the error of each.

        Args:
            num_streams: number of live requests, including those whose prompts are being prefilled.
            draft_plan: of requests whose drafts follow the load.
        """
        outcomes: dict[Request, Verdict | BaseException] = {}
        prepared: list[Request] = []
        for request in requests:
            try:
                request.prepare_round(self.plan_for(request, draft_plan))
                prepared.append(request)
            except FAILURES as error:
                outcomes[request] = error
        with self.lock:
            verdicts = self.runtime.try_round(prepared) if prepared else []
        outcomes.update(zip(prepared, verdicts, strict=True))
        return [outcomes[request] for request in requests]

    def plan_for(self, request: Request, draft_plan: ModelVerify | None) -> ModelVerify | None:
        """Return the plan of a request's next round; ``None``: let its steering choose."""
        return None

    def record(self, request: Request, verdict: Verdict, now: float) -> None:
        request.record_round(verdict, now)


class ServingRunner(Runner):
    """A hierarchy of a service: drafts follow the load, unless a request fixes its plan.

    Args:
        display_name: a level's name → its name in results and metrics.
        predictor: drafts from predicted outputs (:mod:`hierspec.drafters.prediction`); without
            one, and under a controller, they are ignored.
        adapt_to_load: let drafts follow the load.
    """

    def __init__(
        self,
        root: ModelVerify,
        tokenizer: Any = None,
        *,
        controller: Controller | None = None,
        lock: AbstractContextManager[Any] | None = None,
        display_name: Callable[[str], str] = str,
        predictor: LookUp | None = None,
        adapt_to_load: bool = True,
    ) -> None:
        validate_decoder_only(root.model, "the service")
        controlled = controller is not None
        self.plans = Plans(
            controller.root if controlled else root,
            None if controlled else predictor,
            controlled,
        )
        super().__init__(
            self.plans.root,
            tokenizer,
            controller=controller,
            lock=lock,
            log_observer_errors=True,
        )
        self.load = LoadControl(len(self.plans.draft_plans), adapt_to_load, controlled)
        self._num_left_out = 0
        self.names = {level.index: display_name(level.name) for level in walk_levels(self.root)}

    def begin(self, request: Request) -> None:
        super().begin(request)
        request.private = True
        if request.prediction and self.plans.predictor is not None:
            length = len(request.prompt)
            request.slot(self.plans.predictor).expect(request.prediction, length)
        request.level_stats = {
            level.index: LevelStats(self.names[level.index])
            for level in walk_levels(self.root.below)
        }

    def run_round(
        self,
        requests: Sequence[Request],
        num_streams: int,
        draft_plan: ModelVerify | None = None,
    ) -> list[Verdict | BaseException]:
        # A round measures a plan only if most of its requests follow the load, ...
        following = [r for r in requests if r.speculative and not (r.fixed_plan or r.prediction)]
        measurable = 2 * len(following) > len(requests)
        began = time.monotonic()
        try:
            index = self.load.choose(num_streams, measurable)
        except Exception:
            log.exception("drafts do not follow the load in this round")
            index = 0
        measurable = measurable and class_of(num_streams) == class_of(len(requests))
        # ... and if it prefills no prompt.
        measurable = measurable and all(request.started for request in requests)
        first_runs = Graphs.num_first_runs
        outcomes = super().run_round(requests, num_streams, self.plans.draft_plans[index])
        # Nor by one in which a GPU met new shapes, which take longer until they are recorded.
        if measurable and Graphs.num_first_runs > first_runs:
            self._num_left_out += 1
            measurable = self._num_left_out > _MOST_LEFT_OUT
        if measurable:
            self._num_left_out = 0
            seconds = time.monotonic() - began
            num_tokens = sum(len(v.emitted) for v in outcomes if isinstance(v, Verdict))
            try:
                self.load.record_round(len(requests), index, num_tokens, seconds)
            except Exception:
                log.exception("a round was not measured")
        return outcomes

    def record(self, request: Request, verdict: Verdict, now: float) -> None:
        plan = request.plan = label(request.root, self.names)
        if request.started:
            request.plans[plan] = request.plans.get(plan, 0) + 1
        super().record(request, verdict, now)

    def plan_for(self, request: Request, draft_plan: ModelVerify | None) -> ModelVerify | None:
        plans = self.plans
        if not request.speculative:
            return plans.plain
        if request.prediction and plans.predictor is not None and request.started:
            slot = request.slot(plans.predictor)
            if plans.predictor.propose(Context(request.tokens), 1, slot):
                return plans.prediction
        if request.steering is not None:
            return plans.plain if draft_plan is plans.plain and not request.fixed_plan else None
        if request.fixed_plan:
            return plans.full
        # A first round needs no draft, and one would delay the other requests.
        return draft_plan if request.started else plans.plain


def _token_scores(rows: torch.Tensor, request: Request) -> list[TokenScore]:
    """Score tokens of a prompt by rows of raw scores [R, V]; the last row may have no token."""
    tokens = request.tokens[request.num_prefilled + 1 :]
    n = min(len(rows), len(tokens))
    if not n:
        return []
    chosen, k = logprobs(rows[:n], tokens[:n]), request.num_prompt_logprobs or 0
    tops = top_logprobs(rows[:n], k) if k else [()] * n
    return [TokenScore(*pair) for pair in zip(chosen, tops, strict=True)]
