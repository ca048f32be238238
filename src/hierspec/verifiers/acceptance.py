"""The one place where a rule is asked for its acceptance; what a user's rule says is checked."""

from __future__ import annotations

from typing import Any

import torch

from hierspec.core.rules import Acceptance, Batch, Verifier
from hierspec.errors import HierspecError
from hierspec.utils import plugins


def is_checked(rule: Verifier) -> bool:
    """Return whether a rule is a user's: the host then reads what it says, in every decision."""
    package = type(rule).__module__.partition(".")[0]
    return not package.startswith("hierspec")  # this project has more packages than this one


def acceptance_of(rule: Verifier, batch: Batch) -> Acceptance:
    """Return a rule's :meth:`Verifier.acceptance`; that of a user's rule is checked.

    Raises:
        HierspecError: it is none, of other shapes, or holds NaN or what is no probability.
    """
    accepted: Any = rule.acceptance(batch)
    if is_checked(rule) and (problem := _problem(accepted, batch)):
        place = plugins.where(type(rule).acceptance)
        raise HierspecError(f"{place}: the acceptance of rule {rule.name!r} {problem}")
    return accepted


def _problem(accepted: Any, batch: Batch) -> str:
    """Return what is wrong with an acceptance, in words; empty if nothing is."""
    if not isinstance(accepted, Acceptance):
        return f"must be hierspec.Acceptance(h, w), not {type(accepted).__name__}"
    if not all(map(torch.is_tensor, (accepted.h, accepted.w))):
        return "holds h and w as tensors"
    num, n = batch.tokens.shape
    if accepted.h.shape != (num, n) or accepted.w.shape != (num, n + 1):
        shapes = f"{list(accepted.h.shape)} and {list(accepted.w.shape)}"
        return f"has h [B, n] and w [B, n + 1] for tokens {[num, n]}, not {shapes}"
    if not bool(((accepted.h >= 0.0) & (accepted.h <= 1.0)).all()):
        return "has an h outside 0 … 1, or NaN (0 is h where there is only padding)"
    return "" if bool((accepted.w >= 0.0).all()) else "has a negative w, or NaN"
