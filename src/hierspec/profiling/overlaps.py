"""Laws of two models side by side, reduced to numbers: they are too large to keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..laws import DenseLaws, Laws, OneHotLaws
from ..types import Proposal


def survival(draft: Proposal, p: Laws, max_budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Per m = 0 … M, given the draft: the probability that tokenwise keeps m tokens; and w_m."""
    one = np.zeros(max_budget + 1)
    other = np.zeros(max_budget + 1)
    one[0] = other[0] = 1.0
    if draft.tokens:
        ratios = _probs(p, draft.tokens) / _probs(draft.laws, draft.tokens)
        one[1 : len(ratios) + 1] = np.minimum(ratios, 1.0).cumprod()
        for m, ratio in enumerate(ratios, 1):
            other[m] = min(1.0, other[m - 1] * ratio)
    return one, other


def overlap(q: Laws, p: Laws, vocab_size: int) -> np.ndarray:
    """1 − TV of every row, [n]."""
    if isinstance(q, OneHotLaws) and isinstance(p, OneHotLaws):
        return (likeliest(q) == likeliest(p)).astype(float)
    if isinstance(q, OneHotLaws):  # a drafter that is greedy by its own temperature, or p
        return _probs(p, q.ids)
    if isinstance(p, OneHotLaws):
        return _probs(q, p.ids)
    first, second = q.dense(vocab_size), p.dense(vocab_size)
    return torch.minimum(first.to(second), second).sum(-1).double().cpu().numpy()


def likeliest(rows: Laws) -> np.ndarray:
    """The token of the largest probability of every row, [n]."""
    if isinstance(rows, OneHotLaws):
        return np.array(rows.ids)
    assert isinstance(rows, DenseLaws)
    return rows.probs.argmax(-1).cpu().numpy()


def _probs(rows: Laws, tokens: Sequence[int]) -> np.ndarray:
    if isinstance(rows, DenseLaws) and max(tokens) < rows.width:
        at = torch.tensor(tokens, device=rows.probs.device).unsqueeze(1)
        return rows.probs[: len(tokens)].gather(1, at).squeeze(1).double().cpu().numpy()
    return np.array([rows.prob(i, token) for i, token in enumerate(tokens)])
