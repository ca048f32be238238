"""Small n-gram tables, counted without the laboratory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hierspec.drafters.ngram_table import NgramModel, NgramOrder


def bigrams(tokens: Sequence[int] | np.ndarray, size: int) -> NgramModel:
    """Return a table of order 2 that leaves a third of every context to the unigram."""
    ids = np.asarray(tokens, np.int64)
    pairs, counts = np.unique(ids[:-1] * size + ids[1:], return_counts=True)
    contexts, words = np.divmod(pairs, size)
    keys, starts = np.unique(contexts, return_index=True)
    totals = np.repeat(np.add.reduceat(counts, starts), np.diff(starts, append=len(pairs)))
    shares = (counts / totals / 1.5).astype(np.float32)
    order = NgramOrder(keys, np.append(starts, len(pairs)), words, shares)
    return NgramModel(np.bincount(ids, minlength=size) + 0.5, [order])
