"""A LOSSY specimen, kept on exhibit: block verification whose last test forgets the cap.

P4's released code and printed listing use h_n = min(1, R_n) with the plain product R_n of the
ratios, where the capped w_n belongs. It keeps more draft tokens than any lossless rule may, and
its output is not the target's (TV .02–.24 on random small models). ``certify`` shows it; the
runtime refuses it unless ``allow_lossy`` is set. [MATH §1]
"""

from __future__ import annotations

from hierspec.core.rules import Acceptance, Batch

from .block import Block
from .ratios import at_ends, log_products
from .registry import register


class Uncapped(Block):
    """:class:`Block` with h_n = min(1, R_n): wrong on purpose."""

    name = "uncapped"
    exact = False
    exact_when = "never (P4's released code; use `block`, its lossless form)"
    sound_below = False

    def acceptance(self, batch: Batch) -> Acceptance:
        accepted = super().acceptance(batch)
        uncapped = log_products(batch)[:, 1:].clamp(max=0.0).exp()
        return Acceptance(at_ends(accepted.h, uncapped, batch.lengths), accepted.w)


UNCAPPED = register(Uncapped())
