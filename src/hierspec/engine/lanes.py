"""One hierarchy of a service: its plans, its runtime, and caches of texts that have ended.

The loop (:mod:`hierspec.engine.loop`) decides which requests are served, and when. A lane creates
their sequences, reads their prompts and runs their rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import initial_states, walk_levels
from hierspec.core.proposals import Verdict
from hierspec.core.rng import PhiloxRng
from hierspec.drafters.base import LookUp
from hierspec.errors import as_exception
from hierspec.lm.base import ModelVerify
from hierspec.lm.encoder_decoder import check_decoder_only
from hierspec.sampling.scores import logprobs, top_logprobs

from .control import Controller, Steering, label
from .load import LoadControl, Plans, in_same_class
from .metrics import SequenceMetrics
from .output import Output
from .prefixes import PrefixCache, prefill
from .runtime import Runtime
from .sequences import LiveSequence
from .stopping import TextStream
from .tickets import EngineRequest, Ticket, TokenScore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A hierarchy that the engine loop serves, beside others; each request runs in one lane.

    Attributes:
        lock: held while its models run, since others may use them.
        display_name: a level's name → its name in results and metrics.
        predictor: drafts from predicted outputs (:mod:`hierspec.drafters.prediction`); without
            one, and under a controller, they are ignored.
    """

    root: ModelVerify
    tokenizer: Any
    controller: Controller | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext[None])
    display_name: Callable[[str], str] = str
    predictor: LookUp | None = None


class ServedLane:
    """A hierarchy at work.

    Args:
        adapt_to_load: let drafts follow the load.

    Attributes:
        names: of the levels in results and metrics, by index, smallest level first.
        runtime: its ``metrics`` count all rounds.
        prefixes: caches of texts that have ended.
        sequence_metrics: counters of every live sequence's drafts.
    """

    def __init__(self, lane: Lane, adapt_to_load: bool) -> None:
        self.tokenizer, self.controller, self.lock = lane.tokenizer, lane.controller, lane.lock
        root = lane.root if lane.controller is None else lane.controller.root
        check_decoder_only(root.model, "the service")
        controlled = lane.controller is not None
        self.plans = Plans(root, None if controlled else lane.predictor, controlled)
        self.load = LoadControl(len(self.plans.arms), adapt_to_load, controlled)
        levels = list(walk_levels(self.plans.root))
        self.names = {level.index: lane.display_name(level.name) for level in levels}
        vocab_size = lane.root.model.vocab_size
        self.runtime = Runtime(self.plans.root, vocab_size, log_observer_errors=True)
        self.prefixes = PrefixCache()
        self.sequence_metrics = SequenceMetrics({n.index: self.names[n.index] for n in levels[:-1]})
        self.runtime.observe(self.sequence_metrics)

    def create_output(self, ticket: Ticket, limit: int) -> None:
        """Create a request's sequence and its output of at most ``limit`` tokens."""
        request, prompt = ticket.request, list(ticket.request.prompt)
        sequence = LiveSequence(
            id=ticket.number,
            root=self.plans.full,
            tokens=prompt,
            params=request.params,
            rng=PhiloxRng(request.seed, request.place),
            num_remaining_tokens=limit,
            private=True,
            want_logprobs=request.logprobs is not None,
            num_top_logprobs=request.logprobs or 0,
            states=initial_states(self.plans.root),
        )
        steering = None
        if self.controller is not None:
            steering = Steering(self.controller, len(prompt), limit)
        text = TextStream(self.tokenizer, request.stop, prompt)
        ticket.output = Output(sequence, text, limit, self.names, steering)
        if request.prediction and self.plans.predictor is not None:
            sequence.slot(self.plans.predictor).expect(request.prediction, len(prompt))
        self.sequence_metrics.follow(sequence)

    def copy_prefix(self, ticket: Ticket, live: Sequence[Ticket]) -> None:
        """Copy the longest cached prefix of the prompt, from ended or ``live`` requests."""
        assert ticket.output is not None
        sources = [
            (source.request.tenant, source.output.sequence)
            for source in live
            if source is not ticket and source.output is not None
        ]
        with self.lock:
            ticket.num_read = ticket.num_cached = self.prefixes.copy_prefix(
                ticket.output.sequence, ticket.request.tenant, sources
            )
        ticket.prefix_copied = True

    def read_prompt(self, ticket: Ticket, end: int) -> None:
        """Let every model of the hierarchy read the prompt up to ``end``."""
        assert ticket.output is not None
        sequence = ticket.output.sequence
        wants_logprobs = ticket.request.prompt_logprobs is not None
        # The first row scores the token after so many.
        first = ticket.num_read + 1 if wants_logprobs else None
        with self.lock:
            rows = prefill(sequence, end, first)
        if wants_logprobs:
            tokens = sequence.tokens[ticket.num_read + 1 :]
            ticket.prompt_logprobs += _token_scores(rows, tokens, ticket.request)
        ticket.num_read = end

    def run_round(self, tickets: Sequence[Ticket], num_streams: int) -> list[Verdict | Exception]:
        """Run a round of the target for these requests → the verdict or the error of each.

        Args:
            num_streams: number of live requests, including those whose prompts are being read.
        """
        # A round measures an arm only if most of its requests follow the load.
        measurable = 2 * sum(map(_follows_load, tickets)) > len(tickets)
        began = time.monotonic()
        arm = self._choose_arm(num_streams, measurable)
        measurable = measurable and in_same_class(num_streams, len(tickets))
        outcomes: dict[Ticket, Verdict | Exception] = {}
        prepared: dict[Ticket, LiveSequence] = {}
        for ticket in tickets:
            try:
                output = ticket.output
                assert output is not None
                output.prepare_round(self._plan(ticket.request, output, self.plans.arms[arm]))
                measurable = measurable and output.started  # and if it reads no prompt
                prepared[ticket] = output.sequence
            except BaseException as error:
                outcomes[ticket] = as_exception(error)
        with self.lock:
            verdicts = self.runtime.round_apart(list(prepared.values()))
        outcomes.update(zip(prepared, verdicts, strict=True))
        if measurable:
            seconds = time.monotonic() - began
            num_tokens = sum(len(v.emitted) for v in verdicts if not isinstance(v, Exception))
            try:
                self.load.record_round(len(tickets), arm, num_tokens, seconds)
            except Exception:
                log.exception("a round was not measured")
        return [outcomes[ticket] for ticket in tickets]

    def plan_name(self, root: ModelVerify) -> str:
        """Name the plan of a round as results do (:func:`hierspec.engine.control.label`)."""
        return label(root, self.names)

    def _choose_arm(self, num_streams: int, measurable: bool) -> int:
        try:
            return self.load.choose(num_streams, measurable)
        except Exception:
            log.exception("drafts do not follow the load in this round")
            return 0

    def _plan(self, request: EngineRequest, output: Output, arm: ModelVerify) -> ModelVerify | None:
        """Return the plan of a sequence's next round; ``None``: let its steering choose."""
        plans = self.plans
        if not request.speculative:
            return plans.plain
        if request.prediction and plans.predictor is not None and output.started:
            sequence = output.sequence
            slot = sequence.slot(plans.predictor)
            if plans.predictor.propose(Context(sequence.tokens), 1, slot):
                return plans.prediction
        if output.steering is not None:
            return plans.plain if arm is plans.plain and not request.fixed_plan else None
        if request.fixed_plan:
            return plans.full
        # A first round needs no draft, and one would delay the other sequences.
        return arm if output.started else plans.plain


def _token_scores(
    rows: torch.Tensor, tokens: list[int], request: EngineRequest
) -> list[TokenScore]:
    """Score tokens by rows of raw scores [R, V]; the last row may have no token."""
    n = min(len(rows), len(tokens))
    if not n:
        return []
    chosen, k = logprobs(rows[:n], tokens[:n]), request.prompt_logprobs or 0
    tops = top_logprobs(rows[:n], k) if k else [()] * n
    return [TokenScore(*pair) for pair in zip(chosen, tops, strict=True)]


def _follows_load(ticket: Ticket) -> bool:
    request = ticket.request
    return request.speculative and not request.fixed_plan and not request.prediction
