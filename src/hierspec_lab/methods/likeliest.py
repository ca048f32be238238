"""What look-ups learn from the target's rows."""

from __future__ import annotations

from hierspec.core.distributions import Distributions, OneHotDistributions


def likeliest_tokens(rows: Distributions) -> list[int]:
    """Return the likeliest token of every row."""
    if isinstance(rows, OneHotDistributions):
        return list(rows.ids)
    return rows.dense(rows.width).argmax(-1).tolist()
