"""What soundness asks of a level's model, whatever the interpreter takes for one.

Models say these things by attributes, and one without an attribute is as most models are.
"""

from __future__ import annotations


def declines(model: object) -> bool:
    """Return whether drafts of this model may end early by what their tokens are."""
    return bool(getattr(model, "declines", False))


def has_distributions(model: object) -> bool:
    """Return whether this model has a next-token distribution for each context."""
    return bool(getattr(model, "has_distributions", True))


def reads_own_checks(model: object) -> bool:
    """Return whether this model learns from checks of its own drafts, so must draft alone."""
    return bool(getattr(model, "reads_own_checks", False))
