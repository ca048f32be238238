"""P4 Appendix G: operations of verification beside those of a forward, by counting.

The formulas are lost in the text at hand. The printed values follow from L (4 h² + 2 h m + 2 h T)
for a forward: L layers of width h with an MLP of width m and T cached tokens, a multiplication and
an addition counted as one, two of the MLP's three matrices, keys and values as wide as queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from hierspec_lab.papers.tables import Cell, Reproduction, Table, TableRow

CONTEXT = 2048
VOCAB = 151_936
DRAFT_LENGTH = 10
PASSES = 4  # over the rows of a draft: the ratio, the smaller of two, the product, the sum


@dataclass(frozen=True, slots=True)
class QwenShape:
    """Shape of a Qwen2.5 model, as published; ``kv``: width of keys and values."""

    layers: int
    width: int
    mlp: int
    kv: int


QWEN = {
    "0.5B": ("0.374", QwenShape(24, 896, 4864, 128)),
    "72B": ("62.915", QwenShape(80, 8192, 29568, 1024)),
}


def as_printed(shape: QwenShape, context: int = CONTEXT) -> int:
    """Return the operations of a token's forward as the printed numbers count them."""
    h, m = shape.width, shape.mlp
    return shape.layers * (4 * h * h + 2 * h * m + 2 * h * context)


def operations(shape: QwenShape, context: int = CONTEXT, vocab: int = VOCAB) -> int:
    """Return the additions and multiplications of a token's forward.

    They are those of projections with grouped keys and values, of the MLP's three matrices, of
    attention over ``context`` tokens, and of the head."""
    h, m = shape.width, shape.mlp
    layer = 2 * h * h + 2 * h * shape.kv + 3 * h * m + 2 * h * context
    return 2 * (shape.layers * layer + h * vocab)


def verification(drafted: int = DRAFT_LENGTH, vocab: int = VOCAB) -> int:
    """Return the operations of a draft's verification if every row is read."""
    return PASSES * drafted * vocab


def compute() -> Reproduction:
    """Compute the table."""
    rows = [
        TableRow(
            f"forward, Qwen2.5 {name}",
            (Cell(printed, as_printed(shape) / 1e9),),
            (round(operations(shape) / 1e9, 3), 100 * verification() / operations(shape)),
        )
        for name, (printed, shape) in QWEN.items()
    ]
    return Reproduction(
        "p4-operations",
        (
            Table(
                "Appendix G",
                "billions of operations of a token's forward, and a draft's verification in per "
                "cent of it",
                "what",
                ("billions",),
                tuple(rows),
                ("all of them, billions", "verification, %"),
                {"context": CONTEXT, "vocab": VOCAB, "draft_length": DRAFT_LENGTH},
                notes=(
                    f"Printed from L (4 h² + 2 h m + 2 h T) at T = {CONTEXT}: a multiplication "
                    "and an addition count as one, two of the MLP's three matrices are counted, "
                    "keys and values as if they were not grouped, and no head. Beside it: all of "
                    "them, each for itself.",
                    f"Verification here: {PASSES} passes over {DRAFT_LENGTH} rows of {VOCAB}, "
                    f"{verification() / 1e6:.1f} million; printed 5.8 million, at a draft length "
                    "that the text at hand has lost. It is once a round, a forward once a level "
                    "and token.",
                    "Our rules read a row only where a decision hangs on it (p4-cost has times).",
                ),
            ),
        ),
    )
