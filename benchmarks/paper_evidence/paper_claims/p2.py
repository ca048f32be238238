"""Claims of P2: interleaving a smaller model does not help."""

from __future__ import annotations

from paper_evidence import effects
from paper_evidence.claims import Claim

_COST, _SPEED = effects.tokens_per_cost, effects.tokens_per_second


def claims() -> list[Claim]:
    """Return the claims of P2."""
    single_drafts = ("M_s 2", "M_s 4", "M_q 2", "M_q 4", "M_q 8")
    interleaved = ("interleaved 1", "interleaved 2")
    return [
        Claim(
            "P2 Figure 1",
            ("clock-p2-smollm2",),
            "best single draft over best interleaved, in time",
            single_drafts,
            interleaved,
            _SPEED,
        ),
        Claim(
            "P2 Figure 1",
            ("p2-trunk-0", "p2-trunk-1"),
            "best single draft over best interleaved, by weights",
            single_drafts,
            interleaved,
            _COST,
        ),
        Claim(
            "P2 Figure 1",
            ("p2-trunk-0", "p2-trunk-1"),
            "M_q alone (n = 0) over n = 2 interleaved, same m, by weights",
            ("M_q 4",),
            ("interleaved 2",),
            _COST,
        ),
    ]
