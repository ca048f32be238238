"""Verification rules by name: what configuration files, cases and plug-ins refer to.

A built-in rule's module is imported when the rule is first used, so that a file which names one can
be read, or refused, before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from hierspec.errors import HierspecError
from hierspec.utils import plugins
from hierspec.utils.schema import nearest_key, short_repr

if TYPE_CHECKING:
    from hierspec.core.rules import Verifier

RuleOrClass = TypeVar("RuleOrClass")  # an instance or a class

GROUP = "hierspec.verifiers"  # of entry points

# a rule's name → its module in this package, and its class
_BUILT_IN = {
    "block": ("block", "Block"),
    "block-rrs": ("multi_draft", "BlockRRS"),
    "match": ("match", "Match"),
    "rrs": ("multi_draft", "RRS"),
    "rrs-without-replacement": ("multi_draft", "DistinctRRS"),
    "tokenwise": ("tokenwise", "Tokenwise"),
    "traversal": ("traversal", "Traversal"),
}
_ALIASES = {"branch": "block"}  # P4's capped branch resampling is block: docs/branch-is-block.md
_RULES: dict[str, Verifier] = {}  # those registered by users, and built-in ones used so far


def register(rule: RuleOrClass, *aliases: str) -> RuleOrClass:
    """Make a rule, or a class of rules, known by its name (and aliases) wherever rules are named.

    The same class may be registered again, as a notebook does. It decorates a class, too.

    Raises:
        HierspecError: it is no rule, has no name, another rule has that name, or it has a shortcut
            of its own, by which it would decide otherwise than it is enumerated.
    """
    from hierspec.core.rules import Verifier

    given = rule
    if isinstance(rule, type):
        rule = rule()
    if not isinstance(rule, Verifier):
        raise HierspecError(f"register takes a hierspec.Verifier, not {type(rule).__name__}")
    rule_name = getattr(rule, "name", None)
    if not isinstance(rule_name, str) or not rule_name:
        raise HierspecError(
            f'{type(rule).__name__} has no name to be found by: add name = "…" to it'
        )
    if type(rule).__hash__ is None:  # as a dataclass has none
        raise HierspecError(f"{type(rule).__name__} is not hashable: @dataclass(frozen=True) is")
    shortcuts = ["decide"]
    if rule.exact_for(greedy=True):  # a lossy one may keep greedy tokens by its own measure
        shortcuts += ["greedy", "accepted_by_scores"]
    own = {name for cls in type(rule).__mro__ if plugins.is_users(cls) for name in vars(cls)}
    for shortcut in shortcuts:
        if shortcut in own:
            raise HierspecError(
                f"{type(rule).__name__} defines {shortcut}, which certify does not check: leave it "
                "out, so that acceptance(batch) decides"
            )
    for name in (rule_name, *aliases):
        if (known := _identity_of(name)) and known != plugins.identity(type(rule)):
            raise HierspecError(f"there is a verifier called {name!r} already: choose another name")
    _RULES.update(dict.fromkeys((rule_name, *aliases), rule))
    plugins.REGISTERED.append(rule)
    return given


def names() -> list[str]:
    return sorted({*_BUILT_IN, *_ALIASES, *_RULES, *plugins.entry_point_names(GROUP)})


def canonical_name(name: str) -> str:
    """Return a rule's own name from that name or an alias, without importing the rule.

    Raises:
        HierspecError: no such rule (the message lists those there are).
    """
    canonical = _ALIASES.get(name, name)
    if name not in _RULES and canonical not in _BUILT_IN:
        if name in plugins.entry_point_names(GROUP):
            return name
        _load(name)
    if name in _RULES:
        return _RULES[name].name
    if canonical not in _BUILT_IN:
        raise HierspecError(unknown_name_message(name))
    return canonical


def unknown_name_message(name: Any) -> str:
    """Return ``no verifier called 'x'; did you mean 'y'? There are: …``, and how to add one."""
    known = names()
    near = nearest_key(name, known) if isinstance(name, str) else None
    hint = f"did you mean {near!r}? There are" if near else "there are"
    return (
        f"no verifier called {short_repr(name)}; {hint}: {', '.join(known)}; "
        "--plugin FILE.py adds those of a file of yours"
    )


def get(name: str, **options: Any) -> Verifier:
    """Return the rule of that name, with its options.

    Options are those that the rule declares, such as ``top_m`` of ``leading``.

    Raises:
        HierspecError: no such rule (the message lists those there are), or no such option.
    """
    name = canonical_name(name)
    if name not in _RULES and name not in _BUILT_IN:
        _load(name)
    if name not in _RULES:
        module, kind = _BUILT_IN[name]
        _RULES[name] = getattr(import_module(f".{module}", __package__), kind)()
    return _RULES[name].with_options(**options)


def _load(name: str) -> None:
    plugins.load_inherited()
    if name not in _RULES:
        offered = plugins.load_entry_point(GROUP, name)
        if offered is not None:
            register(offered)


def _identity_of(name: str) -> tuple[Any, Any] | None:
    if name in _RULES:
        return plugins.identity(type(_RULES[name]))
    if name in _BUILT_IN or name in _ALIASES:
        module, kind = _BUILT_IN[canonical_name(name)]
        return plugins.identity(getattr(import_module(f".{module}", __package__), kind))
    return None
