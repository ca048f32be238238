"""Verification rules by name: what configuration files, cases and plug-ins refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError

if TYPE_CHECKING:
    pass
from hierspec.core.rules import Verifier

_RULES: dict[str, Verifier] = {}


def register(rule: Verifier, *aliases: str) -> Verifier:
    """Make a rule known by its name (and aliases) to configuration files and ``certify``."""
    for name in (rule.name, *aliases):
        _RULES[name] = rule
    return rule


def names() -> list[str]:
    return sorted(_RULES)


def get(name: str, **options: Any) -> Verifier:
    """The rule of that name, with its options (``top_m`` of ``leading``).

    Raises:
        ValueError: no such rule (the message lists those there are), or no such option.
    """
    if name not in _RULES:
        raise HierspecError(f"no verifier called {name!r}; there are: {', '.join(names())}")
    return _RULES[name].with_options(**options)
