"""The slots of a trunk: what is cached of a sequence, segment by segment, copied and rewound.

Invariants, at any time an exception may occur (out of memory, Ctrl-C):
``lengths[0] ≥ lengths[1] ≥ …``, ``lengths[0] ≤ len(slot.tokens)`` (with a token tree, plus its
nodes), and a length is raised only after its segment has finished. Hence an interrupted call costs
recomputation, never correctness.

Keys and values are the target's own in a segment's layers up to its length: the target and its
exits read nothing else. Past it they are whatever form of the model has drafted last, layer by
layer, up to ``drafted``; a form runs what the layers that it attends in lack
(:mod:`hierspec.lm.trunk.self_draft`). Beyond both, memory is uninitialised or stale, and nobody
reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, PositionSwitch, Span, position_switch
from hierspec.lm.base import Query, Slot, validate_query
from hierspec.lm.trees import Branches
from hierspec.utils.reads import pick

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
        drafted: by layer, how many leading tokens have keys and values in ``cache`` for drafts to
            read, exact or drafted ones; less than the segment's length where none were drafted.
        row: its row of the arena (:mod:`hierspec.lm.trunk.arena`), where sequences share one;
            negative: it has memory of its own.
        branches: the nodes of a token tree that are stored behind the text.
    """

    cache: Any
    capacity: int
    lengths: list[int]
    outputs: list[torch.Tensor]
    drafted: list[int]
    row: int = -1
    branches: Branches | None = None

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.lengths = [min(n, length) for n in self.lengths]
        self.drafted = [min(n, length) for n in self.drafted]
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

    @property
    def asked(self) -> Sequence[int]:
        """The indices of the rows asked for."""
        return range(self.first, self.end) if self.rows is None else self.rows

    def span(self, start: int, end: int) -> Span:
        """Return the span of the tokens stored at ``start … end − 1``."""
        branches = self.state.branches
        if branches is not None and end <= branches.base:
            branches = None
        return Span(self.state.cache, start, end - start, branches)


class TrunkSlots:
    """The owner of one backend's slots, whatever model reads them.

    Args:
        exits: after how many layers each segment ends.

    Attributes:
        bounds: the first layer of each segment, and the one after its last.
    """

    def __init__(self, backend: Backend, exits: Sequence[int]) -> None:
        self.backend, self.num_segments = backend, len(exits)
        self.bounds = tuple(pairwise((0, *exits)))
        self.position_switch = position_switch(backend)

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
        # What all layers have of the target's own: a copy has no gaps, and nothing drafted.
        if state is None or not (length := min(length, state.lengths[-1], len(slot.tokens))):
            return new
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
        """Free what a slot's tokens do not need: a row of an arena, or half a cache or more."""
        length = len(slot.tokens)
        self.rewind(slot, length)  # no tree behind the text
        state: SlotState | None = slot.state
        capacity = -(-length // _COMPACT_STEP) * _COMPACT_STEP
        if state is None or (state.row < 0 and 2 * capacity > state.capacity):
            return
        slot.state = self._resized(state, capacity, length)

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
        validate_query(query, self.backend.name, self.backend.max_length)
        if tree is None:
            state = self._prepare_slot(slot, query.context, end)
            return PreparedQuery(state, slot.tokens, query.first_row, end)
        self._choose_positions(slot, end + tree.depth)
        branches = None if slot.state is None else slot.state.branches
        if branches is None or branches.base != end or slot.overlap(query.context, end) < end:
            self._prepare_slot(slot, query.context, end, tree.depth).rewind(end)
            del slot.tokens[end:]
            branches = Branches(end)
        nodes = branches.add(tree)
        state = self.make_room(slot, end + len(branches))
        state.branches = branches
        rows = [*range(end), *(end + node for node in nodes)][query.first_row :]
        tokens = [*slot.tokens, *branches.tokens]
        return PreparedQuery(state, tokens, query.first_row, 1 + max(rows), rows)

    def make_room_for_draft(self, query: Query, count: int) -> None:
        """Make room for ``count`` − 1 tokens behind a query's context, and forget what is there."""
        first, end = len(query.context), len(query.context) + count - 1
        switch = self.position_switch
        assert switch is None or not switch.divides(first, end), "drafts end before a switch"
        self.rewind(query.slot, first)
        self.make_room(query.slot, end)

    def prepare_drafts(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> list[PreparedQuery]:
        """Prepare queries for one row each, behind which so many tokens will be drafted."""
        prepared = [self.prepare(query) for query in queries]
        for query, count in zip(queries, counts, strict=True):
            self.make_room_for_draft(query, count)
        return [
            item._replace(state=query.slot.state)
            for item, query in zip(prepared, queries, strict=True)
        ]

    def divided(self, queries: Sequence[Query]) -> list[Query]:
        """Return queries for the same rows, to be asked one after another, where one cache cannot
        answer a query: positions depend on a text's length, and its rows are of texts before and
        after the switch. Otherwise return none."""
        if self.position_switch is None:
            return []
        parts = [part for query in queries for part in self._divide(query, self.position_switch)]
        return parts if len(parts) > len(queries) else []

    def _divide(self, query: Query, switch: PositionSwitch) -> list[Query]:
        end = len(query.context)
        depth = query.tree.depth if query.tree is not None else 0
        if not switch.divides(query.start, end + depth):
            return [query]
        if switch.length >= end:
            raise HierspecError(
                f"{self.backend.name} encodes positions in another way beyond {switch.length} "
                "tokens: a token tree may not pass that length"
            )
        before = query.context.first(switch.length)
        return [
            dataclasses.replace(query, context=before, tree=None),
            dataclasses.replace(query, start=switch.length + 1),
        ]

    def _choose_positions(self, slot: Slot, text_length: int) -> None:
        """Have the slot's positions encoded as in a text of that length; where they were encoded
        otherwise, forget its text (:class:`hierspec.lm.backend.PositionSwitch`)."""
        if self.position_switch is None:
            return
        if not slot.prompt_length:
            slot.prompt_length = text_length
        cache = self.make_room(slot, 1).cache
        first_long = self.position_switch.first_long(text_length, slot.prompt_length)
        if cache.first_long != first_long:
            self.rewind(slot, 0)
            cache.first_long = first_long

    def _prepare_slot(self, slot: Slot, context: Context, end: int, depth: int = 0) -> SlotState:
        """Rewind a slot to what it shares with the context's first ``end`` tokens, add the rest of
        these, and make room for them. A tree behind the context has depth ``depth``."""
        self._choose_positions(slot, len(context) + depth)
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
            if max(state.drafted) > shared:
                state.drafted = [min(n, shared) for n in state.drafted]
            slot.tokens[shared:] = context.tokens(shared)
        return state

    def _keep_branch(self, slot: Slot, state: SlotState, context: Context, end: int) -> None:
        """Keep the tree's path that the context continues with: move it to directly after the
        text, and drop the other nodes."""
        branches, lengths, drafted = state.branches, state.lengths, state.drafted
        assert branches is not None
        base, num_stored = branches.base, max(lengths[0], *drafted)
        continues = slot.overlap(context, end) == base < end
        path = branches.longest_path(context.tokens(base)[: end - base]) if continues else []
        # Nodes that no segment has seen may lie past the capacity, which grows after they are added
        path = [node for node in path if base + node < num_stored]
        indices = [base + node for node in path]
        state.rewind(base)
        if indices != list(range(base, base + len(path))):
            with torch.inference_mode():
                self.backend.move(state.cache, indices, base)
                for output in state.outputs:
                    output[base : base + len(path)] = pick(output, indices)
        slot.tokens += [branches.nodes[node].token for node in path]
        state.lengths, state.drafted = (
            [min(n, base) + sum(index < n for index in indices) for n in numbers]
            for numbers in (lengths, drafted)
        )

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
        if state is None:
            slot.tokens, slot.num_committed = [], 0
            with torch.inference_mode():
                cache, outputs = backend.new_cache(capacity), self._new_outputs(capacity)
            lengths, drafted = [0] * self.num_segments, [0] * backend.num_layers
            slot.state = SlotState(cache, capacity, lengths, outputs, drafted)
        else:
            slot.state = self._resized(state, capacity, state.capacity)
        return slot.state

    def _resized(self, state: SlotState, capacity: int, length: int) -> SlotState:
        with torch.inference_mode():
            cache, outputs = self.backend.new_cache(capacity), self._new_outputs(capacity)
            self.backend.copy(state.cache, cache, length)
            for old, new in zip(state.outputs, outputs, strict=True):
                new[:length] = old[:length]
        return dataclasses.replace(state, cache=cache, capacity=capacity, outputs=outputs, row=-1)

    def _new_outputs(self, capacity: int) -> list[torch.Tensor]:
        backend, shape = self.backend, (capacity, self.backend.hidden_size)
        return [
            torch.empty(shape, dtype=backend.dtype, device=backend.device)
            for _ in range(self.num_segments)
        ]
