"""Verification rules by name: what configuration files, cases and plug-ins refer to."""

from __future__ import annotations

from typing import Any

from hierspec.core.rules import Verifier
from hierspec.errors import HierspecError

_RULES: dict[str, Verifier] = {}


def register(rule: Verifier, *aliases: str) -> Verifier:
    """Make a rule known by its name (and aliases) to configuration files and ``certify``.

    The same class may be registered again, as a notebook does.

    Raises:
        HierspecError: it has no name, or another rule has it.
    """
    own = getattr(rule, "name", None)
    if not isinstance(own, str) or not own:
        raise HierspecError(
            f'{type(rule).__name__} has no name to be found by: add name = "…" to it'
        )
    for name in (own, *aliases):
        known = type(_RULES.get(name, rule))
        if (known.__module__, known.__qualname__) != (
            type(rule).__module__,
            type(rule).__qualname__,
        ):
            raise HierspecError(f"there is a verifier called {name!r} already: choose another name")
    _RULES.update(dict.fromkeys((own, *aliases), rule))
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
