"""Backends that run embedding, layers and head one after the other, in torch's operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .backend import HiddenStates, ScoredStates, Span

if TYPE_CHECKING:
    import torch


class RunsInSteps:
    """:meth:`.Backend.run` of a backend that has the other methods of one."""

    def run(
        self: Any,
        lo: int,
        hi: int,
        spans: Sequence[Span],
        outputs: Sequence[HiddenStates],
        *,
        ids: Sequence[int] = (),
        inputs: Sequence[HiddenStates] = (),
        scored: Sequence[ScoredStates] = (),
    ) -> torch.Tensor:
        """See :meth:`.Backend.run`."""
        import torch  # not sooner: methods that make such backends are listed without it

        from hierspec.utils.reads import sent

        with torch.inference_mode():
            if spans:
                if inputs:
                    h = torch.cat([_rows(*pair) for pair in zip(inputs, spans, strict=True)])
                else:
                    h = self.embed(sent(ids, torch.long, self.device), spans)
                h = self.layers(h, lo, hi, spans)
                parts = h.split([span.n for span in spans])
                for span, states, part in zip(spans, outputs, parts, strict=True):
                    _rows(states, span).copy_(part)
            found = [picked(*each) for each in scored]
            h = torch.cat(found) if found else torch.empty(0, self.hidden_size, device=self.device)
        # Outside inference mode, so that callers may write into the scores they get.
        with torch.no_grad():
            return self.head(h) if found else h


def _rows(states: HiddenStates, span: Span) -> torch.Tensor:
    return states.rows.narrow(0, span.start - states.first, span.n)


def picked(states: HiddenStates, at: Sequence[int]) -> torch.Tensor:
    """Return the states at these places, [n, d]; those of a range as a view."""
    from hierspec.utils.reads import pick

    rows, first = states
    if isinstance(at, range):
        return rows[at.start - first : at.stop - first]
    return pick(rows, [i - first for i in at])
