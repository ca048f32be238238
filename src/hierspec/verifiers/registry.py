"""Verification rules by name: what configuration files, cases and plug-ins refer to.

A built-in rule's module is imported when the rule is first used, so that a file which names one can
be read, or refused, before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hierspec.errors import HierspecError

if TYPE_CHECKING:
    from hierspec.core.rules import Verifier

# a rule's name → its module in this package, and its class
_BUILT_IN = {
    "block": ("block", "Block"),
    "block-rrs": ("multi_draft", "BlockRRS"),
    "induced-block": ("induced", "InducedBlock"),
    "leading": ("leading", "Leading"),
    "lenient": ("lenient", "Lenient"),
    "match": ("match", "Match"),
    "naive": ("naive", "Naive"),
    "rrs": ("multi_draft", "RRS"),
    "rrs-without-replacement": ("multi_draft", "DistinctRRS"),
    "tokenwise": ("tokenwise", "Tokenwise"),
    "traversal": ("traversal", "Traversal"),
    "uncapped": ("block", "Uncapped"),
}
_ALIASES = {"branch": "block"}  # P4's capped branch resampling is block: docs/branch-is-block.md
_RULES: dict[str, Verifier] = {}  # those registered by users, and built-in ones used so far


def register(rule: Verifier, *aliases: str) -> Verifier:
    """Make a rule known by its name (and aliases) to configuration files and ``certify``.

    The same class may be registered again, as a notebook does.

    Raises:
        HierspecError: it has no name, or another rule has that name.
    """
    rule_name = getattr(rule, "name", None)
    if not isinstance(rule_name, str) or not rule_name:
        raise HierspecError(
            f'{type(rule).__name__} has no name to be found by: add name = "…" to it'
        )
    for name in (rule_name, *aliases):
        if _class_of(name) not in (None, (type(rule).__module__, type(rule).__qualname__)):
            raise HierspecError(f"there is a verifier called {name!r} already: choose another name")
    _RULES.update(dict.fromkeys((rule_name, *aliases), rule))
    return rule


def names() -> list[str]:
    """List all names and aliases, sorted."""
    return sorted({*_BUILT_IN, *_ALIASES, *_RULES})


def canonical_name(name: str) -> str:
    """Return a rule's own name from that name or an alias, without importing the rule.

    Raises:
        HierspecError: no such rule (the message lists those there are).
    """
    if name in _RULES:
        return _RULES[name].name
    canonical = _ALIASES.get(name, name)
    if canonical not in _BUILT_IN:
        raise HierspecError(f"no verifier called {name!r}; there are: {', '.join(names())}")
    return canonical


def get(name: str, **options: Any) -> Verifier:
    """Return the rule of that name, with its options.

    Options are ``top_m`` of ``leading`` and ``lenience`` of ``lenient``.

    Raises:
        HierspecError: no such rule (the message lists those there are), or no such option.
    """
    name = canonical_name(name)
    if name not in _RULES:
        module, kind = _BUILT_IN[name]
        _RULES[name] = getattr(import_module(f".{module}", __package__), kind)()
    return _RULES[name].with_options(**options)


def _class_of(name: str) -> tuple[str, str] | None:
    """Return module and class of the rule that has a name; ``None`` if no rule has it."""
    if name in _RULES:
        return type(_RULES[name]).__module__, type(_RULES[name]).__qualname__
    if name in names():
        module, kind = _BUILT_IN[canonical_name(name)]
        return f"{__package__}.{module}", kind
    return None
