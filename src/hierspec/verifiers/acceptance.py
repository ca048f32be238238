"""Where a rule is asked what it decides; the answers of a user's rule are checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hierspec.core.distributions import Distributions
from hierspec.core.proposals import Proposal
from hierspec.core.requests import Draw
from hierspec.core.rules import Acceptance, Batch, Choice, Stop, Verifier
from hierspec.errors import HierspecError
from hierspec.utils import plugins
from hierspec.utils.schema import short_repr

_ROUNDING = {torch.float64: 1e-9}  # how far below 0 rounding may take a number of a row
_ROUNDING_ELSEWHERE = 1e-5
_UNSOUND = "has a negative number, NaN, or infinity, or nothing in it"


def is_checked(rule: Verifier) -> bool:
    """Return whether a rule is a user's: the host then reads what it says, in every decision."""
    return plugins.is_users(type(rule))


def acceptance_of(rule: Verifier, batch: Batch) -> Acceptance:
    """Return a rule's :meth:`Verifier.acceptance`; that of a user's rule is checked.

    Raises:
        HierspecError: it is not an Acceptance, has other shapes, or holds NaN or a number
            that is not a probability.
    """
    accepted: Any = rule.acceptance(batch)
    if is_checked(rule) and (problem := _problem(accepted, batch)):
        place = plugins.where(type(rule).acceptance)
        raise HierspecError(f"{place}: the acceptance of rule {rule.name!r} {problem}")
    return accepted


def _problem(accepted: Any, batch: Batch) -> str:
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


def correction_of(
    rule: Verifier,
    batch: Batch,
    accepted: Acceptance,
    tau: torch.Tensor,
    needed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a rule's :meth:`Verifier.correction`; where it is a user's own, it is checked.

    Args:
        needed: [B] bool, the drafts that may stop at their τ; ``None``: all.

    Raises:
        HierspecError: it is none, or a row that is needed is no distribution, not even after
            division by its sum: no certificate would hold for what is drawn from it.
    """
    written = _correction_written(rule)
    if written is None:
        return rule.correction(batch, accepted, tau)
    start = f"{plugins.where(written)}: the residual of rule {rule.name!r}"
    try:
        rows = rule.correction(batch, accepted, tau)
        is_sound = _can_be_drawn_from(rows if needed is None else rows[needed])
    except (AttributeError, HierspecError, IndexError, RuntimeError, TypeError) as error:
        if plugins.place_of(error) or isinstance(error, torch.OutOfMemoryError):
            raise
        raise HierspecError(f"{start} must be rows [B, V]: {plugins.describe(error)}") from None
    if rows.shape != batch.p[:, 0].shape:
        shapes = f"{list(batch.p[:, 0].shape)}, not {list(rows.shape)}"
        raise HierspecError(f"{start} must be rows [B, V]: {shapes}")
    if not is_sound:
        raise HierspecError(f"{start} {_UNSOUND}")
    return rows


def tests_of(rule: Verifier, drafts: Sequence[Proposal], p: Sequence[Distributions]) -> Choice:
    """Run a rule's :meth:`Verifier.choose`; what a user's rule yields and returns is checked.

    Raises:
        HierspecError: a chance is none, or the end is no :class:`Stop` at one of the drafts, with
            a row [V] that is a distribution, as in :func:`correction_of`.
    """
    if not is_checked(rule):
        return (yield from rule.choose(drafts, p))
    start = f"{plugins.where(type(rule).choose)}: rule {rule.name!r}"
    choice: Any = rule.choose(drafts, p)
    passed: bool | None = None  # the first is no answer
    while True:
        try:
            h: Any = choice.send(passed)
        except StopIteration as end:
            stop: Any = end.value
            break
        if not (isinstance(h, float | int) and 0.0 <= h <= 1.0):
            raise HierspecError(f"{start} yields chances from 0 to 1, not {short_repr(h)}")
        passed = yield h
    if not (
        isinstance(stop, Stop)
        and stop.draft in range(len(drafts))
        and stop.num_accepted in range(len(drafts[stop.draft]) + 1)
    ):
        raise HierspecError(
            f"{start} ends in Stop(draft, num_accepted, distribution), as many as that draft has"
        )
    if not _can_be_drawn_from(stop.distribution):
        raise HierspecError(f"{start} stops with what {_UNSOUND}")
    return stop


def drawn_row(request: Draw) -> Distributions:
    """Return the row that a rule draws a token from; that of a user's rule is checked.

    Raises:
        HierspecError: it is not one row, or no distribution, as in :func:`correction_of`.
    """
    rule, row = request.node.rule, request.distribution
    if is_checked(rule):
        rows = row.dense(row.width)
        if len(rows) != 1 or not _can_be_drawn_from(rows):
            place = plugins.where(type(rule).complete)
            raise HierspecError(f"{place}: rule {rule.name!r} draws from what {_UNSOUND}")
    return row


def _can_be_drawn_from(rows: torch.Tensor) -> bool:
    rounding = _ROUNDING.get(rows.dtype, _ROUNDING_ELSEWHERE)
    total = rows.sum(-1)
    return bool((rows >= -rounding).all() & ((total > 0.0) & (total < math.inf)).all())


def _correction_written(rule: Verifier) -> Callable[..., Any] | None:
    """Return what a user wrote of a rule's correction; ``None`` if it is this package's."""
    for cls in type(rule).__mro__:
        if not plugins.is_users(cls):
            return None
        for name in ("correction", "rest"):
            if name in vars(cls):
                return vars(cls)[name]
    return None
