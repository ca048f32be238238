"""The target on a part of its own cache, for long texts [TriForce, Sun et al. 2024].

Where a text is long, a token's forward spends more time reading keys and values than weights; yet
few of them matter to the next tokens. So the target itself drafts, or checks smaller drafters,
attending to ``budget`` tokens of the text: in every layer and key head, the chunks whose mean key
has the largest product with the query of the text's last token, the text's first chunk, and its
end. They are copied side by side once and used until the text has grown by ``refresh`` tokens,
since neighbouring tokens attend to the same tokens. Tokens added meanwhile are stored behind the
copy, by the draft's own forwards.

Keys are rotated by their position in the text before they are stored, so a copy needs no order:
only new tokens need their position. Of a text no longer than the budget, all is attended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, Span
from hierspec.lm.base import Query, Slot, validate_query
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.trees import Branches
from hierspec.lm.trunk.trunk import SlotSharingModel, Trunk


@dataclass(slots=True, eq=False)
class _Shifted(Branches):
    """A text with some tokens left out: the token stored at ``base`` has position ``position``."""

    position: int = 0

    def positions(self, start: int, n: int) -> list[int]:
        return [self.position + i - self.base for i in range(start, start + n)]

    def path_to(self, index: int) -> tuple[int, list[int]]:
        return index + 1, []


@dataclass(slots=True, eq=False)
class _RetrievalState:
    """The chosen part of a sequence's cache and the tokens added since, attached to its slot.

    Attributes:
        text: the tokens of the sequence.
        cache: ``None``: nothing is chosen yet.
        base: how many leading tokens were chosen from.
        num_chosen: how many were chosen; they are stored first, tokens from ``base`` on after them.
        length: how many leading tokens of the text are covered by the cache.
    """

    cache: Any
    text: Slot = field(default_factory=Slot)
    base: int = 0
    num_chosen: int = 0
    length: int = 0

    def rewind(self, length: int) -> None:
        """See :class:`hierspec.lm.base.AttachedState`."""
        del self.text.tokens[length:]
        self.text.num_committed = min(self.text.num_committed, length)
        self.length = min(self.length, length)
        if self.length < self.base:  # the tokens chosen may be of another text
            self._forget_choice()

    def forget_committed(self) -> None:
        """See :class:`hierspec.lm.base.AttachedState`."""
        self.text.num_committed = 0
        self._forget_choice()  # the next text's drafts must not depend on when this one chose

    def fork(self, length: int) -> _RetrievalState:
        """See :class:`hierspec.lm.base.AttachedState`; the copy chooses anew."""
        return _RetrievalState(None)

    def _forget_choice(self) -> None:
        self.cache, self.base, self.num_chosen, self.length = None, 0, 0, 0

    def span(self, start: int, end: int) -> Span:
        """Return the span of the text's tokens ``start … end − 1``."""
        shifted = _Shifted(self.num_chosen, position=self.base)
        return Span(self.cache, self.num_chosen + start - self.base, end - start, shifted)


class RetrievalModel(SlotSharingModel):
    """The language model that runs a trunk's transformer on chosen parts of the trunk's caches.

    Args:
        budget: how many tokens of a text are attended to, besides those written since the choice.
        chunk_size: tokens chosen together.
        refresh: tokens of text after which they are chosen anew.

    Attributes:
        calls: forwards since it was made; ``tokens``: how many tokens they ran.
        choices: how often it chose.

    Raises:
        HierspecError: the backend does not return its queries, or attends to a window anyway.
    """

    rows_differ = "runs layers that the compiled kernels do not run"

    def __init__(self, trunk: Trunk, budget: int, chunk_size: int = 8, refresh: int = 32) -> None:
        self.trunk = trunk
        self.backend = _validate_retrieval(trunk.backend)
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
        """Return the last layer's output for all rows of queries, [Σ num_rows, d]."""
        states = [self._prepare(query) for query in queries]
        skipped: list[int] = []  # rows computed before the first one of each query
        for query, state in zip(queries, states, strict=True):
            # Rows asked for again are computed again: hidden states are not cached.
            state.length = min(state.length, query.first_row)
            skipped.append(query.first_row - state.length)
            self._make_room(state, state.num_chosen + len(query.context) - state.base)
        rows: list[list[torch.Tensor]] = [[] for _ in queries]
        ends = [len(query.context) for query in queries]
        while any(state.length < end for state, end in zip(states, ends, strict=True)):
            budget, pending = self.trunk.chunk, list[int]()
            ids, spans = list[int](), list[Span]()
            for i, (state, end) in enumerate(zip(states, ends, strict=True)):
                stop = min(end, state.length + budget)
                if stop > state.length:
                    budget -= stop - state.length
                    pending.append(i)
                    ids += state.text.tokens[state.length : stop]
                    spans.append(state.span(state.length, stop))
            h = self.trunk.embed(ids, spans)
            h = self.backend.layers(h, 0, self.backend.num_layers, spans)
            self.calls += 1
            self.tokens += len(ids)
            for i, output in zip(pending, h.split([span.n for span in spans]), strict=True):
                rows[i].append(output)
                states[i].length += len(output)
        return torch.cat([torch.cat(parts)[n:] for parts, n in zip(rows, skipped, strict=True)])

    def _prepare(self, query: Query) -> _RetrievalState:
        """Return the sequence's state, brought up to date with its text, tokens chosen if due."""
        validate_query(query, self.trunk.backend.name, self.max_length)
        state = query.slot.attached.get(id(self))
        if not isinstance(state, _RetrievalState):
            query.slot.attached[id(self)] = state = _RetrievalState(None)
        end, context = len(query.context), query.context
        shared = state.text.overlap(context, end)
        state.rewind(shared)
        state.text.tokens += context.tokens(shared)
        committed = len(context.committed)
        base = min(committed - 1, query.first_row)
        if base < state.base or committed - state.base > self.refresh or state.cache is None:
            self._choose(query, state, max(base, 0))
        return state

    def _choose(self, query: Query, state: _RetrievalState, base: int) -> None:
        """Copy the tokens before ``base`` that the token at ``base`` attends to most."""
        state.base = state.num_chosen = state.length = 0
        if base:
            # The target's last check has usually cached all of this.
            text = Context(query.context.committed[:base])
            self.trunk.hidden_states(
                [(query.slot, text, base - 1, base)], [self.backend.num_layers]
            )
        size = self.chunk_size
        num_chunks = base // size
        remainder = base - num_chunks * size  # at the text's end, too few for a chunk: all are kept
        num_kept = min(num_chunks, (self.budget - remainder) // size)
        num_chosen = num_kept * size + remainder
        self._make_room(state, num_chosen + self.refresh + 1)
        if base:
            end = torch.arange(base - remainder, base, device=self.device)
            h = self.trunk.embed(state.text.tokens[base : base + 1], [Span(None, base, 1)])
            within_chunk = torch.arange(size, device=self.device)
            span = Span(state.cache, num_chosen, 1, _Shifted(num_chosen, position=base))
            for layer in range(self.backend.num_layers):
                keys, values = self.backend.keys_and_values(query.slot.state.cache, layer, base)
                if num_kept < num_chunks:
                    q = self.backend.queries(h, layer, [Span(None, base, 1)])[:, 0]
                    q = q.unflatten(0, (len(keys), -1)).sum(1)  # of heads that share keys
                    keys_of_chunks = keys[:, : num_chunks * size].unflatten(1, (num_chunks, size))
                    means = keys_of_chunks.mean(2, dtype=q.dtype)  # caches may be in fewer bits
                    weight = torch.einsum("hd,hcd->hc", q, means)
                    weight[:, 0] = torch.inf
                    chunks = weight.topk(num_kept).indices.sort().values
                else:
                    chunks = torch.arange(num_chunks, device=self.device).expand(len(keys), -1)
                indices = (chunks[:, :, None] * size + within_chunk).flatten(1)
                indices = torch.cat((indices, end.expand(len(keys), -1)), 1)[:, :, None]
                k, v = self.backend.keys_and_values(state.cache, layer, num_chosen)
                k.copy_(keys.gather(1, indices.expand(-1, -1, keys.shape[2])))
                v.copy_(values.gather(1, indices.expand(-1, -1, values.shape[2])))
                if num_kept < num_chunks:
                    h = self.backend.layers(h, layer, layer + 1, [span])
            self.choices += 1
        state.base, state.num_chosen, state.length = base, num_chosen, base

    def _make_room(self, state: _RetrievalState, end: int) -> None:
        if state.cache is None:
            state.cache = self.backend.new_cache(max(end, self.budget + 2 * self.refresh))
        elif end > (capacity := self.backend.capacity(state.cache)):
            cache = self.backend.new_cache(max(end, 2 * capacity))
            self.backend.copy(state.cache, cache, capacity)
            state.cache = cache

    def __repr__(self) -> str:
        return f"RetrievalModel({self.name!r}, V={self.vocab_size})"


def _validate_retrieval(backend: Backend) -> LeanBackend:
    if not isinstance(backend, LeanBackend):
        raise HierspecError(
            f"retrieval needs the lean backend, which {backend.name} does not run on: remove "
            "backend, or draft with early_exit"
        )
    if not backend.attends_to_all:
        raise HierspecError(
            f"layers of {backend.name} attend to a sliding window, so there is nothing to choose "
            "for them: draft with quantized or early_exit"
        )
    return backend
