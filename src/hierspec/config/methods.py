"""Drafting methods by name: those of this package, and those that users register.

A registered method is a level of its own class (:class:`hierspec.config.levels.MadeLevel`), whose
keys are the fields of the method's options. It is found by its name wherever a hierarchy is named:
in files, in ``drafts=[...]`` and with ``--draft``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_type_hints

from hierspec.errors import HierspecError
from hierspec.utils import plugins
from hierspec.utils.schema import checked_dataclass

from .levels import AnyModelConfig, MadeLevel, TargetInfo
from .look_ups import AnyLookUpConfig, LookUpConfig, check_not_of_look_ups

if TYPE_CHECKING:
    from hierspec.lm.base import LevelModel

Make = TypeVar("Make", bound=Callable[[Any, TargetInfo], Any])

GROUP = "hierspec.methods"  # of entry points
BUILT_IN = (
    *(cls.__dataclass_fields__["method"].default for cls in get_args(AnyModelConfig)),
    *(cls.__dataclass_fields__["method"].default for cls in get_args(AnyLookUpConfig)),
    "concatenate",
)
_REGISTERED: dict[str, type[MadeLevel]] = {}
_TAKEN = frozenset(dir(LookUpConfig))  # names of every level, which no option may have


def register_method(name: str, options: type | None = None) -> Callable[[Make], Make]:
    """Return a decorator that makes a drafting method known by a name.

    It decorates a function, or a class, that is called as ``make(options, target)`` for each level
    of the method and returns what drafts there: a :class:`hierspec.LookUp`, a
    :class:`hierspec.NextTokenModel`, or any other :class:`hierspec.lm.base.LanguageModel`.

    Args:
        options: a dataclass, whose fields are the level's keys in a hierarchy file; ``make`` gets
            an instance. Without any it gets ``None``.

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
        known = _REGISTERED.get(name)
        if name in BUILT_IN or (known is not None and _identity(known.maker) != _identity(make)):
            raise HierspecError(f"there is a method called {name!r} already: choose another name")
        _REGISTERED[name] = _level_class(name, options, make)
        return make

    return decorate


def names() -> list[str]:
    """List the names of all methods; packages that offer some are not imported."""
    return list(dict.fromkeys((*BUILT_IN, *_REGISTERED, *plugins.entry_point_names(GROUP))))


def find(name: str) -> type[MadeLevel] | None:
    """Return the level of a registered method; ``None`` if none has the name.

    Raises:
        HierspecError: the plug-in that offers it cannot be imported.
    """
    if name not in _REGISTERED and name not in BUILT_IN:
        plugins.load_inherited()
        if name not in _REGISTERED and name in plugins.entry_point_names(GROUP):
            plugins.load_entry_point(GROUP, name)
            if name not in _REGISTERED:
                raise HierspecError(f"the package that offers method {name!r} registers none")
    return _REGISTERED.get(name)


def copies(method: Any) -> bool:
    """Return whether levels of a registered method are known to copy text."""
    return method in _REGISTERED and issubclass(_REGISTERED[method], LookUpConfig)


def parse_short(name: str, value: str | None) -> dict[str, Any] | None:
    """Return the level that ``NAME``, or ``NAME:VALUE`` with its first option, stands for.

    ``None``: no method is registered by that name.

    Raises:
        HierspecError: a value for a method without options.
    """
    level = find(name)
    if level is None:
        return None
    own = [f.name for f in dataclasses.fields(level) if f.name not in _TAKEN]
    if value is not None and not own:
        raise HierspecError(f"draft '{name}:{value}': {name} has no options: write {name}")
    return {"method": name, **({} if value is None else {own[0]: value})}


def _identity(make: Any) -> tuple[Any, Any]:
    return getattr(make, "__module__", None), getattr(make, "__qualname__", make)


def _level_class(name: str, options: type | None, make: Callable[..., Any]) -> type[MadeLevel]:
    """Return the class of a method's levels: the keys of every level, and its options."""
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

    def check_options(level: Any) -> None:
        _call(options_of, level, at=options or make)

    def make_model(level: Any, target: TargetInfo) -> LevelModel:
        return _checked(_call(make, options_of(level), target, at=make), level, target)

    body: dict[str, Any] = {
        "__doc__": f"A level of method ``{name}``, which is registered.",
        "__module__": __name__,
        "__post_init__": check_options,
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
        base = LookUpConfig if is_look_up else MadeLevel
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
    """Return what a method made, told of the target's vocabulary.

    Raises:
        HierspecError: it cannot draft for this target.
    """
    from hierspec.drafters.base import LookUp
    from hierspec.lm.base import LanguageModel
    from hierspec.lm.next_token import NextTokenModel

    if isinstance(model, LookUp | NextTokenModel):
        # Not by assignment: it may be a frozen dataclass.
        object.__setattr__(model, "vocab_size", target.vocab_size)
        if not getattr(model, "name", None):
            object.__setattr__(model, "name", level.method)
    if isinstance(model, LookUp):
        check_not_of_look_ups(level)
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
