"""What a number must be, wherever it comes from: files, options and Python callers."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from hierspec.errors import HierspecError

MIN_TEMPERATURE = 1e-5  # below it float32 scores divided by it lose the digits that matter


def check_temperature(value: Any, where: str) -> None:
    """Check a temperature that a request could have too.

    Raises:
        HierspecError: it is neither 0 (greedy) nor a finite number that leaves scores digits.
    """
    if not is_temperature(value):
        raise HierspecError(
            f"{where} must be 0 (greedy) or a number of at least {MIN_TEMPERATURE}, not {value!r}"
        )


def is_temperature(value: Any) -> bool:
    """Whether a request could have it: 0 is greedy, and tiny ones lose all digits."""
    return is_number(value) and (value == 0 or MIN_TEMPERATURE <= value < math.inf)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number that is not NaN; booleans are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
