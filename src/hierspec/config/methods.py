"""Drafting methods by name: those of this package, and those that others register.

A method is a class of levels (:class:`hierspec.config.levels.LevelConfig`) and is found by its name
wherever a hierarchy is named: in files, in ``drafts=[...]`` and with ``--draft``. Those of this
package register themselves as plug-ins do: each is a file of ``hierspec.methods`` that has the
method's name, and is imported when the name is first used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

from hierspec.errors import HierspecError
from hierspec.utils import plugins
from hierspec.utils.files import expand_user
from hierspec.utils.schema import checked_dataclass, nearest_key

from .levels import (
    Capabilities,
    LevelConfig,
    LookUpConfig,
    TargetInfo,
    method_name,
    validate_not_of_look_ups,
)

if TYPE_CHECKING:
    from hierspec.lm.base import LevelModel

Make = TypeVar("Make", bound=Callable[[Any, TargetInfo], Any])
Level = TypeVar("Level", bound=LevelConfig)

GROUP = "hierspec.methods"  # of entry points; and the package of the built-in ones
KEYS_GROUP = "hierspec.method_keys"
CONCATENATE = "concatenate"  # a level that is no method: :mod:`.chains`
_REGISTERED: dict[str, type[LevelConfig]] = {}
_TAKEN = frozenset(dir(LookUpConfig))  # names of every level, which no option may have


def register_level(level: type[Level]) -> type[Level]:
    """Make a class of levels known by the default of its key ``method``; decorates it.

    Raises:
        HierspecError: the name is taken. The same class may be registered again.
    """
    _add(method_name(level), level, level)
    return level


def register_method(
    name: str, options: type | None = None, capabilities: Capabilities | None = None
) -> Callable[[Make], Make]:
    """Return a decorator that makes a drafting method known by a name.

    It makes the method's class of levels, of the keys of every level and of these options.

    It decorates a function, or a class, that is called as ``make(options, target)`` for each level
    of the method and returns what drafts there: a :class:`hierspec.LookUp`, a
    :class:`hierspec.NextTokenModel`, or any other :class:`hierspec.lm.base.LanguageModel`.

    Args:
        options: a dataclass, whose fields are the level's keys in a hierarchy file; ``make`` gets
            an instance. Without any it gets ``None``.
        capabilities: default: of one that verifies, or, for a class of look-ups, of one that
            copies; that ``auto`` does not plan.

    Raises:
        HierspecError: the name is taken, or is no name; or the options are no dataclass, have types
            that no file can hold, or are called like a key of every level. The same function may be
            registered again, as a notebook does.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise HierspecError(f"a method's name has letters, digits, - and _ only, not {name!r}")
    if options is not None and not (
        isinstance(options, type) and dataclasses.is_dataclass(options)
    ):
        raise HierspecError(f"method {name!r}: its options are a class made by @dataclass")

    def decorate(make: Make) -> Make:
        if not callable(make):
            raise HierspecError(
                f"method {name!r}: decorate a function or a class, called as make(options, target)"
            )
        _validate_arity(name, make)
        _add(name, _level_class(name, options, make, capabilities), make)
        return make

    return decorate


def _validate_arity(name: str, make: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # of some in C
        return
    try:
        signature.bind(None, None)
    except TypeError:
        asked = "__init__(self, options, target)" if isinstance(make, type) else "(options, target)"
        raise HierspecError(
            f"method {name!r}: {getattr(make, '__name__', make)}{signature} is called with options "
            f"and the target: give it {asked}"
        ) from None


def names() -> list[str]:
    known = (*_built_in(), *_REGISTERED, *plugins.entry_point_names(GROUP))
    return list(dict.fromkeys(known))


def find(name: str, keys: Iterable[str] = ()) -> type[LevelConfig] | None:
    """Return the class of a method's levels with these keys; ``None`` if none has the name.

    A package adds a key to a method by an entry point of ``hierspec.method_keys``, which has the
    name ``METHOD.KEY`` and names a class derived from the method's own.
    """
    if name not in _REGISTERED and name in _built_in():
        import_module(f"{GROUP}.{name}")
    elif name not in _REGISTERED:
        plugins.load_inherited()
        offered = None if name in _REGISTERED else plugins.load_entry_point(GROUP, name)
        if isinstance(offered, type) and issubclass(offered, LevelConfig):
            register_level(offered)
        elif offered is not None and name not in _REGISTERED:
            raise HierspecError(f"the package that offers method {name!r} does not register it")
    added = (plugins.load_entry_point(KEYS_GROUP, f"{name}.{key}") for key in keys)
    return next(filter(None, added), _REGISTERED.get(name))


def built_in() -> list[type[LevelConfig]]:
    """Return the methods of this package, those first whose calls cost least."""
    levels = [level for name in _built_in() if (level := find(name)) is not None]
    return sorted(levels, key=lambda level: level.capabilities.cost)


def short_forms() -> list[str]:
    """List the short forms of this package's methods, cheapest first, as help texts show them."""
    return [form for level in built_in() for form in level.short_forms]


def meant(word: str) -> str | None:
    """Return the method that a word is, or is short for; ``None`` if it is none's."""
    with contextlib.suppress(HierspecError):
        level = {"method": word} if find(word) else from_short(word)
        return level["method"] if level else None
    return None


def from_short(draft: str) -> dict[str, Any] | None:
    """Return the level of a short form, as of ``--draft``; ``None`` if it is no method's.

    Raises:
        HierspecError: its method does not have the value; or it is nearly the name of one.
    """
    name, colon, value = draft.partition(":")
    other = find(name) or find(name.replace("-", "_"))
    for level in dict.fromkeys((*built_in(), *((other,) if other is not None else ()))):
        options = level.from_short(draft)
        if options is not None:
            return {"method": method_name(level), **options}
    forms = {form.partition(":")[0]: form for form in sorted(short_forms(), reverse=True)}
    for other_name in names():
        forms.setdefault(other_name, other_name)
    near = nearest_key(name, forms.keys() - {"draft_model"}, cutoff=0.8)
    if near is not None and "/" not in name and not expand_user(draft).exists():
        meant = f"{near}:{value}" if colon and near != name else forms[near]
        raise HierspecError(
            f"draft {draft!r} is neither a method nor a folder: did you mean {meant!r}?"
        )
    return None


@cache
def _built_in() -> tuple[str, ...]:
    """Return the names of this package's methods, which are those of the files of their room."""
    folder = Path(__file__).parents[1] / GROUP.rpartition(".")[2]
    return tuple(module.name for module in iter_modules([str(folder)]) if module.name[0] != "_")


def _add(name: str, level: type[LevelConfig], made_of: Any) -> None:
    """Register a method; the same class or function may come again, as in a notebook."""
    known = _REGISTERED.get(name)
    if name in (*_built_in(), CONCATENATE):
        is_taken = getattr(made_of, "__module__", None) != f"{GROUP}.{name}"
    else:
        is_taken = known is not None and (
            plugins.identity(known.maker or known) != plugins.identity(made_of)
        )
        plugins.REGISTERED.append(level)
    if is_taken:
        raise HierspecError(f"there is a method called {name!r} already: choose another name")
    _REGISTERED[name] = level


def _level_class(
    name: str,
    options: type | None,
    make: Callable[..., Any],
    capabilities: Capabilities | None,
) -> type[LevelConfig]:
    from hierspec.drafters.base import LookUp

    fields = [f for f in dataclasses.fields(options) if f.init] if options is not None else []
    if clash := [f.name for f in fields if f.name in _TAKEN]:
        raise HierspecError(
            f"method {name!r}: every level has a key {clash[0]!r}: call the option another name"
        )

    def options_of(level: Any) -> Any:
        if options is None:
            return None
        return options(**{field.name: getattr(level, field.name) for field in fields})

    def validate_options(level: Any) -> None:
        _call(options_of, level, at=options or make)

    def make_model(level: Any, target: TargetInfo) -> LevelModel:
        return _checked(_call(make, options_of(level), target, at=make), level, target)

    body: dict[str, Any] = {
        "__doc__": f"A level of method ``{name}``, which is registered.",
        "__module__": __name__,
        "__post_init__": validate_options,
        "make": make_model,
        "maker": staticmethod(make),
        "method": name,
    }
    try:
        types = get_type_hints(options, include_extras=True) if options is not None else {}
        body["__annotations__"] = {"method": Literal[name]} | {  # pyright: ignore[reportInvalidTypeForm]
            field.name: types[field.name] for field in fields
        }
        for field in fields:
            if field.default is not dataclasses.MISSING:
                body[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                body[field.name] = dataclasses.field(default_factory=field.default_factory)
        is_look_up = isinstance(make, type) and issubclass(make, LookUp)
        base = LookUpConfig if is_look_up else LevelConfig
        body["capabilities"] = capabilities or dataclasses.replace(
            base.capabilities, reads_tokenizer=True
        )
        made: type[Any] = type("RegisteredLevel", (base,), body)
        return checked_dataclass(made)
    except Exception as error:
        raise HierspecError(
            f"method {name!r}: a file cannot hold its options: {plugins.describe(error)}"
        ) from None


def _call(function: Callable[..., Any], *arguments: Any, at: Any) -> Any:
    """Call a user's function; what it raises is said with the file and the line."""
    try:
        return function(*arguments)
    except Exception as error:
        place = plugins.place_of(error) or plugins.where(at)
        raise HierspecError(f"{place}: {plugins.describe(error)}") from error


def _checked(model: Any, level: Any, target: TargetInfo) -> LevelModel:
    """Return what a method made, told of the target's vocabulary."""
    from hierspec.drafters.base import LookUp
    from hierspec.lm.base import LanguageModel
    from hierspec.lm.next_token import NextTokenModel

    if isinstance(model, LookUp | NextTokenModel):
        # Not by assignment: it may be a frozen dataclass.
        object.__setattr__(model, "vocab_size", target.vocab_size)
        if not getattr(model, "name", None):
            object.__setattr__(model, "name", level.method)
    if isinstance(model, LookUp):
        validate_not_of_look_ups(level)
    elif not isinstance(model, LanguageModel):
        raise HierspecError(
            f"{plugins.where(level.maker)}: method {level.method!r} made "
            f"{type(model).__name__}, which cannot draft: return a hierspec.LookUp or a "
            "hierspec.NextTokenModel"
        )
    elif model.vocab_size > target.vocab_size:
        raise HierspecError(
            f"{plugins.where(level.maker)}: method {level.method!r} scores {model.vocab_size} "
            f"tokens, and {target.name} has {target.vocab_size}: make it of target.vocab_size"
        )
    return model
