"""Checks of numbers and texts, the same for files, command-line options and Python callers."""

from __future__ import annotations

import math
import re
from typing import Any, TypeGuard

from hierspec.errors import HierspecError

MIN_TEMPERATURE = 1e-5  # float32 scores divided by less lose the digits that matter


HALF_CHARACTERS = re.compile(r"[\ud800-\udfff]")  # lone surrogates, which UTF-8 does not encode


def validate_temperature(value: Any, name: str) -> None:
    """Refuse a ``value`` that is no valid temperature; ``name`` is its own in the error."""
    if not is_temperature(value):
        raise HierspecError(
            f"{name} must be 0 (greedy) or finite and at least {MIN_TEMPERATURE}, not {value!r}"
        )


def is_temperature(value: Any) -> bool:
    """Return whether a request may sample at this temperature: 0 (greedy), or not too small."""
    return is_number(value) and (value == 0 or MIN_TEMPERATURE <= value < math.inf)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is an int or float other than NaN; booleans do not count."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
