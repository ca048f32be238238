"""One hierarchy of a service: its plans, its runtime, and caches of texts that have ended.

The loop (:mod:`hierspec.engine.loop`) decides which requests are served, and when. A lane opens
their sequences, reads their prompts and runs their rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import Verify, initial_states
from hierspec.core.proposals import Verdict
from hierspec.core.rng import PhiloxRng
from hierspec.lm.encoder_decoder import check_decoder_only
from hierspec.sampling.scores import logprobs, top_logprobs

from .control import Controller, Steering
from .load import LoadControl, Plans, alike, named
from .metrics import PerSequence
from .output import Output
from .prefixes import PrefixCache, read
from .runtime import Runtime
from .sequences import LiveSequence
from .stopping import TextStream
from .tickets import EngineRequest, Ticket, TokenScore


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A hierarchy to be served.

    Attributes:
        lock: held while its models run, for whoever else uses them.
        shown: a level's name → its name in results and metrics.
    """

    root: Verify
    tokenizer: Any
    controller: Controller | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext[None])
    shown: Callable[[str], str] = str


class ServedLane:
    """A hierarchy at work.

    Args:
        adapt_to_load: let drafts follow the load.

    Attributes:
        runtime: its ``metrics`` count all that happened.
        prefixes: caches of texts that have ended.
        counts: of every live sequence's drafts.
    """

    def __init__(self, lane: Lane, adapt_to_load: bool) -> None:
        self.tokenizer, self.controller, self.lock = lane.tokenizer, lane.controller, lane.lock
        root = lane.root if lane.controller is None else lane.controller.root
        check_decoder_only(root.model, "the service")
        self.plans = Plans(root, controlled=lane.controller is not None, shown=lane.shown)
        self.load = LoadControl(len(self.plans.arms), adapt_to_load)
        self.runtime = Runtime(self.plans.root, lane.root.model.vocab_size)
        self.prefixes = PrefixCache()
        self.counts = PerSequence(self.plans.root)
        self.runtime.observe(self.counts)

    def open(self, ticket: Ticket, limit: int) -> None:
        """Give a request its sequence, which may write ``limit`` tokens."""
        request, prompt = ticket.request, list(ticket.request.prompt)
        sequence = LiveSequence(
            id=ticket.number,
            root=self.plans.full,
            tokens=prompt,
            params=request.params,
            rng=PhiloxRng(request.seed, request.place),
            wanted=limit,
            private=True,
            want_logprobs=request.logprobs is not None,
            num_top_logprobs=request.logprobs or 0,
            states=initial_states(self.plans.root),
        )
        steering = None
        if self.controller is not None:
            steering = Steering(self.controller, len(prompt), limit)
        text = TextStream(self.tokenizer, request.stop, prompt)
        ticket.output = Output(sequence, text, limit, self.plans.names(), steering)
        if request.prediction and self.plans.prediction is not None:
            sequence.slot(self.plans.look_up).expect(request.prediction, len(prompt))
        self.counts.follow(sequence)

    def copy_prefix(self, ticket: Ticket, live: Sequence[Ticket]) -> None:
        """Copy what is cached of the prompt's beginning, also by other live requests."""
        assert ticket.output is not None
        others = [
            (other.request.tenant, other.output.sequence)
            for other in live
            if other is not ticket and other.output is not None
        ]
        with self.lock:
            found = self.prefixes.begin(ticket.output.sequence, ticket.request.tenant, others)
        ticket.read = ticket.cached = found
        ticket.looked = True

    def read_prompt(self, ticket: Ticket, end: int) -> None:
        """Let every model of the hierarchy read the prompt up to ``end``."""
        assert ticket.output is not None
        sequence = ticket.output.sequence
        scored = ticket.request.prompt_logprobs is not None
        first = ticket.read + 1 if scored else None  # row r scores the token after so many
        with self.lock:
            rows = read(sequence, end, first)
        if scored:
            ticket.scores += _token_scores(rows, sequence.tokens[ticket.read + 1 :], ticket.request)
        ticket.read = end

    def run_round(self, tickets: Sequence[Ticket], num_streams: int) -> list[Verdict | Exception]:
        """Run a round of the target for these requests → each one's verdict, or why it failed.

        Args:
            num_streams: live requests, those included whose prompts are being read.
        """
        outputs = [ticket.output for ticket in tickets if ticket.output is not None]
        # Requests with plans of their own say nothing of an arm, where they are most of a round.
        measures = 2 * sum(map(_follows_load, tickets)) > len(tickets)
        arm, began = self.load.choose(num_streams, measures), time.monotonic()
        measures = measures and alike(num_streams, len(tickets))
        for ticket, output in zip(tickets, outputs, strict=True):
            output.prepare(self._plan(ticket.request, output, self.plans.arms[arm]))
            measures = measures and output.started  # nor does a round that reads a prompt
            if output.started:
                used = named(output.sequence.root)
                ticket.plans[used] = ticket.plans.get(used, 0) + 1
        with self.lock:
            verdicts = self.runtime.round_apart([output.sequence for output in outputs])
        if measures:
            seconds = time.monotonic() - began
            emitted = sum(len(v.emitted) for v in verdicts if not isinstance(v, Exception))
            self.load.measured(len(tickets), arm, emitted, seconds)
        return verdicts

    def _plan(self, request: EngineRequest, output: Output, arm: Verify) -> Verify | None:
        """Return the plan of a sequence's next round; ``None``: its steering chooses."""
        plans = self.plans
        if not request.speculative:
            return plans.plain
        if request.prediction and plans.prediction is not None and output.started:
            sequence = output.sequence
            slot = sequence.slot(plans.look_up)
            if plans.look_up.propose(Context(sequence.tokens), 1, slot):
                return plans.prediction
        if output.steering is not None:
            return plans.plain if arm is plans.plain and not request.fixed_plan else None
        if request.fixed_plan:
            return plans.full
        # The first token need not wait for drafts, nor the others for those of a first comer.
        return arm if output.started else plans.plain


def _token_scores(
    rows: torch.Tensor, tokens: list[int], request: EngineRequest
) -> list[TokenScore]:
    """Return log-probabilities of tokens from raw scores [R, V]; the last row may have no token."""
    n = min(len(rows), len(tokens))
    if not n:
        return []
    chosen, k = logprobs(rows[:n], tokens[:n]), request.prompt_logprobs or 0
    tops = top_logprobs(rows[:n], k) if k else [()] * n
    return [TokenScore(*pair) for pair in zip(chosen, tops, strict=True)]


def _follows_load(ticket: Ticket) -> bool:
    request = ticket.request
    return request.speculative and not request.fixed_plan and not request.prediction
