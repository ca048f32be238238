"""A cheaper form of the target, drafting on the target's cache.

In fewer bits: after QuantSpec (Tiwari et al. 2025, arXiv 2502.10424), which drafts with 4-bit
weights and a 4-bit cache; here the cache is the target's. Or without some of its layers, as SWIFT
does it (Xia et al. 2025, arXiv 2410.06916; :mod:`hierspec.lm.layer_skip`).

For every token the target has checked, the draft reads the target's keys and values, so it needs no
pass over the prompt and does not drift; past them it writes its own, which the target's next check
overwrites. A place it has written to no longer counts as the target's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hierspec.lm.backend import Backend, Span
from hierspec.lm.base import Following, Query

from .slots import SlotState
from .trunk import SharesSlots, Trunk


class SelfDraft(SharesSlots):
    """The language model that runs a cheaper form of a trunk's transformer on the trunk's slots.

    Args:
        trunk: the target's.
        backend: the cheaper form, which can read and write the trunk's caches.

    Attributes:
        cache_owner: the trunk, whose slots it shares.
        calls: passes over its weights since it was made.
        tokens: how many tokens it ran in these.
    """

    def __init__(self, trunk: Trunk, backend: Backend) -> None:
        self.trunk, self.backend = trunk, backend
        self.name = backend.name
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.device = backend.device
        self.calls = self.tokens = 0

    def score(self, queries: Sequence[Query]) -> torch.Tensor:
        """See :meth:`hierspec.lm.base.LanguageModel.score`."""
        with torch.inference_mode():
            h = self._hidden(queries)
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return self.backend.head(h)

    @property
    def trees(self) -> bool:
        """Whether it scores a token tree in one call."""
        return self.backend.trees

    @torch.inference_mode()
    def follow(
        self, queries: Sequence[Query], counts: Sequence[int]
    ) -> tuple[torch.Tensor, Following]:
        """See :meth:`hierspec.lm.base.FollowingModel.follow`."""
        scores = self.backend.head(self._hidden(queries))
        slots = [query.slot for query in queries]
        for query, count in zip(queries, counts, strict=True):
            self.trunk.rewind(query.slot, len(query.context))
            self.trunk.make_room(query.slot, len(query.context) + count - 1)

        @torch.inference_mode()
        def after(going: Sequence[int], last: Sequence[int]) -> torch.Tensor:
            # Held before it is computed: the reverse would not survive an interruption.
            for i, token in zip(going, last, strict=True):
                slots[i].held.append(token)
            states = [slots[i].state for i in going]
            spans = [Span(state.cache, state.drafted, 1) for state in states]
            return self.backend.head(self._run(last, states, spans))

        return scores, after

    def _hidden(self, queries: Sequence[Query]) -> torch.Tensor:
        """Return the last layer's output for all rows asked, [Σ num_rows, d]."""
        work = [self.trunk.prepare(query) for query in queries]
        parts: list[list[torch.Tensor]] = [[] for _ in work]
        begin: list[int] = []
        for w in work:
            # Rows asked again are computed again: hidden states are not cached.
            first = w.first if w.rows is None else min(w.rows)
            done = min(max(w.state.lengths[-1], w.state.drafted), first)
            w.state.drafted = done
            w.state.lengths = [min(n, done) for n in w.state.lengths]
            begin.append(done)
        at = list(begin)
        while any(place < w.end for place, w in zip(at, work, strict=True)):
            budget, busy = self.trunk.chunk, []
            for i, w in enumerate(work):
                step = min(w.end - at[i], budget)
                budget -= step
                if step:
                    busy.append((i, step))
            spans = [work[i].span(at[i], at[i] + step) for i, step in busy]
            ids = [t for i, n in busy for t in work[i].held[at[i] : at[i] + n]]
            h = self._run(ids, [work[i].state for i, _ in busy], spans)
            for (i, step), part in zip(busy, h.split([n for _, n in busy]), strict=True):
                parts[i].append(part)
                at[i] += step
        asked = zip(work, parts, begin, strict=True)
        return torch.cat([w.rows_asked(torch.cat(own), since) for w, own, since in asked])

    def _run(
        self, ids: Sequence[int], states: Sequence[SlotState], spans: Sequence[Span]
    ) -> torch.Tensor:
        """Return the last layer's output [N, d] of N tokens, recorded in their states."""
        h = self.trunk.embed(ids, spans)
        h = self.backend.layers(h, 0, self.backend.num_layers, spans)
        for state, span in zip(states, spans, strict=True):
            state.drafted = span.start + span.n
        self.calls += 1
        self.tokens += len(ids)
        return h

    def __repr__(self) -> str:
        return f"SelfDraft({self.name!r}, V={self.vocab_size})"
