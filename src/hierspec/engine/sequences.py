"""A live generation, and its round in progress as a stack of coroutines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify, initial_states
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import Propose, Request
from hierspec.core.rng import Rng
from hierspec.core.round import Coroutine, propose
from hierspec.lm.base import Slot
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.penalties import History


@dataclass(slots=True, eq=False)
class Sequence:
    """One live generation: its text, its randomness, and its places in the models' caches.

    Attributes:
        root: the hierarchy of the next round; a controller may replace it between rounds.
        tokens: prompt and emitted tokens; only ever grows.
        wanted: how many tokens are still of use; a round emits no more.
        target_calls: forwards of the target it took part in, follow-up calls of a rule included.
    """

    id: int
    root: Verify
    tokens: list[int]
    params: SamplingParams
    rng: Rng
    wanted: int
    num_prompt: int = 0
    want_logprobs: bool = False
    states: States = ()
    history: History | None = None
    target_calls: int = 0
    slots: dict[tuple[int, int], tuple[Any, Slot]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_prompt = self.num_prompt or len(self.tokens)
        self.states = self.states or initial_states(self.root)
        if self.params.has_penalties:
            self.history = History(self.num_prompt)

    def slot(self, model: Any, draft: int = 0) -> Slot:
        """This sequence's place in ``model``'s cache; views of one trunk share theirs.

        Where several drafts are made at once, each has a place of its own, with its own copy of
        the text so far: k times the memory, and only what is new to it is ever computed.
        """
        owner = getattr(model, "cache_owner", model)
        key = (id(owner), draft)
        if key not in self.slots:
            self.slots[key] = (owner, self._open(owner))
        return self.slots[key][1]

    def _open(self, owner: Any) -> Any:
        """A place that other sequences write to as well only where no draft can show in the text.

        What is sampled depends on what was drafted, and drafts learnt from a text are not
        independent of the dice that wrote it: those may be this sequence's own, used again.
        """
        if self.params.greedy and self.root.rule.exact_for(True):
            return owner.open()
        return getattr(owner, "open_own", owner.open)()

    def close(self) -> None:
        """Give the cache memory back. Safe to call twice."""
        while self.slots:
            owner, slot = self.slots.popitem()[1]
            owner.close(slot)


@dataclass(slots=True, eq=False)
class Task:
    """A sequence's round in progress: a stack of coroutines and the request it waits for.

    Attributes:
        raw: the target's scores [1, V] at places asked for one by one, by the tokens pending there;
            kept where log-probabilities are wanted.
    """

    sequence: Sequence
    stack: list[Coroutine]
    longest: Mapping[int, int]
    request: Request | None = None
    verdict: Verdict | None = None
    raw: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def context(self, pending: tuple[int, ...]) -> Context:
        return Context(self.sequence.tokens, pending)

    def advance(self, answer: Any) -> None:
        """Send ``answer`` and run on to the next request that needs the interpreter."""
        self.request = None
        while self.stack:
            try:
                request = self.stack[-1].send(answer)
            except StopIteration as stop:
                self.stack.pop()
                answer = stop.value
                continue
            answer = None
            if isinstance(request, Propose):
                limit = min(request.limit, self._room(request))
                if limit <= 0:
                    answer = (Proposal(), request.states)
                    continue
                if not isinstance(request.node, Draft):
                    node, pending, states = request.node, request.pending, request.states
                    self.stack.append(propose(node, pending, limit, states))
                    continue
                if limit < request.limit:
                    request = dataclasses.replace(request, limit=limit)
            self.request = request
            return
        self.verdict, self.sequence.states = answer

    def _room(self, request: Propose) -> int:
        """Tokens until the context of some model of the node is full; then it hands up nothing."""
        longest = self.longest[request.node.index]
        return longest - len(self.sequence.tokens) - len(request.pending)
