"""A live sequence, and its round in progress as a stack of coroutines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, initial_states
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import NodeRequest, Propose
from hierspec.core.rng import Noise, PhiloxRng
from hierspec.core.round import Coroutine, propose, verified
from hierspec.drafters.base import Drafter
from hierspec.lm.base import CacheOwner, CacheUser, ModelVerify, Slot
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.penalties import History

from .caches import SessionCache, Slots, close_slots
from .pace import Pace
from .results import LevelStats


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a sequence that a round's calls change, so that they can be repeated.

    What models cache is not part of it: a slot compares its tokens with each context. Look-ups are
    asked for one sequence at a time, and learn when a round has ended, which cannot be undone.
    """

    num_taken: int
    num_learnt: int
    states: States
    target_calls: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class LiveSequence:
    """One generation in progress: its text, its randomness, and its slots in models' caches.

    Attributes:
        root: the hierarchy of the next round; a controller may replace it between rounds.
        tokens: prompt and emitted tokens; only ever grows. Of an encoder-decoder target: its
            decoder's start token and emitted tokens.
        num_remaining_tokens: how many more tokens it may emit; a round emits no more.
        prompt_length: how many of ``tokens`` are not output.
        source: the prompt of an encoder-decoder target, which encoders read.
        private: other sequences may not draft from its text.
        target_calls: forwards of the target it took part in, follow-up calls of a rule included.
        num_logprobs: report the raw target's log-probability of every output token, and of this
            many likeliest ones at its position; ``None``: report none.
        num_learnt: rounds that drafters have learnt from.
        pace: of its rounds, those that it ran alone.
        level_stats: counters of its drafts by node index, where its engine keeps them.
        session_cache: the cache that its slots come from, and go back to when it ends.
    """

    id: int
    root: ModelVerify
    tokens: list[int]
    params: SamplingParams
    rng: PhiloxRng
    num_remaining_tokens: int
    prompt_length: int = 0
    source: tuple[int, ...] = ()
    private: bool = False
    num_logprobs: int | None = None
    states: States = ()
    history: History | None = None
    target_calls: int = 0
    num_learnt: int = 0
    pace: Pace = field(default_factory=Pace)
    level_stats: dict[int, LevelStats] = field(default_factory=dict[int, LevelStats])
    slots: Slots = field(default_factory=dict[tuple[int, int], tuple[CacheOwner, Any]])
    session_cache: SessionCache | None = None

    def __post_init__(self) -> None:
        self.prompt_length = self.prompt_length or len(self.tokens)
        self.states = self.states or initial_states(self.root)
        if self.params.has_penalties:
            self.history = History(self.prompt_length)

    @property
    def noise(self) -> Noise | None:
        """The races' noise by position; ``None`` unless the rule emits the verifier's own draws."""
        races = self.root.rule.draft_independent and not self.params.greedy
        return self.rng.noise if races else None

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end the text."""
        return frozenset()

    @property
    def max_length(self) -> int:
        """Length that its text may reach."""
        return len(self.tokens) + self.num_remaining_tokens

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt as its caller gave it."""
        return len(self.source) or self.prompt_length

    def context(self, pending: tuple[int, ...] = ()) -> Context:
        return Context(self.tokens, pending, self.source)

    def slot(self, model: CacheUser, draft: int = 0) -> Any:
        """Return this sequence's slot in ``model``'s cache; views of one trunk share theirs.

        Where several drafts are made at once, each has a slot of its own, with its own copy of
        the text so far: k times the memory, but only tokens that are new to it are computed.
        """
        owner = model.cache_owner
        key = (id(owner), draft)
        if key not in self.slots:
            self.add_slot(key, owner, self._open(owner))
        return self.slots[key][1]

    def _open(self, owner: CacheOwner) -> Any:
        """Open a slot, shared with other sequences only where drafts cannot change the text.

        Sampled tokens depend on drafts, and drafts learnt from a text are not independent of the
        rng that wrote it, which may be this sequence's own in an earlier generation.
        """
        self.announce_length(owner)
        independent = self.params.greedy or self.root.rule.draft_independent
        can_share = not self.private and independent and self.root.rule.exact_for(True)
        return owner.open() if can_share else getattr(owner, "open_private", owner.open)()

    def announce_length(self, owner: CacheOwner) -> None:
        """Let a cache that makes room beforehand make it for the whole text."""
        if (reserve := getattr(owner, "reserve", None)) is not None:
            reserve(self.max_length)

    def add_slot(self, key: tuple[int, int], owner: CacheOwner, slot: Any) -> None:
        if isinstance(slot, Slot):
            slot.prompt_length = self.prompt_length
        self.slots[key] = (owner, slot)

    def snapshot(self) -> Snapshot:
        """Return what :meth:`restore` needs to repeat what happens from now on."""
        return Snapshot(self.rng.num_taken, self.num_learnt, self.states, self.target_calls)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of the same round, after a call that failed."""
        if self.num_learnt != snapshot.num_learnt:
            raise RuntimeError("a round failed after drafters had learnt from it")
        self.rng.rewind(snapshot.num_taken)
        self.states, self.target_calls = snapshot.states, snapshot.target_calls
        if self.history is not None:  # it may have been counting
            self.history = History(self.prompt_length)

    def adopt(self, cache: SessionCache) -> None:
        for key, (owner, slot) in cache.take().items():
            self.add_slot(key, owner, slot)
        self.session_cache = cache

    def close(self) -> None:
        """Give the slots back to the session's cache, or free them. Safe to call twice."""
        if self.session_cache is not None:
            cache, self.session_cache = self.session_cache, None
            slots, self.slots = self.slots, {}
            cache.give_back(slots)
        close_slots(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Nodes of several plans that share calls: their answers do not depend on the plan."""

    index: int
    drafter: Drafter | None


@dataclass(frozen=True, slots=True, eq=False)
class NodeInfo:
    """What a runtime knows of a plan's node.

    Attributes:
        max_context: the longest context that all models at and below it can take.
        switches: lengths that no draft may pass: beyond them a model encodes positions differently.
        group: the nodes it shares calls with; ``None`` for a concatenation, which has no model.
        partial: whether its model scores a part of the vocabulary only.
    """

    max_context: int
    group: Group | None
    partial: bool
    switches: tuple[int, ...] = ()

    def room(self, length: int) -> int:
        """Return how many tokens may be drafted after a text of ``length`` tokens."""
        ends = [n for n in self.switches if n >= length]
        return min(self.max_context, *ends) - length if ends else self.max_context - length


class Task:
    """A sequence's round in progress: a stack of coroutines and the request it waits for.

    Attributes:
        request: what it waits for, until there is a ``verdict``.
        group: of the node that the request is for.
        node_infos: of the nodes of the sequence's plan, by index.
        checked: what the target has verified, and the place of this task in it.
        row_scores: the target's scores [1, V] for each :class:`Row` it answered, by ``pending``;
            filled where log-probabilities are requested.
    """

    __slots__ = (
        *("_stack", "checked", "group", "node_infos", "request", "row_scores", "sequence"),
        "verdict",
    )

    request: NodeRequest
    group: Group

    def __init__(self, sequence: LiveSequence, node_infos: Mapping[int, NodeInfo]) -> None:
        self.sequence = sequence
        self.verdict: Verdict | None = None
        self.checked: Any = None
        self.row_scores: dict[tuple[int, ...], torch.Tensor] = {}
        self.node_infos = node_infos
        root, limit, states = sequence.root, sequence.num_remaining_tokens, sequence.states
        self._stack: list[Coroutine] = [verified(root, (), limit, states)]
        self.advance(None)

    def advance(self, answer: Any) -> None:
        """Send ``answer`` and run on to the next request that needs the interpreter."""
        while self._stack:
            try:
                request = self._stack[-1].send(answer)
            except StopIteration as stop:
                self._stack.pop()
                answer = stop.value
                continue
            info = self.node_infos[request.node.index]
            if isinstance(request, Propose):
                # When the context of some model of the node is full, it hands up nothing.
                room = info.room(len(self.sequence.tokens) + len(request.pending))
                limit = min(request.limit, room)
                if limit <= 0:
                    answer = (Proposal(), request.states)
                    continue
                if not isinstance(request.node, Draft):
                    node, pending, states = request.node, request.pending, request.states
                    self._stack.append(propose(node, pending, limit, states))
                    answer = None
                    continue
                if limit < request.limit:
                    request = dataclasses.replace(request, limit=limit)
            assert info.group is not None
            self.request, self.group = request, info.group
            return
        self.verdict, self.sequence.states = answer
