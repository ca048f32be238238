"""The slots of a trunk: what is cached of a sequence, segment by segment, copied and rewound.

Invariants, at any time an exception may occur (out of memory, Ctrl-C):
``lengths[0] ≥ lengths[1] ≥ …``, ``lengths[0] ≤ len(slot.tokens)`` (with a token tree, plus its
nodes), and a length is raised only after its segment has finished. Hence an interrupted call costs
recomputation, never correctness.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hierspec.core.context import Context
from hierspec.lm.backend import Backend, Span
from hierspec.lm.base import Query, Slot, check_query
from hierspec.lm.trees import Branches

# On a CPU memory costs nothing until it is written to; copying a cache into a larger one takes as
# long as several tokens.
_FIRST_CAPACITY, _FIRST_CAPACITY_ON_CPU = 256, 1024
_COMPACT_STEP = 16  # a compacted cache's capacity is a multiple: equal sizes leave no heap holes


@dataclass(slots=True, eq=False, weakref_slot=True)
class SlotState:
    """What a slot has cached, by segment.

    Attributes:
        cache: the backend's, for ``capacity`` tokens.
        lengths: how many leading tokens have been through each segment, including nodes of
            ``branches`` that are stored behind the text.
        outputs: of each segment by position, [capacity, d]: what an exit above it reads.
        row: its row of the arena (:mod:`hierspec.lm.trunk.arena`), where sequences share one.
        branches: the nodes of a token tree that are stored behind the text.
        num_cached: how many leading tokens have keys and values in ``cache``: the target's or, past
            ``lengths[-1]``, those of a draft (:mod:`hierspec.lm.trunk.self_draft`).
    """

    cache: Any
    capacity: int
    lengths: list[int]
    outputs: list[torch.Tensor]
    row: int = 0
    num_cached: int = 0
    branches: Branches | None = None

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.lengths = [min(n, length) for n in self.lengths]
        self.num_cached = min(self.num_cached, length)
        self.branches = None


class PreparedQuery(NamedTuple):
    """A query whose slot is ready.

    Attributes:
        tokens: those of the context, then those of all nodes stored behind it.
        first: index of the first row asked for.
        end: how many of ``tokens`` must have been run.
        rows: with a tree, the indices of the rows asked for, which may have gaps; ``None``: all
            from ``first`` to ``end``.
    """

    state: SlotState
    tokens: list[int]
    first: int
    end: int
    rows: list[int] | None = None

    def select_rows(self, h: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Return the query's rows of hidden states ``h``, which begin with index ``offset``."""
        if self.rows is None:
            return h[self.first - offset : self.end - offset]
        return h[[row - offset for row in self.rows]]

    def span(self, start: int, end: int) -> Span:
        """Return the span of the tokens stored at ``start … end − 1``."""
        branches = self.state.branches
        if branches is not None and end <= branches.base:
            branches = None
        return Span(self.state.cache, start, end - start, branches)


class TrunkSlots:
    """The owner of one backend's slots, whatever model reads them.

    Args:
        num_segments: into how many parts the backend's layers are cut.
    """

    def __init__(self, backend: Backend, num_segments: int) -> None:
        self.backend, self.num_segments = backend, num_segments

    def open(self) -> Slot:
        """Return an empty slot, for all models of this trunk; its first tokens allocate memory."""
        return Slot()

    def close(self, slot: Slot) -> None:
        """Free a slot's cache; the slot may be used again, empty."""
        slot.state = None
        slot.tokens, slot.num_committed = [], 0
        slot.attached.clear()

    def fork(self, slot: Slot, length: int) -> Slot:
        """Return a new slot with a copy of what ``slot`` has cached of ``length`` tokens."""
        new, state = self.open(), slot.state
        if state is None or not min(length, state.lengths[0]):
            return new
        length = min(length, state.lengths[0], len(slot.tokens))
        with torch.inference_mode():
            new_state = self.make_room(new, length)
            self.backend.copy(state.cache, new_state.cache, length)
            for old, output in zip(state.outputs, new_state.outputs, strict=True):
                output[:length] = old[:length]
        # Tokens before lengths: see the invariants above.
        new.tokens = slot.tokens[:length]
        new_state.lengths = [min(n, length) for n in state.lengths]
        new.attached = {key: attached.fork(length) for key, attached in slot.attached.items()}
        return new

    def compact(self, slot: Slot) -> None:
        """Free the part of a slot's cache that its tokens do not need, if that is half or more."""
        length = len(slot.tokens)
        self.rewind(slot, length)  # no tree behind the text
        state: SlotState | None = slot.state
        capacity = -(-length // _COMPACT_STEP) * _COMPACT_STEP
        if state is None or 2 * capacity > state.capacity:
            return
        with torch.inference_mode():
            cache = self.backend.new_cache(capacity)
            self.backend.copy(state.cache, cache, length)
            outputs = [old.new_empty((capacity, old.shape[1])) for old in state.outputs]
            for old, new in zip(state.outputs, outputs, strict=True):
                new[:length] = old[:length]
        slot.state = dataclasses.replace(state, cache=cache, capacity=capacity, outputs=outputs)

    def rewind(self, slot: Slot, length: int) -> None:
        """Forget all tokens past the first ``length``, committed ones included."""
        if slot.state is not None:
            slot.state.rewind(min(length, len(slot.tokens)))
        del slot.tokens[length:]
        slot.num_committed = min(slot.num_committed, length)
        for attached in slot.attached.values():
            attached.rewind(length)

    def prepare(self, query: Query) -> PreparedQuery:
        """Check a query and prepare its slot: rewind it to what it shares with the context, add the
        further tokens of the context and the tree, and make room."""
        end, tree, slot = len(query.context), query.tree, query.slot
        check_query(query, self.backend.name, self.backend.max_length)
        if tree is None:
            state = self._prepare_slot(slot, query.context, end)
            return PreparedQuery(state, slot.tokens, query.first_row, end)
        branches = None if slot.state is None else slot.state.branches
        if branches is None or branches.base != end or slot.overlap(query.context, end) < end:
            self._prepare_slot(slot, query.context, end).rewind(end)
            del slot.tokens[end:]
            branches = Branches(end)
        nodes = branches.add(tree)
        state = self.make_room(slot, end + len(branches))
        state.branches = branches
        rows = [*range(end), *(end + node for node in nodes)][query.first_row :]
        tokens = [*slot.tokens, *branches.tokens]
        return PreparedQuery(state, tokens, query.first_row, 1 + max(rows), rows)

    def _prepare_slot(self, slot: Slot, context: Context, end: int) -> SlotState:
        """Rewind a slot to what it shares with the context's first ``end`` tokens, add the rest of
        these, and make room for them."""
        state = self.make_room(slot, end)
        if state.branches is not None:
            self._keep_branch(slot, state, context, end)
        shared = slot.overlap(context, end)
        if shared < end:
            # Lengths first: tokens that no segment has seen do no harm, the reverse would.
            lengths = state.lengths
            for segment, length in enumerate(lengths):
                if length > shared:
                    lengths[segment] = shared
            state.num_cached = min(state.num_cached, shared)
            slot.tokens[shared:] = context.tokens(shared)
        return state

    def _keep_branch(self, slot: Slot, state: SlotState, context: Context, end: int) -> None:
        """Keep the tree's path that the context continues with: move it to directly after the
        text, and drop the other nodes."""
        branches, lengths = state.branches, state.lengths
        assert branches is not None
        base, num_cached = branches.base, state.num_cached
        continues = slot.overlap(context, end) == base < end
        path = branches.longest_path(context.tokens(base)[: end - base]) if continues else []
        # Nodes that no segment has seen may lie past the capacity, which grows after they are added
        path = [node for node in path if base + node < max(lengths[0], num_cached)]
        indices = [base + node for node in path]
        state.rewind(base)
        if indices != list(range(base, base + len(path))):
            with torch.inference_mode():
                self.backend.move(state.cache, indices, base)
                for output in state.outputs:
                    output[base : base + len(path)] = output[indices]
        slot.tokens += [branches.nodes[node].token for node in path]
        state.lengths = [min(n, base) + sum(index < n for index in indices) for n in lengths]
        state.num_cached = min(num_cached, base) + sum(index < num_cached for index in indices)

    def make_room(self, slot: Slot, end: int) -> SlotState:
        """Return the slot's state, with room for ``end`` tokens.

        Capacities double, so that all copies together take time linear in the length.
        """
        state, backend = slot.state, self.backend
        if state is not None and end <= state.capacity:
            return state
        on_cpu = backend.device.type == "cpu"
        first = _FIRST_CAPACITY_ON_CPU if on_cpu else _FIRST_CAPACITY
        capacity = max(first, 1 << (end - 1).bit_length())
        capacity = min(capacity, max(backend.max_length, end))
        shape = (capacity, backend.hidden_size)
        outputs = [
            torch.empty(shape, dtype=backend.dtype, device=backend.device)
            for _ in range(self.num_segments)
        ]
        if state is None:
            slot.tokens, slot.num_committed = [], 0
            cache, lengths = backend.new_cache(capacity), [0] * self.num_segments
            state = SlotState(cache, capacity, lengths, outputs)
        else:
            cache = backend.grow(state.cache, capacity)
            for old, new in zip(state.outputs, outputs, strict=True):
                new[: state.capacity] = old
            state = dataclasses.replace(state, cache=cache, capacity=capacity, outputs=outputs)
        slot.state = state
        return state
