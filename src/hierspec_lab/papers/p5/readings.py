"""Readings of "the current output" whose entropy ends M2's turn [P5 §3.2, Algorithm 2].

M2 hands up once H(q_2^i) > τ_2, and the paper does not say at which i of its latest round. A round
ends with a token that M2 wrote itself, after those of M1 that it accepted. All readings are
lossless, since each looks at tokens that are handed up.
"""

from __future__ import annotations

from collections.abc import Sequence

from hierspec.core.windows import EntropyWindow, State


class EntropyOfLast(EntropyWindow):
    """Stop once the round's last token, which M2 wrote, has entropy above the threshold."""

    __slots__ = ()
    kind = "entropy of the last token"

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return super().stops(signals[-1:], state)


class EntropyOfAccepted(EntropyWindow):
    """Stop once a token of M1's that M2 accepted in the round has entropy above the threshold."""

    __slots__ = ()
    kind = "entropy of accepted tokens"

    def stops(self, signals: Sequence[float], state: State) -> bool:
        return super().stops(signals[:-1], state)


READINGS = {
    "any token": EntropyWindow,
    "last token": EntropyOfLast,
    "accepted tokens": EntropyOfAccepted,
}
