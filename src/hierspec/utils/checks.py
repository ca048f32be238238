"""Checks of what people write in files: each refusal names the place and the fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from hierspec.errors import HierspecError

MIN_TEMPERATURE = 1e-5  # below it float32 scores divided by it lose the digits that matter


def strict(data: Mapping[str, Any], allowed: list[str], where: str) -> dict[str, Any]:
    """``data`` as a dict, if all its keys are allowed; the error names the nearest valid one."""
    for key in data:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1, cutoff=0.0)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise HierspecError(f"{where}: unknown key {key!r}; {hint}keys: {', '.join(allowed)}")
    return dict(data)


def positive(value: Any, where: str) -> None:
    """Refuse what is no whole number of at least 1, naming the place."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HierspecError(f"{where} must be a whole number of at least 1, not {value!r}")


def boolean(value: Any, where: str) -> None:
    """Refuse what is neither true nor false, naming the place."""
    if not isinstance(value, bool):
        raise HierspecError(f"{where} must be true or false, not {value!r}")


def temperature(value: Any, where: str) -> None:
    """Refuse what no request could have either: 0 is greedy, and tiny ones lose all digits."""
    if not is_number(value) or not (value == 0 or MIN_TEMPERATURE <= value < math.inf):
        raise HierspecError(
            f"{where} must be 0 (greedy) or a number of at least {MIN_TEMPERATURE}, not {value!r}"
        )


def is_number(value: Any) -> TypeGuard[float]:
    """A number that is not NaN; booleans are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
