"""A transformer cut into segments at its exits, so that each (token, segment) is computed once.

A sequence has one slot for all exits. In it every segment keeps its own absolute length (how many
leading tokens have been through it) and its outputs, so an exit runs only the segments below it,
and only for tokens they have not seen; rows asked for again cost one head. A rewind lowers lengths;
no cache is cropped. A plain model is a trunk with one exit.

A segment's length is raised only after the segment has finished: see the invariants in ``slots``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import Uniforms
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, DraftingBackend, HiddenStates, ScoredStates, Span
from hierspec.lm.base import DeviceDrafts, NextScores, Query, Slot
from hierspec.lm.exit_heads import ExitHead
from hierspec.sampling.sampler import Sampler
from hierspec.utils.graphs import Graphs
from hierspec.utils.reads import sent

from .slots import PreparedQuery, SlotState, TrunkSlots


class TrunkCounters:
    """Work done since the trunk was made: passes over the weights and tokens by segment, and rows
    of heads."""

    def __init__(self, segments: int) -> None:
        self.calls, self.tokens = [0] * segments, [0] * segments
        self.head_rows = 0


_NONE = torch.empty(0)
ScoreHead = Callable[[torch.Tensor], torch.Tensor]  # hidden states [N, d] → scores [N, V]


class Trunk(TrunkSlots):
    """Segments of one backend, shared by the language models of its exits.

    Args:
        exits: after how many layers scores can be asked for; the last layer is always an exit.
        chunk: at most this many tokens go through the layers at once, so that a long prompt needs
            little memory beyond its cache.

    Attributes:
        graphs: CUDA graphs of its calls; ``None`` on other devices.
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
        super().__init__(backend, self.exits)
        self.graphs: Graphs | None = None
        self.chunk = chunk
        self.counters = TrunkCounters(len(self.bounds))

    @property
    def bytes_per_token(self) -> int:
        """Bytes cached of a token: keys and values in all layers, and hidden states at exits."""
        states = len(self.exits) * self.backend.hidden_size * self.backend.dtype.itemsize
        cache = self.backend.new_cache(1)
        if isinstance(cache, torch.Tensor):
            return cache.nbytes + states
        # Only the layers know these shapes: keys and values are at most as wide as hidden states.
        width = 2 * self.backend.num_layers * self.backend.hidden_size
        return width * self.backend.dtype.itemsize + states

    def view(self, exit_layer: int | None = None, head: ScoreHead | None = None) -> ExitModel:
        """Return the language model that ends after ``exit_layer`` layers (default: all of them).

        ``head`` replaces the model's final norm and head (:mod:`hierspec.lm.exit_heads`).
        Views of one exit with different heads share its hidden states.
        """
        layer = self.backend.num_layers if exit_layer is None else exit_layer
        if layer not in self.exits:
            raise HierspecError(
                f"no exit after layer {layer}; this trunk has exits after {self.exits}: "
                f"name it when the trunk is made, Trunk(backend, exits=[{layer}])"
            )
        return self.exit_model(self.exits.index(layer), head)

    def exit_model(self, index: int, head: ScoreHead | None = None) -> ExitModel:
        """Return the language model that ends at ``self.exits[index]``."""
        return ExitModel(self, index, head)

    @torch.inference_mode()
    def hidden_states(
        self, ranges: Sequence[tuple[Slot, Context, int, int]], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """Return hidden states after ``layers`` for each (slot, context, first, end) of ``ranges``:
        those of tokens [first, end), as [end - first, len(layers) · d].

        Those of an earlier check are cached; others are computed here, and cached for later calls.
        """
        indices = [self.exits.index(layer) for layer in layers]
        prepared = [
            PreparedQuery(self._prepare_slot(slot, context, end), slot.tokens, first, end)
            for slot, context, first, end in ranges
        ]
        self.run_segments(prepared, max(indices))
        return [
            torch.cat([item.state.outputs[i][item.first : item.end] for i in indices], 1)
            for item in prepared
        ]

    def run_segments(
        self, prepared: list[PreparedQuery], index: int, score: bool = False
    ) -> torch.Tensor:
        """Run every query's tokens through the segments up to ``index``.

        Returns:
            With ``score`` the model's scores [rows, V] of all rows asked for.
        """
        asked = [(HiddenStates(i.state.outputs[index]), i.asked) for i in prepared] if score else []
        scores, is_last = _NONE, False
        while not is_last:
            goals = self._next_lengths(prepared, index)
            is_last = all(n >= item.end for n, item in zip(goals, prepared, strict=True))
            for segment in range(index + 1):
                states: list[SlotState] = []
                spans: list[Span] = []
                ids: list[int] = []
                for item, goal in zip(prepared, goals, strict=True):
                    state = item.state
                    if goal > (length := state.lengths[segment]):
                        states.append(state)
                        spans.append(item.span(length, goal))
                        if segment == 0:
                            ids += item.tokens[length:goal]
                scored = asked if is_last and segment == index else ()
                if spans or scored:
                    scores = self._run_segment(segment, states, spans, ids, scored)
        return scores

    def _next_lengths(self, prepared: list[PreparedQuery], index: int) -> list[int]:
        """Return the length of each query in segment ``index`` after the next pass, of at most
        ``chunk`` tokens in all."""
        budget = self.chunk
        goals: list[int] = []
        for item in prepared:
            # The topmost segment is never ahead of those below.
            length = item.state.lengths[index]
            step = min(max(item.end - length, 0), budget)
            budget -= step
            goals.append(length + step)
        return goals

    def _run_segment(
        self,
        segment: int,
        states: Sequence[SlotState],
        spans: Sequence[Span],
        ids: Sequence[int],
        scored: Sequence[ScoredStates],
    ) -> torch.Tensor:
        """Run a segment on tokens, of which lower segments have stored their outputs, and score."""
        outputs = [HiddenStates(state.outputs[segment]) for state in states]
        inputs = [HiddenStates(state.outputs[segment - 1]) for state in states] if segment else ()
        lo, hi = self.bounds[segment]
        scores = self.backend.run(
            lo, hi, spans, outputs, ids=self.replace_unknown(ids), inputs=inputs, scored=scored
        )
        counters = self.counters
        for state, (_, start, n, _) in zip(states, spans, strict=True):
            state.lengths[segment] = start + n
            counters.tokens[segment] += n
        counters.calls[segment] += len(spans) > 0
        counters.head_rows += len(scores)
        return scores

    def draft(
        self,
        backend: DraftingBackend,
        num_layers: int,
        prepared: Sequence[PreparedQuery],
        starts: Sequence[int],
        outputs: Sequence[HiddenStates],
        counts: Sequence[int],
        num_ids: int,
    ) -> list[list[int]]:
        """Run the first layers, this trunk's or a copy's, on tokens from ``starts`` on, and draft
        what follows them (:meth:`.DraftingBackend.draft`); add all of it but the last to the slots.
        """
        spans = [item.span(start, item.end) for start, item in zip(starts, prepared, strict=True)]
        ids = [t for s, i in zip(starts, prepared, strict=True) for t in i.tokens[s : i.end]]
        ids = self.replace_unknown(ids)
        drafts = backend.draft(num_layers, spans, outputs, ids, counts, num_ids)
        for item, draft in zip(prepared, drafts, strict=True):
            item.tokens.extend(draft[:-1])
        return drafts

    def embed(self, ids: Sequence[int], spans: Sequence[Span]) -> torch.Tensor:
        """Return the input of the first segment, [N, d], for N token ids at ``spans``."""
        input_ids = sent(self.replace_unknown(ids), torch.long, self.backend.device)
        return self.backend.embed(input_ids, spans)

    def replace_unknown(self, ids: Sequence[int]) -> list[int]:
        """Replace ids that the backend's embedding has no row for by 0.

        A draft model whose embedding is padded less has no row for the last ids. Any row will do:
        it can only cost acceptance, and the target's own ids always have theirs.
        """
        size = self.backend.vocab_size
        return [i if i < size else 0 for i in ids]


class ExitModel:
    """The language model made of a trunk's layers up to one exit, final norm and head.

    Args:
        index: of the exit in ``trunk.exits``.
        head: replaces the model's own final norm and head.

    Attributes:
        cache_owner: the trunk. Views with the same owner share slots: open one per sequence.
        exit_layer: how many layers it runs.
    """

    def __init__(self, trunk: Trunk, index: int, head: ScoreHead | None = None) -> None:
        backend = trunk.backend
        self.trunk = self.cache_owner = trunk
        self.graphs = trunk.graphs
        self.index = index
        self.head = head
        self.partial = isinstance(head, ExitHead) and head.part is not None
        self.exit_layer = trunk.exits[index]
        is_full = self.exit_layer == backend.num_layers
        self.name = backend.name if is_full else f"{backend.name}@{self.exit_layer}"
        self.vocab_size = backend.vocab_size
        self.max_length = backend.max_length
        self.device = backend.device
        simple = index == 0 and head is None
        self._drafting = backend if simple and isinstance(backend, DraftingBackend) else None
        self.drafts_in_one_call = self._drafting is not None

    @property
    def trees(self) -> bool:
        """Whether it scores a token tree in one call."""
        return self.trunk.backend.trees

    def open(self) -> Slot:
        """Return a new slot; any view of the same trunk may use it."""
        return self.trunk.open()

    def close(self, slot: Slot) -> None:
        self.trunk.close(slot)

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        trunk = self.trunk
        if parts := trunk.divided(queries):
            return torch.cat([self.score([part]) for part in parts])
        return self._score([trunk.prepare(query) for query in queries])

    def _score(self, prepared: list[PreparedQuery]) -> torch.Tensor:
        trunk, head = self.trunk, self.head
        scores = trunk.run_segments(prepared, self.index, score=head is None)
        if head is None:
            return scores
        with torch.inference_mode():
            h = torch.cat([item.select_rows(item.state.outputs[self.index]) for item in prepared])
        trunk.counters.head_rows += len(h)
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return head(h)

    def score_stepwise(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, NextScores]:
        """See :meth:`hierspec.lm.base.StepwiseModel.score_stepwise`.

        A step knows where it will write, so no context is compared and no cache looked up.
        """
        scores = self.score(queries)
        slots = [query.slot for query in queries]
        for query, count in zip(queries, counts, strict=True):
            self.trunk.make_room_for_draft(query, count)

        def next_scores(indices: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
            prepared: list[PreparedQuery] = []
            for i, token in zip(indices, tokens, strict=True):
                known = slots[i].tokens
                # Added before it is computed: the reverse would not survive an interruption.
                known.append(token)
                prepared.append(PreparedQuery(slots[i].state, known, len(known) - 1, len(known)))
            return self._score(prepared)

        return scores, next_scores

    @torch.inference_mode()
    def draft(
        self,
        queries: Sequence[Query],
        counts: Sequence[int],
        sampler: Sampler,
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`: greedy, in one call of the backend.

        A context's last token is run in any case: the same numbers are written once more.
        """
        trunk, backend = self.trunk, self._drafting
        assert backend is not None
        assert sampler.greedy
        prepared = trunk.prepare_drafts(queries, counts)
        starts = [min(item.state.lengths[0], item.first) for item in prepared]
        if sum([item.end - n for item, n in zip(prepared, starts, strict=True)]) > trunk.chunk:
            self.score(queries)  # a prompt, in passes of its own
            starts = [item.first for item in prepared]
        outputs = [HiddenStates(item.state.outputs[0]) for item in prepared]
        layers, num_ids = self.exit_layer, sampler.vocab_size
        drafts = trunk.draft(backend, layers, prepared, starts, outputs, counts, num_ids)
        for item, start in zip(prepared, starts, strict=True):
            # Last: see the invariants of slots.
            item.state.lengths[0] = len(item.tokens)
            trunk.counters.tokens[0] += len(item.tokens) - start
        trunk.counters.calls[0] += max(counts)
        trunk.counters.head_rows += sum(counts)
        return DeviceDrafts.greedy(drafts)

    def __repr__(self) -> str:
        return f"ExitModel({self.name!r}, exit_layer={self.exit_layer}, V={self.vocab_size})"


class SlotSharingModel:
    """A language model on the slots of a trunk, which it shares with the target."""

    trunk: Trunk

    @property
    def cache_owner(self) -> Trunk:
        return self.trunk

    @property
    def graphs(self) -> Graphs | None:
        """``None``: it records nothing, on any device."""
        return None

    def open(self) -> Slot:
        """Return a new slot of the trunk."""
        return self.trunk.open()

    def close(self, slot: Slot) -> None:
        self.trunk.close(slot)
