"""EAGLE-3 as a language model that drafts: the network on hidden states of the target's checks.

Row t of the network reads the target's features of token t and the embedding of token t + 1. In the
committed text it reads the target's features, at every place but the last, which a check may not
have run; from there on its own outputs. So its distribution is a function of the committed text and
the pending tokens after it, whatever has been computed before and whatever shares the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hierspec.core.context import Context
from hierspec.lm.backend import Span
from hierspec.lm.base import Following, Query, Slot, check_query
from hierspec.lm.trees import Branches
from hierspec.lm.trunk.trunk import SharesSlots, Trunk

from .layer import Eagle3Layer
from .network import Eagle3Network

_FIRST_CAPACITY = 256


class Eagle3Counters:
    """Passes of the network since it was made, and rows, by whether they read the target's features
    or its own outputs."""

    def __init__(self) -> None:
        self.calls, self.target_rows, self.own_rows = 0, 0, 0


@dataclass(slots=True, eq=False)
class _Eagle3State:
    """What the network has cached of a sequence: a guest of its slot in the target's trunk.

    Attributes:
        text: the committed text.
        seen: how many rows, from the first, read the target's features of ``text``.
        output: of the row before the first pending token, [d]; ``None`` until it is computed.
        pending: tokens whose rows are cached after these, one continuation or several.
        outputs: of the rows of pending tokens, [d] each.
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
            self.truncate(max(length - 1, 0))
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

    def truncate(self, seen: int) -> None:
        """Keep the first ``seen`` rows that read the target's features, and no pending ones."""
        self.output, self.seen = None, min(self.seen, seen)
        self.pending, self.outputs = Branches(self.seen), []

    def output_after(self, node: int) -> torch.Tensor:
        """Return the output after a pending token; −1: after the committed text."""
        found = self.output if node < 0 else self.outputs[node]
        assert found is not None
        return found


class Eagle3Model(SharesSlots):
    """An EAGLE-3 network over a target's trunk: a language model whose slots are the trunk's.

    Scores are over the target's vocabulary, −∞ for tokens that the network does not score. A
    context of one token has no features: its scores are all equal.

    Args:
        trunk: with exits at the layers the network reads.
        network: fits the target (:func:`check_fits`).
        layers: after which layers of the target its features are read, lowest first.

    Attributes:
        leaf: it only drafts: its rows depend on one another, so it cannot check a draft at once.
        trees: it makes several drafts of one text in one slot.
        partial: whether it scores a part of the target's vocabulary only.
    """

    leaf = trees = True

    def __init__(
        self, trunk: Trunk, network: Eagle3Network, layers: Sequence[int], name: str
    ) -> None:
        backend = trunk.backend
        self.trunk, self.layers, self.name = trunk, tuple(layers), name
        self.layer = Eagle3Layer(network, backend)
        self.known_ids = network.known_ids.to(backend.device)
        self.partial = len(self.known_ids) < backend.vocab_size
        self.vocab_size = backend.vocab_size
        self.max_length = backend.max_length
        self.device = backend.device
        self.counters = Eagle3Counters()

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`.

        Rows inside the committed text are those of a text that ended there.
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
        ends = [self._add_nodes(q, state)[-1] for q, state in zip(queries, states, strict=True)]

        @torch.inference_mode()
        def after(going: Sequence[int], last: Sequence[int]) -> torch.Tensor:
            now = [states[i] for i in going]
            for i, token in zip(going, last, strict=True):
                ends[i] = states[i].pending.add_child(ends[i], token)
            self._run_pending(now)
            return self._scores(torch.stack([states[i].output_after(ends[i]) for i in going]))

        return scores, after

    def _scores(self, output: torch.Tensor) -> torch.Tensor:
        """Return scores [N, V] of outputs [N, d]."""
        own = self.layer.scores(output)
        out = own.new_full((len(own), self.vocab_size), -torch.inf)
        return out.index_copy_(1, self.known_ids, own)

    def _outputs(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return the network's outputs at all rows asked, [Σ num_rows, d]."""
        states = [self._state(query.slot) for query in queries]
        for query in queries:
            check_query(query, self.name, self.max_length)
        early = self._run_committed(queries, states)
        nodes = [self._add_nodes(q, state) for q, state in zip(queries, states, strict=True)]
        self._run_pending(states)
        parts: list[torch.Tensor] = []
        for query, state, before, own in zip(queries, states, early, nodes, strict=True):
            parts += before
            first = max(0, query.start - len(query.context.committed))
            parts += [state.output_after(node) for node in own[first:]]
        return torch.stack(parts)

    def _add_nodes(self, query: Query, state: _Eagle3State) -> list[int]:
        """Add the query's pending tokens and tree; return −1, for the text, and their nodes."""
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

    def _run_committed(
        self, queries: Sequence[Query], states: Sequence[_Eagle3State]
    ) -> list[list[torch.Tensor]]:
        """Run the network on new rows of the committed text, and again on those asked for.

        Returns, for each query, the outputs of the rows it asks for before the text's last.
        """
        early: list[list[torch.Tensor]] = [[] for _ in queries]
        todo: list[tuple[int, Span]] = []
        for i, (query, state) in enumerate(zip(queries, states, strict=True)):
            committed = query.context.committed
            text, rows = Context(committed), len(committed) - 1
            agreed = state.text.overlap(text, len(committed))
            if agreed < len(state.text.held):
                state.truncate(max(agreed - 1, 0))
                del state.text.held[agreed:]
            state.text.held += text.tokens(agreed)
            if state.seen != rows:
                state.truncate(rows)
            # Before row 0 there is nothing to read, so the network has no output.
            first = min(state.seen, max(query.start - 2, 0) if query.start <= rows else rows)
            if first == state.seen == rows and state.output is None:
                first = max(rows - 1, 0)
            if query.start == 1 and rows > 0:
                early[i].append(self._zero_output())
            if rows == 0:
                state.output = self._zero_output()
            elif first < rows:
                self._make_room(state, rows)
                todo.append((i, Span(state.cache, first, rows - first)))
        if not todo:
            return early
        wanted = [
            (queries[i].slot, Context(queries[i].context.committed), s.start, s.start + s.n)
            for i, s in todo
        ]
        hidden = self.layer.fuse(torch.cat(self.trunk.hidden_states(wanted, self.layers)))
        ids = [t for i, s in todo for t in states[i].text.held[s.start + 1 : s.start + 1 + s.n]]
        spans = [span for _, span in todo]
        output = self.layer(hidden, self._embed(ids, spans), spans)
        self.counters.calls += 1
        self.counters.target_rows += len(ids)
        for (i, span), own in zip(todo, output.split([s.n for s in spans]), strict=True):
            state, query = states[i], queries[i]
            state.truncate(span.start)
            state.seen, state.output = span.start + span.n, own[-1]
            state.pending = Branches(state.seen)
            if query.start <= state.seen:
                early[i].extend(own[max(0, query.start - 2 - span.start) : -1])
        return early

    def _run_pending(self, states: Sequence[_Eagle3State]) -> None:
        """Run the network on new pending tokens, all of a depth at once; each reads the output
        before it."""
        while going := [state for state in states if len(state.outputs) < len(state.pending)]:
            spans: list[Span] = []
            for state in going:
                first, count = len(state.outputs), 1
                depths = [node.depth for node in state.pending.nodes[first:]]
                while count < len(depths) and depths[count] == depths[0]:
                    count += 1
                self._make_room(state, state.seen + first + count)
                straight = depths[0] == first + 1  # all tokens stored before are its ancestors
                held = None if straight and count == 1 else state.pending
                spans.append(Span(state.cache, state.seen + first, count, held))
            rows = [
                (state, node)
                for state, span in zip(going, spans, strict=True)
                for node in state.pending.nodes[span.start - state.seen :][: span.n]
            ]
            tokens = [node.token for _, node in rows]
            hidden = torch.stack([state.output_after(node.parent) for state, node in rows])
            output = self.layer(hidden, self._embed(tokens, spans), spans)
            self.counters.calls += 1
            self.counters.own_rows += len(tokens)
            for (state, _), own in zip(rows, output, strict=True):
                state.outputs.append(own)

    def _embed(self, ids: Sequence[int], spans: Sequence[Span]) -> torch.Tensor:
        """Return the target's embeddings of tokens, whose positions are one after their rows'."""
        places: list[Span] = []
        for span in spans:
            if span.branches is None:
                places.append(Span(None, span.start + 1, span.n))
            else:
                places += [Span(None, position + 1, 1) for position in span.positions]
        return self.trunk.embed(ids, places)

    def _zero_output(self) -> torch.Tensor:
        size = self.layer.config.hidden_size
        return torch.zeros(size, dtype=self.layer.dtype, device=self.device)

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
