"""EAGLE-3 as a language model that drafts: the network on the states a target's checks leave.

Row t of the network reads the target's features of token t and the embedding of token t + 1. Of
the committed text it reads the target's features, at every place but the last, which no check has
seen for certain; from there on its own outputs. So its distribution is a function of the committed
text and what is pending after it, whatever has been computed before and whoever shares the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hierspec.core.context import Context
from hierspec.lm.backend import Span
from hierspec.lm.base import Following, Query, Slot, check_query
from hierspec.lm.trees import Branches
from hierspec.lm.trunk.shared_slots import SharesSlots
from hierspec.lm.trunk.trunk import Trunk

from .layer import Eagle3Layer
from .network import Eagle3Network

_FIRST_CAPACITY = 256


class Eagle3Counters:
    """Rows of the network computed since it was made, by what they read, and its passes."""

    def __init__(self) -> None:
        self.calls, self.target_rows, self.own_rows = 0, 0, 0


@dataclass(slots=True, eq=False)
class _Eagle3State:
    """What the network has cached of a sequence: a guest of its slot in the target's trunk.

    Attributes:
        seen: rows that read the target's features, of the committed text ``text`` holds.
        output: of the row before the first pending token, [d]; ``None`` until it is computed.
        pending: tokens whose rows are cached after these, one text or several that branch.
        outputs: of the rows of those, [d] each.
    """

    cache: torch.Tensor
    text: Slot = field(default_factory=Slot)
    seen: int = 0
    output: torch.Tensor | None = None
    pending: Branches = field(default_factory=lambda: Branches(0))
    outputs: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def rewind(self, length: int) -> None:
        """See :class:`hierspec.lm.base.Guest`."""
        if len(self.text.held) > length:
            self.settle(max(length - 1, 0))
        del self.text.held[length:]
        self.text.agreed = min(self.text.agreed, length)

    def forget_committed(self) -> None:
        """See :class:`hierspec.lm.base.Guest`."""
        self.text.agreed = 0

    def fork(self, length: int) -> _Eagle3State:
        """See :class:`hierspec.lm.base.Guest`."""
        held = self.text.held[:length]
        seen = min(self.seen, max(len(held) - 1, 0))  # row t reads token t + 1
        with torch.inference_mode():
            cache = torch.empty_like(self.cache)
            cache[:, :, :seen] = self.cache[:, :, :seen]
        return _Eagle3State(cache, Slot(held), seen)

    def settle(self, seen: int) -> None:
        """Go on from ``seen`` rows of the target's; what was drafted is void."""
        self.output, self.seen = None, min(self.seen, seen)
        self.pending, self.outputs = Branches(self.seen), []

    def after(self, node: int) -> torch.Tensor:
        """The output after a pending token; −1: after the committed text."""
        found = self.output if node < 0 else self.outputs[node]
        assert found is not None
        return found


class Eagle3Model(SharesSlots):
    """An EAGLE-3 network over a target's trunk: a language model whose slots are the trunk's.

    Scores are over the target's vocabulary, −∞ for tokens that the network does not know. A
    context of one token has no features: its scores are all the same.

    Args:
        trunk: with exits at the layers the network reads.
        network: fits the target (:func:`check_fits`).
        layers: after which layers of the target its features are read, lowest first.

    Attributes:
        leaf: it only drafts: its rows depend on one another, so it cannot check a draft at once.
        trees: several drafts of one place are made in one slot.
        partial: whether it knows a part of the target's vocabulary only.
    """

    leaf = trees = True

    def __init__(
        self, trunk: Trunk, network: Eagle3Network, layers: Sequence[int], name: str
    ) -> None:
        backend = trunk.backend
        self.trunk, self.layers, self.name = trunk, tuple(layers), name
        self.layer = Eagle3Layer(network, backend)
        self.known = network.known.to(backend.device)
        self.partial = len(self.known) < backend.vocab_size
        self.vocab_size = backend.vocab_size
        self.max_length = backend.max_length
        self.device = backend.device
        self.counters = Eagle3Counters()

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`.

        Rows inside the committed text are those that would follow had the text ended there.
        """
        with torch.inference_mode():
            output = self._outputs(queries)
        with torch.no_grad():
            return self._scores(output)

    def follow(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, Following]:
        """See :meth:`hierspec.lm.base.FollowingModel.follow`."""
        scores = self.score(queries)
        states = [self._state(query.slot) for query in queries]
        ends = [self._nodes(q, state)[-1] for q, state in zip(queries, states, strict=True)]

        @torch.inference_mode()
        def after(going: Sequence[int], last: Sequence[int]) -> torch.Tensor:
            now = [states[i] for i in going]
            for i, token in zip(going, last, strict=True):
                ends[i] = states[i].pending.add_child(ends[i], token)
            self._catch_up_pending(now)
            return self._scores(torch.stack([states[i].after(ends[i]) for i in going]))

        return scores, after

    def _scores(self, output: torch.Tensor) -> torch.Tensor:
        """Outputs [N, d] → scores [N, V]."""
        own = self.layer.scores(output)
        out = own.new_full((len(own), self.vocab_size), -torch.inf)
        return out.index_copy_(1, self.known, own)

    def _outputs(self, queries: Sequence[Query]) -> torch.Tensor:
        """The network's outputs at all rows asked, [Σ num_rows, d]."""
        states = [self._state(query.slot) for query in queries]
        for query in queries:
            check_query(query, self.name, self.max_length)
        early = self._catch_up(queries, states)
        nodes = [self._nodes(q, state) for q, state in zip(queries, states, strict=True)]
        self._catch_up_pending(states)
        parts: list[torch.Tensor] = []
        for query, state, before, own in zip(queries, states, early, nodes, strict=True):
            parts += before
            first = max(0, query.start - len(query.context.committed))
            parts += [state.after(node) for node in own[first:]]
        return torch.stack(parts)

    def _nodes(self, query: Query, state: _Eagle3State) -> list[int]:
        """Where the query's rows after the committed text are: −1, then its pending tokens."""
        nodes, held = [-1], state.pending
        for token in query.context.pending:
            nodes.append(held.add_child(nodes[-1], token))
        if query.tree is not None:
            at: list[int] = []
            for token, parent in zip(query.tree.tokens, query.tree.parents, strict=True):
                above = nodes[len(query.context.pending)] if parent < 0 else at[parent]
                at.append(held.add_child(above, token))
            nodes += at
        return nodes

    def _catch_up(
        self, queries: Sequence[Query], states: Sequence[_Eagle3State]
    ) -> list[list[torch.Tensor]]:
        """Take the rows of the committed text through the network, those asked for once more.

        Returns, for each query, outputs of the rows it asks for before the text's last.
        """
        early: list[list[torch.Tensor]] = [[] for _ in queries]
        todo: list[tuple[int, Span]] = []
        for i, (query, state) in enumerate(zip(queries, states, strict=True)):
            committed = query.context.committed
            text, rows = Context(committed), len(committed) - 1
            agreed = state.text.overlap(text, len(committed))
            if agreed < len(state.text.held):
                state.settle(max(agreed - 1, 0))
                del state.text.held[agreed:]
            state.text.held += text.tokens(agreed)
            if state.seen != rows:
                state.settle(rows)
            # The output before row 0 is none of the network's: there is nothing to read yet.
            first = min(state.seen, max(query.start - 2, 0) if query.start <= rows else rows)
            if first == state.seen == rows and state.output is None:
                first = max(rows - 1, 0)
            if query.start == 1 and rows > 0:
                early[i].append(self._nothing())
            if rows == 0:
                state.output = self._nothing()
            elif first < rows:
                self._make_room(state, rows)
                todo.append((i, Span(state.cache, first, rows - first)))
        if not todo:
            return early
        wanted = [
            (
                queries[i].slot,
                Context(queries[i].context.committed),
                span.start,
                span.start + span.n,
            )
            for i, span in todo
        ]
        hidden = self.layer.fused(torch.cat(self.trunk.hidden_states(wanted, self.layers)))
        ids = [t for i, s in todo for t in states[i].text.held[s.start + 1 : s.start + 1 + s.n]]
        spans = [span for _, span in todo]
        output = self.layer(hidden, self._embedded(ids, spans), spans)
        self.counters.calls += 1
        self.counters.target_rows += len(ids)
        for (i, span), own in zip(todo, output.split([s.n for s in spans]), strict=True):
            state, query = states[i], queries[i]
            state.settle(span.start)
            state.seen, state.output = span.start + span.n, own[-1]
            state.pending = Branches(state.seen)
            early[i] += list(
                own[max(0, query.start - 2 - span.start) : -1] if query.start <= state.seen else ()
            )
        return early

    def _catch_up_pending(self, states: Sequence[_Eagle3State]) -> None:
        """Take pending tokens through the network, those of a depth together.

        Each row reads the output before it.
        """
        while going := [state for state in states if len(state.outputs) < len(state.pending)]:
            spans: list[Span] = []
            for state in going:
                first, count = len(state.outputs), 1
                depths = [node.depth for node in state.pending.nodes[first:]]
                while count < len(depths) and depths[count] == depths[0]:
                    count += 1
                self._make_room(state, state.seen + first + count)
                straight = depths[0] == first + 1  # all that is stored before is above it
                held = None if straight and count == 1 else state.pending
                spans.append(Span(state.cache, state.seen + first, count, held))
            rows = [
                (state, node)
                for state, span in zip(going, spans, strict=True)
                for node in range(span.start - state.seen, span.start - state.seen + span.n)
            ]
            nodes = [state.pending.nodes[i] for state, i in rows]
            tokens = [node.token for node in nodes]
            before = [
                state.after(node.parent) for (state, _), node in zip(rows, nodes, strict=True)
            ]
            hidden = torch.stack(before)
            output = self.layer(hidden, self._embedded(tokens, spans), spans)
            self.counters.calls += 1
            self.counters.own_rows += len(tokens)
            for (state, _), own in zip(rows, output, strict=True):
                state.outputs.append(own)

    def _embedded(self, ids: Sequence[int], spans: Sequence[Span]) -> torch.Tensor:
        """The target's embedding of tokens, which stand one place after their rows."""
        places: list[Span] = []
        for span in spans:
            if span.branches is None:
                places.append(Span(None, span.start + 1, span.n))
            else:
                places += [Span(None, position + 1, 1) for position in span.positions]
        return self.trunk.embed(ids, places)

    def _nothing(self) -> torch.Tensor:
        return torch.zeros(
            self.layer.config.hidden_size, dtype=self.layer.dtype, device=self.device
        )

    def _state(self, slot: Slot) -> _Eagle3State:
        state = slot.guests.get(id(self))
        if state is None:
            slot.guests[id(self)] = state = _Eagle3State(self.layer.new_cache(_FIRST_CAPACITY))
        assert isinstance(state, _Eagle3State)
        return state

    def _make_room(self, state: _Eagle3State, end: int) -> None:
        held = state.cache.shape[2]
        if end > held:
            cache = self.layer.new_cache(max(2 * held, end))
            cache[:, :, :held] = state.cache
            state.cache = cache

    def __repr__(self) -> str:
        return f"Eagle3Model({self.name!r}, layers={self.layers}, V={self.vocab_size})"
