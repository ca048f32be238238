"""Verdicts that changed, with what was said before and why it is no longer said."""

from __future__ import annotations

from dataclasses import dataclass

_PRICE = (
    "A check was priced without the layers that its exit shares with the draft's; the last drafted "
    "token has not been through them, and the engine's counters agree with the price that has them"
)
_DIGITS = (
    "The trend follows from the printed inputs, though the printed digits do not; before, the "
    "digits decided"
)


@dataclass(frozen=True, slots=True)
class Change:
    """A verdict that changed.

    Attributes:
        claim, file: of a claim; empty: the item's own verdict.
        before: the verdict, of a claim its effect too.
    """

    item: str
    before: str
    why: str
    claim: str = ""
    file: str = ""


CHANGES = (
    Change("P1 Table 1", "does not hold", _DIGITS),
    Change("P1 Table 8", "does not hold", _DIGITS),
    Change(
        "P1 Table 4",
        "does not hold",
        "Stacks of three were slower than single drafts in the small families, which is what P1's "
        "formula predicts at the acceptances measured: its system would take the single draft. "
        "Undecided is what the heuristic adds",
    ),
    *(
        Change(
            "P3 Table 1",
            f"holds, {effect}",
            _PRICE,
            f"HiSpec over LayerSkip (exit {layer}), by layers run",
            f"{file}.json",
        )
        for file, layer, effect in (
            ("p3-smollm2", "10 of 30 layers", "1.045× [1.013, 1.078]"),
            ("p3-smollm2-chats", "10 of 30 layers", "1.047× [1.029, 1.065]"),
            ("p3-trunk", "at L/4", "1.203× [1.097, 1.319]"),
        )
    ),
    Change(
        "P3 Figure 6",
        "holds, 1.102× [1.028, 1.180]",
        _PRICE,
        "HiSpec over the best single exit, by layers run",
        "p3-trunk.json",
    ),
    Change(
        "P3 Figure 7",
        "does not hold, 0.948× [0.892, 1.008]",
        _PRICE,
        "N_d = 2 over N_d = 1, by layers run",
        "p3-trunk-lengths.json",
    ),
)
