"""Verification rules by name: what configuration files, cases and plug-ins refer to."""

from __future__ import annotations

from typing import Any

from hierspec.core.rules import Verifier
from hierspec.errors import HierspecError

_RULES: dict[str, Verifier] = {}


def register(rule: Verifier, *aliases: str) -> Verifier:
    """Make a rule known by its name (and aliases) to configuration files and ``certify``."""
    _RULES.update(dict.fromkeys((rule.name, *aliases), rule))
    return rule


def names() -> list[str]:
    """All names and aliases, sorted."""
    return sorted(_RULES)


def get(name: str, **options: Any) -> Verifier:
    """The rule of that name, with its options (``top_m`` of ``leading``, ``lenience`` of
    ``lenient``).

    Raises:
        HierspecError: no such rule (the message lists those there are), or no such option.
    """
    if name not in _RULES:
        raise HierspecError(f"no verifier called {name!r}; there are: {', '.join(names())}")
    return _RULES[name].with_options(**options)
