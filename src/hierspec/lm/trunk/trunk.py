"""A transformer cut into segments at its exits, so that each (token, segment) is computed once.

A sequence has one slot for all exits. In it every segment keeps its own absolute length (how many
leading tokens have been through it) and its outputs, so an exit runs only the segments below it,
and only for tokens they have not seen; rows asked for again cost one head. A rewind lowers lengths;
no cache is cropped. A plain model is a trunk with one exit.

A segment's length is raised only after the segment has finished: see the invariants in ``slots``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from hierspec.core.context import Context
from hierspec.core.distributions import Uniforms
from hierspec.errors import HierspecError
from hierspec.lm.backend import Backend, DraftingBackend, HiddenStates, Span
from hierspec.lm.base import DeviceDrafts, NextScores, Query, Slot
from hierspec.lm.exit_heads import ExitHead
from hierspec.lm.in_steps import picked
from hierspec.sampling.sampler import Sampler
from hierspec.utils.graphs import Graphs
from hierspec.utils.reads import sent

from .slots import PreparedQuery, SlotState, TrunkSlots

_NONE = torch.empty(0)
ScoreHead = Callable[[torch.Tensor], torch.Tensor]  # hidden states [N, d] → scores [N, V]


class Trunk(TrunkSlots):
    """Segments of one backend, shared by the language models of its exits.

    Args:
        exits: after how many layers scores can be asked for; the last layer is always an exit.

    Attributes:
        chunk: at most this many tokens go through the layers at once, so that a long prompt needs
            little memory beyond its cache.
        graphs: CUDA graphs of its calls; ``None`` on other devices.
    """

    chunk = 512

    def __init__(self, backend: Backend, exits: Sequence[int] = ()) -> None:
        last = backend.num_layers
        self.exits = tuple(sorted({*exits, last}))
        if self.exits[0] < 1 or self.exits[-1] > last:
            raise HierspecError(
                f"exit layers must lie between 1 and {last} for {backend.name}, "
                f"which has {last} layers; got {sorted(exits)}"
            )
        super().__init__(backend, self.exits)
        self.graphs: Graphs | None = None

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
            lengths = [item.state.lengths[index] for item in prepared]  # the topmost is never ahead
            goals = self.next_lengths(prepared, lengths)
            is_last = all(n >= item.end for n, item in zip(goals, prepared, strict=True))
            for segment in range(index + 1):
                running = [
                    (item, goal)
                    for item, goal in zip(prepared, goals, strict=True)
                    if goal > item.state.lengths[segment]
                ]
                scored = asked if is_last and segment == index else ()
                if not running and not scored:
                    continue
                spans = [item.span(item.state.lengths[segment], goal) for item, goal in running]
                outputs, ids = [item.state.outputs for item, _ in running], list[int]()
                if segment == 0:
                    for (item, goal), span in zip(running, spans, strict=True):
                        ids += item.tokens[span.start : goal]
                scores = self.backend.run(
                    *self.bounds[segment],
                    spans,
                    [HiddenStates(rows[segment]) for rows in outputs],
                    ids=self.replace_unknown(ids),
                    inputs=[HiddenStates(rows[segment - 1]) for rows in outputs if segment],
                    scored=scored,
                )
                for item, goal in running:
                    item.state.lengths[segment] = goal
        return scores

    def next_lengths(self, prepared: Sequence[PreparedQuery], lengths: Sequence[int]) -> list[int]:
        """Return how many tokens of each query have been run after the next pass, of at most
        ``chunk`` tokens in all; ``lengths``: before it."""
        budget = self.chunk
        goals: list[int] = []
        for item, length in zip(prepared, lengths, strict=True):
            step = min(max(item.end - length, 0), budget)
            budget -= step
            goals.append(length + step)
        return goals

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


class SlotSharingModel:
    """A language model on the slots of a trunk, which it shares with the trunk's other models.

    Attributes:
        cache_owner: the trunk; one slot per sequence does for all of its models.
        graphs: recorded calls of its device; ``None``: it records nothing, on any device.
    """

    trunk: Trunk
    graphs: Graphs | None = None

    @property
    def cache_owner(self) -> Trunk:
        return self.trunk

    def open(self) -> Slot:
        """Return a new slot of the trunk."""
        return self.trunk.open()

    def close(self, slot: Slot) -> None:
        self.trunk.close(slot)


class TrunkModel(SlotSharingModel, ABC):
    """A form of a trunk's own transformer: it runs the tokens of queries that the trunk prepares.

    Args:
        backend: what runs them.
        num_layers: how many of its layers.
        drafts: whether it drafts in one call where the backend does.
    """

    def __init__(
        self, trunk: Trunk, backend: Backend, name: str, num_layers: int, drafts: bool
    ) -> None:
        self.trunk, self.backend, self.name = trunk, backend, name
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.device, self.num_layers = backend.device, num_layers
        self._drafting = backend if drafts and isinstance(backend, DraftingBackend) else None
        self.drafts_in_one_call = self._drafting is not None

    @property
    def trees(self) -> bool:
        """Whether it scores a token tree in one call."""
        return self.backend.trees

    @abstractmethod
    def store(self, state: SlotState, end: int) -> None:
        """Note that all of its layers have run the tokens up to ``end``; only once they have."""

    @abstractmethod
    def _score(self, prepared: list[PreparedQuery]) -> torch.Tensor: ...

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        if parts := self.trunk.divided(queries):
            return torch.cat([self.score([part]) for part in parts])
        return self._score([self.trunk.prepare(query) for query in queries])

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
        samplers: Sequence[Sampler],
        uniforms: Sequence[Uniforms],
    ) -> DeviceDrafts:
        """See :meth:`hierspec.lm.base.DeviceModel.draft`: in one call of the backend."""
        trunk, backend = self.trunk, self._drafting
        assert backend is not None
        assert not any(sampler.races for sampler in samplers)
        prepared = trunk.prepare_drafts(queries, counts)
        starts = [self._start(item) for item in prepared]
        if sum([item.end - n for item, n in zip(prepared, starts, strict=True)]) > trunk.chunk:
            self.score(queries)  # a prompt, in passes of its own
            starts = [self._start(item) for item in prepared]
        spans = [item.span(start, item.end) for start, item in zip(starts, prepared, strict=True)]
        outputs = [
            self._outputs(i, s.start, n) for i, s, n in zip(prepared, spans, counts, strict=True)
        ]
        ids = [t for s, i in zip(starts, prepared, strict=True) for t in i.tokens[s : i.end]]
        ids = trunk.replace_unknown(ids)
        drafts = backend.draft(self.num_layers, spans, outputs, ids, counts, samplers, uniforms)
        for item, (tokens, _) in zip(prepared, drafts, strict=True):
            item.tokens.extend(tokens[:-1])
            self.store(item.state, len(item.tokens))
        return DeviceDrafts(*map(list, zip(*drafts, strict=True)), calls=max(counts))

    @abstractmethod
    def _start(self, item: PreparedQuery) -> int:
        """Return the first token that a draft after a query runs: its last one, or an earlier."""

    @abstractmethod
    def _outputs(self, item: PreparedQuery, start: int, count: int) -> HiddenStates:
        """Return what a draft of ``count`` tokens writes hidden states to, from ``start`` on."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, V={self.vocab_size})"


class ExitModel(TrunkModel):
    """The language model made of a trunk's layers up to one exit, final norm and head.

    Args:
        index: of the exit in ``trunk.exits``.
        head: replaces the model's own final norm and head.

    Attributes:
        exit_layer: how many layers it runs.
        partial: whether its head scores a part of the vocabulary only.
    """

    def __init__(self, trunk: Trunk, index: int, head: ScoreHead | None = None) -> None:
        backend, self.exit_layer = trunk.backend, trunk.exits[index]
        is_full = self.exit_layer == backend.num_layers
        name = backend.name if is_full else f"{backend.name}@{self.exit_layer}"
        super().__init__(trunk, backend, name, self.exit_layer, drafts=index == 0 and head is None)
        self.graphs, self.index, self.head = trunk.graphs, index, head
        self.partial = isinstance(head, ExitHead) and head.part is not None

    def store(self, state: SlotState, end: int) -> None:
        for segment in range(self.index + 1):
            state.lengths[segment] = max(end, state.lengths[segment])

    def _start(self, item: PreparedQuery) -> int:
        # The last token is run in any case: the same numbers are written once more.
        return min(item.state.lengths[0], item.first)

    def _outputs(self, item: PreparedQuery, start: int, count: int) -> HiddenStates:
        return HiddenStates(item.state.outputs[0])

    def _score(self, prepared: list[PreparedQuery]) -> torch.Tensor:
        head = self.head
        scores = self.trunk.run_segments(prepared, self.index, score=head is None)
        if head is None:
            return scores
        with torch.inference_mode():
            outputs = ((HiddenStates(i.state.outputs[self.index]), i.asked) for i in prepared)
            h = torch.cat([picked(*each) for each in outputs])
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return head(h)
