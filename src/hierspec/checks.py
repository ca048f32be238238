"""Checks of what people write in files: each refusal names the place and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any


def strict(data: Mapping[str, Any], allowed: list[str], where: str) -> dict[str, Any]:
    """``data`` as a dict, if all its keys are allowed; the error names the nearest valid one."""
    for key in data:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, n=1, cutoff=0.0)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{where}: unknown key {key!r}; {hint}keys: {', '.join(allowed)}")
    return dict(data)


def positive(value: Any, where: str) -> None:
    """Refuse what is no whole number of at least 1, naming the place."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{where} must be a whole number of at least 1, not {value!r}")


def is_number(value: Any) -> bool:
    """A number that is not NaN; booleans are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
