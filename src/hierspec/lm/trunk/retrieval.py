"""The target on a part of its own cache, for long texts. [TriForce, Sun et al. 2024]

Where a text is long, a token's forward spends more time reading keys and values than weights; yet
few of them matter to the next tokens. So the target itself drafts, or checks smaller drafters,
attending to ``budget`` tokens of the text: of every layer and key head, those chunks whose mean key
has the largest product with the query of the text's last token, the text's first chunk, and its
end. They are copied together once and used until the text has grown by ``refresh`` tokens, since
neighbouring tokens attend to the same places. Tokens added meanwhile are stored behind the copy, by
the draft's own forwards.

Keys are rotated by their position in the text before they are stored, so a copy needs no order:
only new tokens need their position. A text no longer than the budget is attended to whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, Retrieving, Span
from hierspec.lm.base import Query, Slot, check_query
from hierspec.lm.trees import Branches

from .trunk import SharesSlots, Trunk


@dataclass(slots=True, eq=False)
class _Moved(Branches):
    """A text without some of its tokens: the one stored at ``base`` has position ``position``."""

    position: int = 0

    def positions(self, start: int, n: int) -> list[int]:
        return [self.position + i - self.base for i in range(start, start + n)]

    def path_to(self, place: int) -> tuple[int, list[int]]:
        return place + 1, []


@dataclass(slots=True, eq=False)
class _RetrievalState:
    """The chosen part of a sequence's cache, and what was added: a guest of its slot in the trunk.

    Attributes:
        text: the tokens of the sequence.
        base: how many leading tokens were chosen from; 0: nothing is copied yet.
        chosen: how many were chosen, stored first; tokens from ``base`` on are stored behind them.
        length: how many leading tokens of the text are covered by what is stored.
    """

    cache: Any
    text: Slot = field(default_factory=Slot)
    base: int = 0
    chosen: int = 0
    length: int = 0

    def rewind(self, length: int) -> None:
        """See :class:`hierspec.lm.base.Guest`."""
        del self.text.held[length:]
        self.text.agreed = min(self.text.agreed, length)
        self.length = min(self.length, length)
        if self.length < self.base:  # the tokens chosen may be of another text
            self.base = self.chosen = self.length = 0

    def forget_committed(self) -> None:
        """See :class:`hierspec.lm.base.Guest`."""
        self.text.agreed = 0

    def fork(self, length: int) -> _RetrievalState:
        """See :class:`hierspec.lm.base.Guest`; the copy chooses anew."""
        return _RetrievalState(None)

    def span(self, start: int, end: int) -> Span:
        """Return the span of the text's tokens ``start … end − 1``."""
        moved = _Moved(self.chosen, position=self.base)
        return Span(self.cache, self.chosen + start - self.base, end - start, moved)


class RetrievalModel(SharesSlots):
    """The language model that runs a trunk's transformer on chosen parts of the trunk's caches.

    Args:
        budget: how many tokens of a text are attended to, beside those written since the choice.
        chunk_size: tokens chosen together.
        refresh: tokens of text after which they are chosen anew.

    Attributes:
        calls: forwards since it was made; ``tokens``: how many tokens they ran.
        choices: how often it chose.

    Raises:
        HierspecError: the transformer does not show its queries, or attends to a window anyway.
    """

    def __init__(self, trunk: Trunk, budget: int, chunk_size: int = 8, refresh: int = 32) -> None:
        self.trunk = trunk
        self.backend: Retrieving = _retrieving(trunk.backend)
        if chunk_size > budget // 2:
            raise HierspecError(
                f"a budget of {budget} tokens holds fewer than two chunks of {chunk_size}: raise "
                "budget, or lower chunk_size"
            )
        self.budget, self.chunk_size, self.refresh = budget, chunk_size, refresh
        self.name = f"{trunk.backend.name}~{budget}"
        self.vocab_size, self.max_length = trunk.backend.vocab_size, trunk.backend.max_length
        self.device = trunk.backend.device
        self.calls = self.tokens = self.choices = 0

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        with torch.inference_mode():
            h = self._hidden(queries)
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return self.backend.head(h)

    def _hidden(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return the last layer's output for all rows asked, [Σ num_rows, d]."""
        states = [self._prepare(query) for query in queries]
        begin: list[int] = []
        for query, state in zip(queries, states, strict=True):
            # Rows asked again are computed again: hidden states are not cached.
            state.length = min(state.length, query.start - 1)
            begin.append(state.length)
            self._make_room(state, state.chosen + len(query.context) - state.base)
        rows: list[list[torch.Tensor]] = [[] for _ in queries]
        ends = [len(query.context) for query in queries]
        while any(state.length < end for state, end in zip(states, ends, strict=True)):
            budget, busy = self.trunk.chunk, list[int]()
            spans: list[Span] = []
            for i, (state, end) in enumerate(zip(states, ends, strict=True)):
                stop = min(end, state.length + budget)
                if stop > state.length:
                    budget -= stop - state.length
                    busy.append(i)
                    spans.append(state.span(state.length, stop))
            ids: list[int] = []
            for i, span in zip(busy, spans, strict=True):
                held = states[i].text.held
                ids += held[states[i].length : states[i].length + span.n]
            h = self.trunk.embed(ids, spans)
            h = self.backend.layers(h, 0, self.backend.num_layers, spans)
            self.calls += 1
            self.tokens += len(ids)
            for i, own in zip(busy, h.split([span.n for span in spans]), strict=True):
                rows[i].append(own)
                states[i].length += len(own)
        asked = [query.start - 1 - first for query, first in zip(queries, begin, strict=True)]
        return torch.cat([torch.cat(own)[i:] for own, i in zip(rows, asked, strict=True)])

    def _prepare(self, query: Query) -> _RetrievalState:
        """Return the sequence's state, up to date with its text, and with a choice made for it."""
        check_query(query, self.trunk.backend.name, self.max_length)
        state = query.slot.guests.get(id(self))
        if not isinstance(state, _RetrievalState):
            query.slot.guests[id(self)] = state = _RetrievalState(None)
        end, context = len(query.context), query.context
        agreed = state.text.overlap(context, end)
        state.rewind(agreed)
        state.text.held += context.tokens(agreed)
        committed = len(context.committed)
        most = min(committed, query.start) - 1
        if most < state.base or committed - state.base > self.refresh or state.cache is None:
            self._choose(query, state, max(most, 0))
        return state

    def _choose(self, query: Query, state: _RetrievalState, base: int) -> None:
        """Copy together the tokens before ``base`` that the token at ``base`` attends to most."""
        state.base = state.chosen = state.length = 0
        if base:
            # The target's last check has mostly cached all of this.
            text = Context(query.context.committed[:base])
            self.trunk.hidden_states(
                [(query.slot, text, base - 1, base)], [self.backend.num_layers]
            )
        size = self.chunk_size
        count = base // size
        ragged = base - count * size  # at the text's end, too few for a chunk: all are kept
        kept = min(count, (self.budget - ragged) // size)
        chosen = kept * size + ragged
        self._make_room(state, chosen + self.refresh + 1)
        if base:
            stored = query.slot.state.cache
            at = torch.arange(base - ragged, base, device=self.device)
            h = self.trunk.embed(state.text.held[base : base + 1], [Span(None, base, 1)])
            within = torch.arange(size, device=self.device)
            moved = Span(state.cache, chosen, 1, _Moved(chosen, position=base))
            for layer in range(self.backend.num_layers):
                keys, values = self.backend.keys_and_values(stored, layer, base)
                if kept < count:
                    means = keys[:, : count * size].unflatten(1, (count, size)).mean(2)
                    asked = self.backend.queries(h, layer, [Span(None, base, 1)])[:, 0]
                    asked = asked.unflatten(0, (len(keys), -1)).sum(1)  # of heads that share keys
                    weight = torch.einsum("hd,hcd->hc", asked, means)
                    weight[:, 0] = torch.inf
                    chunks = weight.topk(kept).indices.sort().values
                else:
                    chunks = torch.arange(count, device=self.device).expand(len(keys), -1)
                tokens = (chunks[:, :, None] * size + within).flatten(1)
                tokens = torch.cat((tokens, at.expand(len(keys), -1)), 1)[:, :, None]
                own_keys, own_values = self.backend.keys_and_values(state.cache, layer, chosen)
                own_keys.copy_(keys.gather(1, tokens.expand(-1, -1, keys.shape[2])))
                own_values.copy_(values.gather(1, tokens.expand(-1, -1, values.shape[2])))
                if kept < count:
                    h = self.backend.layers(h, layer, layer + 1, [moved])
            self.choices += 1
        state.base, state.chosen, state.length = base, chosen, base

    def _make_room(self, state: _RetrievalState, end: int) -> None:
        if state.cache is None:
            state.cache = self.backend.new_cache(max(end, self.budget + 2 * self.refresh))
        elif end > (capacity := self.backend.capacity(state.cache)):
            state.cache = self.backend.grow(state.cache, max(end, 2 * capacity))

    def __repr__(self) -> str:
        return f"RetrievalModel({self.name!r}, V={self.vocab_size})"


def _retrieving(backend: Backend) -> Retrieving:
    if not isinstance(backend, Retrieving) or not backend.trees:
        raise HierspecError(
            f"retrieval needs the lean backend, which {backend.name} does not run on: remove "
            "backend, and deterministic where there is no C compiler, or draft with early_exit"
        )
    if not backend.attends_to_all:
        raise HierspecError(
            f"layers of {backend.name} attend to a sliding window, so there is nothing to choose "
            "for them: draft with quantized or early_exit"
        )
    return backend
