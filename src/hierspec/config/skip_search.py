"""The field ``search`` of a ``layer_skip`` level: how it searches for the parts to leave out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

from hierspec.lm.skip_search import SearchSettings
from hierspec.utils.schema import (
    Boolean,
    Count,
    Natural,
    NonNegativeNumber,
    ReadAs,
    checked_dataclass,
)

_SWIFT = SearchSettings()


@checked_dataclass
class SkipSearchConfig:
    """The fields of :class:`~hierspec.lm.skip_search.SearchSettings` except the share.

    Attributes:
        shared: one search for all greedy texts of a hierarchy, earlier ones included.
    """

    kind: Literal["bayesian", "random"] = _SWIFT.kind
    context_window: Count = _SWIFT.context_window
    interval: Count = _SWIFT.interval
    bayes_interval: Count = _SWIFT.bayes_interval
    max_candidates: Count = _SWIFT.max_candidates
    patience: Count = _SWIFT.patience
    enough: NonNegativeNumber = _SWIFT.enough
    seed: Natural = _SWIFT.seed
    shared: Boolean = False

    def settings(self, share: float) -> SearchSettings:
        """Return the settings of a search for this share of all parts."""
        values = dataclasses.asdict(self)
        del values["shared"]
        return SearchSettings(share, **values)


def _parse_search(value: Any, validate_form: Callable[[Any], Any]) -> SkipSearchConfig:
    """Parse a search from ``{"kind": "random", …}``, its kind alone, or a configuration."""
    if isinstance(value, SkipSearchConfig):
        return value
    return validate_form({"kind": value} if isinstance(value, str) else value)


Search = Annotated[SkipSearchConfig, ReadAs(SkipSearchConfig, _parse_search)]
