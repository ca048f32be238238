"""How much a trunk has its backend run, or a model on its slots."""

from __future__ import annotations

from typing import Any

from hierspec.lm.trunk.trunk import Trunk


class Work:
    """Calls of a backend from now on, and tokens in them; of a trunk's, segment by segment."""

    def __init__(self, owner: Any) -> None:
        backend = owner.backend
        firsts = [lo for lo, _ in owner.bounds] if isinstance(owner, Trunk) else [0]
        self.calls, self.tokens = [0] * len(firsts), [0] * len(firsts)
        run = backend.run

        def counted(lo, hi, spans, *args, **kwargs):
            scores = run(lo, hi, spans, *args, **kwargs)
            if lo < hi and spans and lo in firsts:  # another trunk may have the same backend
                self.calls[firsts.index(lo)] += 1
                self.tokens[firsts.index(lo)] += sum(span.n for span in spans)
            return scores

        backend.run = counted
        if (draft := getattr(backend, "draft", None)) is None:
            return

        def counted_draft(layers, spans, outputs, ids, counts, *how):
            drafts = draft(layers, spans, outputs, ids, counts, *how)
            self.calls[0] += max(counts)
            self.tokens[0] += len(ids) + sum(counts) - len(counts)
            return drafts

        backend.draft = counted_draft
