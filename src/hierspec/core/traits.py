"""What soundness asks of a level's model, whatever the interpreter takes for one.

Models say these things by attributes, and one without an attribute is as most models are.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class MayDecline(Protocol):
    """A model that says whether it leaves tokens to the level above; others draft all they can."""

    @property
    def declines(self) -> bool: ...


@runtime_checkable
class MayLackLaw(Protocol):
    """A model that says whether it has a next-token distribution for each context; others do."""

    @property
    def law_of_context(self) -> bool: ...


@runtime_checkable
class MayReadOwnChecks(Protocol):
    """A model that says whether it learns from the checks of its own drafts; others do not."""

    @property
    def reads_own_checks(self) -> bool: ...


def declines(model: object) -> bool:
    """Return whether drafts of this model may end early by what their tokens are."""
    return isinstance(model, MayDecline) and model.declines


def has_law_of_context(model: object) -> bool:
    """Return whether this model has a next-token distribution for each context."""
    return not isinstance(model, MayLackLaw) or model.law_of_context


def reads_own_checks(model: object) -> bool:
    """Return whether this model learns from checks of its own drafts, so must draft alone."""
    return isinstance(model, MayReadOwnChecks) and model.reads_own_checks
