"""Block verification without the cap at the draft's end: deliberately LOSSY.

P4's released code and printed listing end with h_n = min(1, R_n), the plain product of the ratios,
where the capped w_n belongs. It keeps more draft tokens than a lossless rule may that calls the
target once a round, and its output is not the target's (TV .02–.24 on random small models).
``certify`` shows it; the runtime refuses it unless ``allow_lossy`` is set.
"""

from __future__ import annotations

from hierspec.core.rules import Acceptance, Batch
from hierspec.verifiers.block import Block
from hierspec.verifiers.formulas import log_products, set_ends


class Uncapped(Block):
    """:class:`Block` with h_n = min(1, R_n): wrong on purpose."""

    name = "uncapped"
    exact = False
    exact_when = "never (P4's released code; use `block`, its lossless form)"
    exact_as_draft = False

    def acceptance(self, batch: Batch) -> Acceptance:
        accepted = super().acceptance(batch)
        ends = log_products(batch)[:, 1:].clamp(max=0.0).exp()
        return Acceptance(set_ends(accepted.h, ends, batch.lengths), accepted.w)
