"""A transformer cut into segments at its exits, so that each (token, segment) is computed once.

A sequence has one slot, whichever exits look at it. In it every segment keeps its own absolute
length (how many leading tokens have been through it) and the hidden states at its upper edge, so
an exit runs only the segments below it and only for tokens they have not seen, and rows asked
again cost one head. A rewind lowers lengths; no cache is cropped. A plain model is a trunk with
one exit.

Invariants, at any time an exception may strike (out of memory, Ctrl-C):
``lengths[0] ≥ lengths[1] ≥ …``, ``lengths[0] ≤ len(slot.held)`` (with a token tree, plus its
nodes), and a length is raised only
after its segment has finished. Hence an interrupted call costs recomputation, never correctness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, Span
from hierspec.lm.base import Following, Query, Slot, check_query
from hierspec.lm.trees import Branches
from hierspec.utils.graphs import Graphs

from .slot_state import SlotState, Work


class Counters:
    """Work done since the trunk was made, per segment: passes over the weights, and tokens."""

    def __init__(self, segments: int) -> None:
        self.calls, self.tokens = [0] * segments, [0] * segments
        self.head_rows = 0


# Memory that nothing was written to is free on a CPU; to copy a cache into a larger one takes as
# long as several tokens.
_FIRST_CAPACITY, _FIRST_CAPACITY_ON_CPU = 256, 1024
_ROOM = 16  # a kept cache's is a multiple of it: sizes that come again leave no holes in the heap
ScoreHead = Callable[[torch.Tensor], torch.Tensor]  # hidden states [N, d] → scores [N, V]


class Trunk:
    """Segments of one backend, shared by the language models of its exits.

    Args:
        backend: the transformer.
        exits: layer counts at which scores can be asked; the last layer is always among them.
        chunk: at most this many tokens go through the layers at once, so that a long prompt needs
            little memory beyond its cache.
    """

    def __init__(self, backend: Backend, exits: Sequence[int] = (), *, chunk: int = 512) -> None:
        last = backend.num_layers
        self.exits = tuple(sorted({*exits, last}))
        if self.exits[0] < 1 or self.exits[-1] > last:
            raise HierspecError(
                f"exit layers must lie between 1 and {last} for {backend.name}, "
                f"which has {last} layers; got {sorted(exits)}"
            )
        if chunk < 1:
            raise HierspecError(f"chunk must be at least 1, got {chunk}")
        self.backend = backend
        self.graphs: Graphs | None = None
        self.chunk = chunk
        self.bounds = tuple(zip((0, *self.exits[:-1]), self.exits, strict=True))
        self.counters = Counters(len(self.bounds))

    @property
    def bytes_per_token(self) -> int:
        """What a token takes: keys and values of all layers, and its hidden states at the exits."""
        states = len(self.exits) * self.backend.hidden_size * self.backend.dtype.itemsize
        cache = self.backend.new_cache(1)
        if isinstance(cache, torch.Tensor):
            return cache.nbytes + states
        # Shapes that only the layers know: keys and values as wide as the hidden states, at most.
        width = 2 * self.backend.num_layers * self.backend.hidden_size
        return width * self.backend.dtype.itemsize + states

    def view(self, exit_layer: int | None = None, head: ScoreHead | None = None) -> ExitModel:
        """The language model that ends after ``exit_layer`` layers (default: all of them).

        ``head`` stands in for the model's final norm and head (:mod:`hierspec.lm.exit_heads`).
        Views of one exit with different heads share its hidden states.
        """
        layer = self.backend.num_layers if exit_layer is None else exit_layer
        if layer not in self.exits:
            raise HierspecError(
                f"no exit after layer {layer}; this trunk has exits after {self.exits}: "
                f"name it when the trunk is made, Trunk(backend, exits=[{layer}])"
            )
        return self.exit_model(self.exits.index(layer), head)

    def exit_model(self, index: int, head: ScoreHead | None) -> ExitModel:
        return ExitModel(self, index, head)

    def open(self) -> Slot:
        """A fresh slot, for all views together. Memory is taken at the first tokens."""
        return Slot()

    def close(self, slot: Slot) -> None:
        """Free a slot's cache; the slot may be used again, as an empty one."""
        slot.state = None
        slot.held, slot.agreed = [], 0
        slot.guests.clear()

    def fork(self, slot: Slot, length: int) -> Slot:
        """A slot of its own that has what ``slot`` has cached of its first ``length`` tokens."""
        new, state = self.open(), slot.state
        if state is None or not min(length, state.lengths[0]):
            return new
        length = min(length, state.lengths[0], len(slot.held))
        with torch.inference_mode():
            own = self.make_room(new, length)
            self.backend.copy(state.cache, own.cache, length)
            for old, edge in zip(state.edges, own.edges, strict=True):
                edge[:length] = old[:length]
        # Held before lengths: see the invariants above.
        new.held = slot.held[:length]
        own.lengths = [min(n, length) for n in state.lengths]
        new.guests = {key: guest.fork(length) for key, guest in slot.guests.items()}
        return new

    def compact(self, slot: Slot) -> None:
        """Give back the room in a slot's cache that what it holds does not need, if that is most of
        it; a token that is added takes room again."""
        length = len(slot.held)
        self.rewind(slot, length)  # no tree behind the text
        state: SlotState | None = slot.state
        capacity = -(-length // _ROOM) * _ROOM
        if state is None or 2 * capacity > state.capacity:
            return
        with torch.inference_mode():
            cache = self.backend.new_cache(capacity)
            self.backend.copy(state.cache, cache, length)
            edges = [edge.new_empty((capacity, edge.shape[1])) for edge in state.edges]
            for old, new in zip(state.edges, edges, strict=True):
                new[:length] = old[:length]
        slot.state = dataclasses.replace(state, cache=cache, capacity=capacity, edges=edges)

    def rewind(self, slot: Slot, length: int) -> None:
        """Forget all tokens past the first ``length``, and that any of those were committed."""
        if slot.state is not None:
            slot.state.rewind(min(length, len(slot.held)))
        del slot.held[length:]
        slot.agreed = min(slot.agreed, length)
        for guest in slot.guests.values():
            guest.rewind(length)

    def score(
        self, queries: Sequence[Query], index: int, head: ScoreHead | None = None
    ) -> torch.Tensor:
        """Scores at exit ``self.exits[index]`` for all rows asked: [Σ num_rows, V]."""
        with torch.inference_mode():
            work = [self.prepare(query) for query in queries]
            self._complete(work, index)
            rows = [w.edge(index) for w in work]
            h = rows[0] if len(rows) == 1 else torch.cat(rows)
            self.counters.head_rows += len(h)
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return (head or self.backend.head)(h)

    @torch.inference_mode()
    def states(
        self, wanted: Sequence[tuple[Slot, Context, int, int]], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """Hidden states after ``layers``, of tokens [first, end) of (slot, context, first, end).

        A check that has been leaves them behind; what none has seen yet is computed here, once for
        all that come later. Returns [end - first, len(layers) · d] for each.
        """
        indices = [self.exits.index(layer) for layer in layers]
        work = [
            Work(self._room(slot, context, end), slot.held, first, end)
            for slot, context, first, end in wanted
        ]
        self._complete(work, max(indices))
        return [torch.cat([w.state.edges[i][w.first : w.end] for i in indices], 1) for w in work]

    @torch.inference_mode()
    def follow(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        index: int,
        head: ScoreHead | None = None,
    ) -> tuple[torch.Tensor, Following]:
        """See :meth:`hierspec.lm.base.FollowingModel.follow`, at exit ``self.exits[index]``.

        Every step knows beforehand where it will write, so nothing of it is prepared anew: no
        context is compared, no cache looked up.
        """
        scores = self.score(queries, index, head)
        slots = [query.slot for query in queries]
        for query, count in zip(queries, counts, strict=True):
            self.rewind(query.slot, len(query.context))
            self.make_room(query.slot, len(query.context) + count - 1)

        @torch.inference_mode()
        def after(going: Sequence[int], last: Sequence[int]) -> torch.Tensor:
            # Held before it is computed: the reverse would not survive an interruption.
            for i, token in zip(going, last, strict=True):
                slots[i].held.append(token)
            states = [slots[i].state for i in going]
            spans = [Span(state.cache, state.lengths[0], 1) for state in states]
            h = self._embed(last, spans)
            for segment in range(index + 1):
                h = self._pass_through(h, segment, states, spans)
            self.counters.head_rows += len(h)
            return (head or self.backend.head)(h)

        return scores, after

    def prepare(self, query: Query) -> Work:
        """Check a query and make its slot ready for it: forget what its context contradicts, note
        the tokens to come, make room for them."""
        end, tree, slot = len(query.context), query.tree, query.slot
        check_query(query, self.backend.name, self.backend.max_length)
        if tree is None:
            return Work(self._room(slot, query.context, end), slot.held, query.start - 1, end)
        branches = None if slot.state is None else slot.state.branches
        if branches is None or branches.base != end or slot.overlap(query.context, end) < end:
            self._room(slot, query.context, end).rewind(end)
            del slot.held[end:]
            branches = Branches(end)
        at = branches.add(tree)
        state = self.make_room(slot, end + len(branches))
        state.branches = branches
        rows = [*range(end), *(end + node for node in at)][query.start - 1 :]
        held = [*slot.held, *branches.tokens]
        return Work(state, held, query.start - 1, 1 + max(rows), rows)

    def _room(self, slot: Slot, context: Context, end: int) -> SlotState:
        """Forget what the context's first ``end`` tokens contradict, note them, make room."""
        state = self.make_room(slot, end)
        if state.branches is not None:
            self._settle(slot, state, context, end)
        agreed = slot.overlap(context, end)
        if agreed < end:
            # Lengths first: held tokens that no segment has seen do no harm, the reverse would.
            lengths = state.lengths
            for segment, length in enumerate(lengths):
                if length > agreed:
                    lengths[segment] = agreed
            state.drafted = min(state.drafted, agreed)
            slot.held[agreed:] = context.tokens(agreed)
        return state

    def _settle(self, slot: Slot, state: SlotState, context: Context, end: int) -> None:
        """Of what is stored behind the text, keep the path that the context goes on with."""
        branches, lengths = state.branches, state.lengths
        assert branches is not None
        base, drafted = branches.base, state.drafted
        on = slot.overlap(context, end) == base < end
        path = branches.path(context.tokens(base)[: end - base]) if on else []
        # What no segment has seen may have no place yet: room is made after nodes are noted.
        path = [node for node in path if base + node < max(lengths[0], drafted)]
        places = [base + node for node in path]
        state.rewind(base)
        if places != list(range(base, base + len(path))):
            with torch.inference_mode():
                self.backend.move(state.cache, places, base)
                for edge in state.edges:
                    edge[base : base + len(path)] = edge[places]
        slot.held += [branches.nodes[node].token for node in path]
        state.lengths = [min(n, base) + sum(place < n for place in places) for n in lengths]
        state.drafted = min(drafted, base) + sum(place < drafted for place in places)

    def _complete(self, work: list[Work], index: int) -> None:
        """Take every query's tokens through the segments up to ``index``."""
        while goals := self._goals(work, index):
            for segment in range(index + 1):
                self._advance(work, goals, segment)

    def make_room(self, slot: Slot, end: int) -> SlotState:
        """The slot's state, with room for ``end`` tokens. Doubling keeps the copies linear."""
        state, backend = slot.state, self.backend
        if state is not None and end <= state.capacity:
            return state
        on_cpu = backend.device.type == "cpu"
        first = _FIRST_CAPACITY_ON_CPU if on_cpu else _FIRST_CAPACITY
        capacity = max(first, 1 << (end - 1).bit_length())
        capacity = min(capacity, max(backend.max_length, end))
        shape = (capacity, backend.hidden_size)
        edges = [torch.empty(shape, dtype=backend.dtype, device=backend.device) for _ in self.exits]
        if state is None:
            slot.held, slot.agreed = [], 0
            state = SlotState(backend.new_cache(capacity), capacity, [0] * len(self.exits), edges)
        else:
            cache = backend.grow(state.cache, capacity)
            for old, new in zip(state.edges, edges, strict=True):
                new[: state.capacity] = old
            state = dataclasses.replace(state, cache=cache, capacity=capacity, edges=edges)
        slot.state = state
        return state

    def _goals(self, work: list[Work], index: int) -> list[int]:
        """How far each query gets in the next pass of at most ``chunk`` tokens; [] when done."""
        budget = self.chunk
        goals, missing = [], False
        for w in work:
            # The topmost segment is never ahead of those below.
            length = w.state.lengths[index]
            step = min(max(w.end - length, 0), budget)
            budget -= step
            goals.append(length + step)
            missing = missing or step > 0
        return goals if missing else []

    def _advance(self, work: list[Work], goals: list[int], segment: int) -> None:
        """Take every query's tokens up to its goal through one segment."""
        busy = [
            (w, w.span(w.state.lengths[segment], goal))
            for w, goal in zip(work, goals, strict=True)
            if goal > w.state.lengths[segment]
        ]
        if not busy:
            return
        spans = [span for _, span in busy]
        if segment == 0:
            ids = [token for w, s in busy for token in w.held[s.start : s.start + s.n]]
            h = self._embed(ids, spans)
        else:
            parts = [w.state.edges[segment - 1][s.start : s.start + s.n] for w, s in busy]
            h = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._pass_through(h, segment, [w.state for w, _ in busy], spans)

    def _embed(self, ids: Sequence[int], spans: Sequence[Span]) -> torch.Tensor:
        """Token ids at the positions of ``spans`` → input of the first segment, [N, d]."""
        known = torch.tensor(self.known(ids), device=self.backend.device)
        return self.backend.embed(known, spans)

    def known(self, ids: Sequence[int]) -> list[int]:
        """The ids as the backend can embed them.

        A draft model whose embedding is padded less has no row for the last ids. Any row will do:
        it can only cost acceptance, and the target's own ids always have theirs.
        """
        size = self.backend.vocab_size
        return [i if i < size else 0 for i in ids]

    def _pass_through(
        self, h: torch.Tensor, segment: int, states: Sequence[SlotState], spans: Sequence[Span]
    ) -> torch.Tensor:
        """Run a segment on h [N, d] of ``spans`` → [N, d], noted in their states."""
        h = self.backend.layers(h, *self.bounds[segment], spans)
        row = 0
        for state, (_, start, n, _) in zip(states, spans, strict=True):
            state.edges[segment][start : start + n] = h[row : row + n]
            row += n
        for state, (_, start, n, _) in zip(states, spans, strict=True):
            state.lengths[segment] = start + n
        self.counters.calls[segment] += 1
        self.counters.tokens[segment] += row
        return h


class ExitModel:
    """The language model made of a trunk's layers up to one exit, final norm and head.

    Args:
        head: in place of the model's own final norm and head.

    Attributes:
        cache_owner: the trunk. Views with the same owner share slots: open one per sequence.
        exit_layer: how many layers it runs.
        partial: whether its head knows a part of the vocabulary only, and says −∞ for the rest.
    """

    def __init__(self, trunk: Trunk, index: int, head: ScoreHead | None = None) -> None:
        backend = trunk.backend
        self.trunk = trunk
        self.index = index
        self.head = head
        self.partial = getattr(head, "part", None) is not None
        self.exit_layer = trunk.exits[index]
        whole = self.exit_layer == backend.num_layers
        self.name = backend.name if whole else f"{backend.name}@{self.exit_layer}"
        self.vocab_size = backend.vocab_size
        self.max_length = backend.max_length
        self.device = backend.device

    @property
    def cache_owner(self) -> Trunk:
        return self.trunk

    @property
    def trees(self) -> bool:
        """Whether it scores a token tree in one call."""
        return self.trunk.backend.trees

    @property
    def graphs(self) -> Graphs | None:
        """Where decisions about its rows may be recorded, on a device that records."""
        return self.trunk.graphs

    def open(self) -> Slot:
        """A fresh slot; any view of the same trunk may use it."""
        return self.trunk.open()

    def close(self, slot: Slot) -> None:
        self.trunk.close(slot)

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        return self.trunk.score(queries, self.index, self.head)

    def follow(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, Following]:
        """See :meth:`hierspec.lm.base.FollowingModel.follow`."""
        return self.trunk.follow(queries, counts, self.index, self.head)

    def __repr__(self) -> str:
        return f"ExitModel({self.name!r}, exit_layer={self.exit_layer}, V={self.vocab_size})"
