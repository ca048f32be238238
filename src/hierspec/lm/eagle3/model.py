"""EAGLE-3 as a language model that drafts: the network on hidden states of the target's checks.

Row t of the network reads the target's features of token t and the embedding of token t + 1. In the
committed text it reads the target's features at every position but the last, which a check may not
have run; from there on, its own outputs. So its distribution depends on the committed text and the
pending tokens after it alone, whatever was computed before and whatever shares the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from hierspec.core.context import Context
from hierspec.lm.backend import Span
from hierspec.lm.base import NextScores, Query, Slot, validate_query
from hierspec.lm.trees import Branches
from hierspec.lm.trunk.trunk import SlotSharingModel, Trunk

from .checkpoint import Eagle3Weights
from .layer import Eagle3Layer

_FIRST_CAPACITY = 256


@dataclass(slots=True, eq=False)
class _Eagle3State:
    """What the network has cached of a sequence, attached to its slot in the target's trunk.

    Attributes:
        text: the committed text, as a slot that compares it with the next context's.
        num_rows: how many rows, from the first, have read the target's features of ``text``.
        output: of the row before the first pending token, [d]; ``None`` until it is computed.
        pending: tokens whose rows are cached after these, one continuation or several.
        outputs: of the rows of pending tokens, [d] each.
    """

    cache: torch.Tensor
    text: Slot = field(default_factory=Slot)
    num_rows: int = 0
    output: torch.Tensor | None = None
    pending: Branches = field(default_factory=lambda: Branches(0))
    outputs: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def rewind(self, length: int) -> None:
        if len(self.text.tokens) > length:
            self.truncate(max(length - 1, 0))
        del self.text.tokens[length:]
        self.text.num_committed = min(self.text.num_committed, length)

    def forget_committed(self) -> None:
        self.text.num_committed = 0

    def fork(self, length: int) -> _Eagle3State:
        tokens = self.text.tokens[:length]
        num_rows = min(self.num_rows, max(len(tokens) - 1, 0))  # row t reads token t + 1
        with torch.inference_mode():
            cache = torch.empty_like(self.cache)
            cache[..., :num_rows, :] = self.cache[..., :num_rows, :]
        return _Eagle3State(cache, Slot(tokens), num_rows)

    def truncate(self, num_rows: int) -> None:
        """Keep at most ``num_rows`` rows that read the target's features, and no pending ones."""
        self.output, self.num_rows = None, min(self.num_rows, num_rows)
        self.pending, self.outputs = Branches(self.num_rows), []

    def output_after(self, node: int) -> torch.Tensor:
        """Return the output after a pending token; −1: after the committed text."""
        output = self.output if node < 0 else self.outputs[node]
        assert output is not None
        return output


class Eagle3Model(SlotSharingModel):
    """An EAGLE-3 network over a target's trunk: a language model whose slots are the trunk's.

    Scores are over the target's vocabulary, −∞ for tokens that the network does not score. A
    context of one token has no features: its scores are all equal.

    Args:
        trunk: the target's, with exits at the layers that the network reads.
        network: one that fits the target (:func:`validate_fits`).
        layers: after which layers of the target its features are read, lowest first.

    Attributes:
        leaf: it only drafts: its rows depend on one another, so it cannot check a draft in one
            call.
        trees: it makes several drafts of one text in one slot.
    """

    leaf = trees = True

    def __init__(
        self, trunk: Trunk, network: Eagle3Weights, layers: Sequence[int], name: str
    ) -> None:
        backend = trunk.backend
        self.trunk, self.layers, self.name = trunk, tuple(layers), name
        self.layer = Eagle3Layer(network, backend)
        self.partial = network.config.draft_vocab_size < backend.vocab_size
        self.vocab_size = backend.vocab_size
        self.max_length = backend.max_length
        self.device = backend.device

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`.

        A row inside the committed text is computed as if the text ended there.
        """
        with torch.inference_mode():
            output = self._outputs(queries)
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return self.layer.model.head(output)

    def score_stepwise(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, NextScores]:
        scores = self.score(queries)
        states = [self._state(query.slot) for query in queries]
        ends = [self._add_nodes(q, state)[-1] for q, state in zip(queries, states, strict=True)]

        @torch.inference_mode()
        def next_scores(indices: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
            for i, token in zip(indices, tokens, strict=True):
                ends[i] = states[i].pending.add_child(ends[i], token)
            self._run_pending([states[i] for i in indices])
            output = torch.stack([states[i].output_after(ends[i]) for i in indices])
            return self.layer.model.head(output)

        return scores, next_scores

    def _outputs(self, queries: Sequence[Query]) -> torch.Tensor:
        states = [self._state(query.slot) for query in queries]
        for query in queries:
            validate_query(query, self.name, self.max_length)
        inner_rows = self._run_committed(queries, states)
        paths = [self._add_nodes(q, state) for q, state in zip(queries, states, strict=True)]
        self._run_pending(states)
        outputs: list[torch.Tensor] = []
        for query, state, rows, nodes in zip(queries, states, inner_rows, paths, strict=True):
            outputs += rows
            first = max(0, query.start - len(query.context.committed))
            outputs += [state.output_after(node) for node in nodes[first:]]
        return torch.stack(outputs)

    def _add_nodes(self, query: Query, state: _Eagle3State) -> list[int]:
        """Add the query's pending tokens and tree; return −1, for the text, and their nodes."""
        nodes, pending = [-1], state.pending
        for token in query.context.pending:
            nodes.append(pending.add_child(nodes[-1], token))
        if query.tree is not None:
            root = len(nodes) - 1  # its node is the last one before the tree's
            for token, parent in zip(query.tree.tokens, query.tree.parents, strict=True):
                nodes.append(pending.add_child(nodes[root + 1 + parent], token))
        return nodes

    def _run_committed(
        self, queries: Sequence[Query], states: Sequence[_Eagle3State]
    ) -> list[list[torch.Tensor]]:
        """Run the network on the committed text's rows that are not cached.

        Rows inside the text are run again if a query needs their outputs: only the last output is
        kept.

        Returns, for each query, the outputs of its rows before the text's last.
        """
        inner_rows: list[list[torch.Tensor]] = [[] for _ in queries]
        new_spans: list[tuple[int, Span]] = []
        for i, (query, state) in enumerate(zip(queries, states, strict=True)):
            committed = query.context.committed
            context, num_rows = Context(committed), len(committed) - 1
            shared = state.text.overlap(context, len(committed))
            if shared < len(state.text.tokens):
                state.truncate(max(shared - 1, 0))
                del state.text.tokens[shared:]
            state.text.tokens += context.tokens(shared)
            if state.num_rows != num_rows:
                state.truncate(num_rows)
            # The first row to run: the first not cached, or an earlier one whose output is needed.
            needed = max(query.first_row - 1, 0) if query.first_row < num_rows else num_rows
            first = min(state.num_rows, needed)
            if first == state.num_rows == num_rows and state.output is None:
                first = max(num_rows - 1, 0)
            if query.first_row == 0 and num_rows > 0:  # the network has no output before row 0
                inner_rows[i].append(self._zero_output())
            if num_rows == 0:
                state.output = self._zero_output()
            elif first < num_rows:
                self._make_room(state, num_rows)
                new_spans.append((i, Span(state.cache, first, num_rows - first)))
        if not new_spans:
            return inner_rows
        ranges, ids = [], list[int]()
        for i, span in new_spans:
            query, end = queries[i], span.start + span.n
            ranges.append((query.slot, Context(query.context.committed), span.start, end))
            ids += states[i].text.tokens[span.start + 1 : end + 1]
        hidden = self.layer.fuse(torch.cat(self.trunk.hidden_states(ranges, self.layers)))
        spans = [span for _, span in new_spans]
        output = self.layer(hidden, self._embed(ids, spans), spans)
        for (i, span), rows in zip(new_spans, output.split([s.n for s in spans]), strict=True):
            state, query = states[i], queries[i]
            state.truncate(span.start)
            state.num_rows, state.output = span.start + span.n, rows[-1]
            state.pending = Branches(state.num_rows)
            if query.first_row < state.num_rows:
                inner_rows[i].extend(rows[max(0, query.first_row - 1 - span.start) : -1])
        return inner_rows

    def _run_pending(self, states: Sequence[_Eagle3State]) -> None:
        """Run the network on new pending tokens, all of a depth at once; each reads its parent's
        output."""
        while unfinished := [state for state in states if len(state.outputs) < len(state.pending)]:
            spans: list[Span] = []
            for state in unfinished:
                first, count = len(state.outputs), 1
                depths = [node.depth for node in state.pending.nodes[first:]]
                while count < len(depths) and depths[count] == depths[0]:
                    count += 1
                self._make_room(state, state.num_rows + first + count)
                is_chain = depths[0] == first + 1  # all tokens stored before are its ancestors
                branches = None if is_chain and count == 1 else state.pending
                spans.append(Span(state.cache, state.num_rows + first, count, branches))
            rows = [
                (state, node)
                for state, span in zip(unfinished, spans, strict=True)
                for node in state.pending.nodes[span.start - state.num_rows :][: span.n]
            ]
            tokens = [node.token for _, node in rows]
            hidden = torch.stack([state.output_after(node.parent) for state, node in rows])
            output = self.layer(hidden, self._embed(tokens, spans), spans)
            for (state, _), row in zip(rows, output, strict=True):
                state.outputs.append(row)

    def _embed(self, ids: Sequence[int], spans: Sequence[Span]) -> torch.Tensor:
        """Return the target's embeddings of tokens, whose positions are one after their rows'."""
        shifted: list[Span] = []
        for span in spans:
            if span.branches is None:
                shifted.append(Span(None, span.start + 1, span.n))
            else:
                shifted += [Span(None, position + 1, 1) for position in span.positions]
        return self.trunk.embed(ids, shifted)

    def _zero_output(self) -> torch.Tensor:
        return torch.zeros(self.layer.hidden_size, dtype=self.layer.dtype, device=self.device)

    def _state(self, slot: Slot) -> _Eagle3State:
        state = slot.attached.get(id(self))
        if state is None:
            cache = self.layer.model.new_cache(_FIRST_CAPACITY)
            slot.attached[id(self)] = state = _Eagle3State(cache)
        assert isinstance(state, _Eagle3State)
        return state

    def _make_room(self, state: _Eagle3State, end: int) -> None:
        capacity = self.layer.model.capacity(state.cache)
        if end > capacity:
            cache = self.layer.model.new_cache(max(2 * capacity, end))
            self.layer.model.copy(state.cache, cache, capacity)
            state.cache = cache

    def __repr__(self) -> str:
        return f"Eagle3Model({self.name!r}, layers={self.layers}, V={self.vocab_size})"
