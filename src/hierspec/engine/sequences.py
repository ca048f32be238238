"""A live sequence, and its round in progress as a stack of coroutines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from hierspec.core.context import Context
from hierspec.core.nodes import Draft, Verify, initial_states
from hierspec.core.proposals import Proposal, States, Verdict
from hierspec.core.requests import Check, Propose, Request, Row
from hierspec.core.rng import Noise, Rng
from hierspec.core.round import Coroutine, propose, verified
from hierspec.drafters import Drafter, LookUp
from hierspec.drafters.base import Shareable
from hierspec.lm.base import CacheOwner, LanguageModel
from hierspec.sampling.parameters import SamplingParams
from hierspec.sampling.penalties import History

from .caches import KeptCache, Slots


@dataclass(frozen=True, slots=True, eq=False)
class AheadDraft:
    """A draft of the next round, for a text that may not come about (:mod:`.ahead`).

    Attributes:
        length: of that text.
        tail: its last tokens: the draft that was being checked.
    """

    length: int
    tail: tuple[int, ...]
    proposal: Proposal

    def continues(self, context: Context) -> bool:
        """Return whether the draft was made for this text."""
        length = len(context)
        return length == self.length and tuple(context.tokens(length - len(self.tail))) == self.tail


@dataclass(slots=True, eq=False)
class LiveSequence:
    """One generation in progress: its text, its randomness, and its places in models' caches.

    Attributes:
        root: the hierarchy of the next round; a controller may replace it between rounds.
        tokens: prompt and emitted tokens; only ever grows. Of an encoder-decoder target: its
            decoder's start token and emitted tokens.
        source: the prompt of such a target, which encoders read.
        wanted: how many tokens are still of use; a round emits no more.
        private: nothing of its text may be seen by other sequences, not even in drafts.
        target_calls: forwards of the target it took part in, follow-up calls of a rule included.
        num_top_logprobs: how many alternatives of every token, with their log-probabilities.
        kept: where its places in models' caches come from, and go to when it ends.
        ahead: a draft that was made for the next round while the last one was checked.
    """

    id: int
    root: Verify
    tokens: list[int]
    params: SamplingParams
    rng: Rng
    wanted: int
    num_prompt: int = 0
    source: tuple[int, ...] = ()
    private: bool = False
    want_logprobs: bool = False
    num_top_logprobs: int = 0
    states: States = ()
    history: History | None = None
    target_calls: int = 0
    slots: Slots = field(default_factory=dict[tuple[int, int], tuple[CacheOwner, Any]])
    kept: KeptCache | None = None
    ahead: AheadDraft | None = None

    def __post_init__(self) -> None:
        self.num_prompt = self.num_prompt or len(self.tokens)
        self.states = self.states or initial_states(self.root)
        if self.params.has_penalties:
            self.history = History(self.num_prompt)

    @property
    def noise(self) -> Noise | None:
        """Noise by position, where every level draws by a race: under a rule with own tokens."""
        return self.rng.noise if self.root.rule.own_tokens and not self.params.greedy else None

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt as its caller gave it."""
        return len(self.source) or self.num_prompt

    def context(self, pending: tuple[int, ...] = ()) -> Context:
        """Return the text so far, continued by tokens of a round in progress."""
        return Context(self.tokens, pending, self.source)

    def slot(self, model: LanguageModel | LookUp, draft: int = 0) -> Any:
        """Return this sequence's place in ``model``'s cache; views of one trunk share theirs.

        Where several drafts are made at once, each has a place of its own, with its own copy of
        the text so far: k times the memory, and only what is new to it is ever computed.
        """
        owner = model.cache_owner
        key = (id(owner), draft)
        if key not in self.slots:
            self.slots[key] = (owner, self._open(owner))
        return self.slots[key][1]

    def _open(self, owner: CacheOwner) -> Any:
        """Open a place, shared with other sequences only where no draft can show in the text.

        What is sampled depends on what was drafted, and drafts learnt from a text are not
        independent of the rng that wrote it: that may be this sequence's own, used again.
        """
        fixed = self.params.greedy or self.root.rule.own_tokens
        shares = not self.private and fixed and self.root.rule.exact_for(True)
        # The class is asked: Python keeps its answer, where an object is looked through every time.
        if issubclass(type(owner), Shareable) and not shares:
            return cast(Shareable, owner).open_private()
        return owner.open()

    def adopt(self, kept: KeptCache) -> None:
        """Start from the places of an earlier text."""
        self.slots.update(kept.take())
        self.kept = kept

    def close(self) -> None:
        """Give the cache memory back, to be kept or freed. Safe to call twice."""
        if self.kept is not None:
            kept, self.kept = self.kept, None
            kept.give_back(self.slots)
            self.slots = {}
        while self.slots:
            owner, slot = self.slots.popitem()[1]
            owner.close(slot)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Nodes of one or several plans that share calls, since their requests read the same.

    Attributes:
        index: of those nodes.
        drafter: of a leaf.
    """

    index: int
    drafter: Drafter | None


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """What a runtime knows of a plan's node.

    Attributes:
        longest: the longest context that all models at and below it can take.
        group: of a level; a concatenation makes no requests that an interpreter answers.
    """

    longest: int
    group: Group | None


class Task:
    """A sequence's round in progress: a stack of coroutines and the request it waits for.

    Attributes:
        request: what it waits for, until there is a ``verdict``.
        group: who is asked for it.
        places: of the nodes of the sequence's plan, by index.
        raw: the target's scores [1, V] at places asked for one by one, by the tokens pending there;
            kept where log-probabilities are wanted.
    """

    __slots__ = ("_stack", "group", "places", "raw", "request", "sequence", "verdict")

    request: Request
    group: Group

    def __init__(self, sequence: LiveSequence, places: Mapping[int, Place]) -> None:
        self.sequence = sequence
        self.verdict: Verdict | None = None
        self.raw: dict[tuple[int, ...], torch.Tensor] = {}
        self.places = places
        root, wanted, states = sequence.root, sequence.wanted, sequence.states
        self._stack: list[Coroutine] = [verified(root, (), wanted, states)]
        self.advance(None)

    def context(self, request: Check | Propose | Row, tokens: tuple[int, ...] = ()) -> Context:
        """Return the text that a request is about, continued by ``tokens``."""
        return self.sequence.context(request.pending + tokens)

    def advance(self, answer: Any) -> None:
        """Send ``answer`` and run on to the next request that needs the interpreter."""
        while self._stack:
            try:
                request = self._stack[-1].send(answer)
            except StopIteration as stop:
                self._stack.pop()
                answer = stop.value
                continue
            place = self.places[request.node.index]
            if isinstance(request, Propose):
                # When the context of some model of the node is full, it hands up nothing.
                room = place.longest - len(self.sequence.tokens) - len(request.pending)
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
            assert place.group is not None
            self.request, self.group = request, place.group
            return
        self.verdict, self.sequence.states = answer
