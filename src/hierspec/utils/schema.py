"""What files hold, as declared types: pydantic checks, and every refusal is one line with the fix.

A file's shape is a pydantic dataclass (or any annotated type) that forbids unknown keys;
:func:`read` turns what was parsed from JSON or TOML into it. Only the edges use this: nothing in
``core``, ``verifiers`` or ``engine`` imports it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError

from hierspec.errors import HierspecError

T = TypeVar("T")

# For the dataclasses that declare a file: no unknown keys, no infinities.
CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)

# What a file says is taken as it stands: no number out of a string, no boolean out of a number.
Integer = Annotated[int, Strict()]
PositiveInteger = Annotated[int, Strict(), Field(ge=1)]
Number = Annotated[float, Strict()]
Boolean = Annotated[bool, Strict()]
NonEmptyString = Annotated[str, Field(min_length=1)]

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "dataclass_exact_type": "an object",
    "model_attributes_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "list_type": "a list",
    "tuple_type": "a list",
    "none_required": "null",
    "string_type": "a string",
    "string_too_short": "a non-empty string",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "literal_error": "{expected}",
    "union_tag_invalid": "an object whose {discriminator} is one of {expected_tags}",
    "union_tag_not_found": "an object with {discriminator}",
}


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def read(shape: type[T], data: Any, where: str) -> T:
    """``data``, parsed from a file, as a ``shape``.

    Args:
        where: the file or the part of it, as messages name it; may be empty.

    Raises:
        HierspecError: one line that names the place, what was expected there, and for an unknown
            key the nearest that there is.
    """
    try:
        return _adapter(shape).validate_python(data)
    except ValidationError as error:
        raise HierspecError(explained(error, shape, data, where)) from None


def read_json(shape: type[T], text: str | bytes, where: str) -> T:
    """The same from JSON text.

    Raises:
        HierspecError: it is not JSON either.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HierspecError(f"{where}: not valid JSON: {error}") from None
    return read(shape, data, where)


def explained(error: ValidationError, shape: Any, data: Any, where: str) -> str:
    """The first thing wrong, in one line."""
    first = error.errors(include_url=False)[0]
    kind, loc, context = first["type"], first["loc"], first.get("ctx", {})
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        inside = _place(loc[:-1], data, where)
        return f"{inside}: {unknown(str(loc[-1]), _keys(shape, loc[:-1]))}".removeprefix(": ")
    if kind in ("missing", "missing_argument"):
        return f"{_place(loc[:-1], data, where)}: {loc[-1]!r} is missing".removeprefix(": ")
    place = _place(loc, data, where)
    if kind == "value_error":  # raised by a validator of ours, whose words stand
        return f"{place}: {context['error']}".removeprefix(": ")
    expected = _EXPECTED.get(kind)
    if expected is None:
        return f"{place}: {first['msg']}, not {_short(first['input'])}".removeprefix(": ")
    return f"{place or 'it'} must be {expected.format(**context)}, not {_short(first['input'])}"


def unknown(key: str, keys: Iterable[str]) -> str:
    """``unknown key 'x'; did you mean 'y'? keys: …``; no suggestion where nothing is near."""
    keys = list(keys)
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown key {key!r}; {hint}keys: {', '.join(keys)}"


def _place(loc: Sequence[Any], data: Any, where: str) -> str:
    """``where.levels[0].verify``; steps that are no key or index of ``data`` are tags."""
    for step in loc:
        if isinstance(step, int) and isinstance(data, list | tuple) and step < len(data):
            where, data = f"{where}[{step}]", data[step]
        elif isinstance(data, Mapping) and step in data:
            where, data = f"{where}.{step}".removeprefix("."), data[step]
    return where


def _keys(shape: Any, loc: Sequence[Any]) -> list[str]:
    """The keys that the object at ``loc`` of a ``shape`` may have."""
    for step in loc:
        shape = _inside(shape, step)
    shape = _bare(shape)
    if dataclasses.is_dataclass(shape):
        return [field.name for field in dataclasses.fields(shape) if field.init]
    return list(getattr(shape, "model_fields", None) or getattr(shape, "__annotations__", {}))


def _bare(shape: Any) -> Any:
    """Without ``Annotated`` and ``| None``."""
    while get_origin(shape) is Annotated:
        shape = get_args(shape)[0]
    members = [one for one in _members(shape) if one is not type(None)]
    return _bare(members[0]) if len(members) == 1 and members[0] is not shape else shape


def _members(shape: Any) -> list[Any]:
    """Of a union its members, of anything else itself."""
    return list(get_args(shape)) if get_origin(shape) in (Union, UnionType) else [shape]


def _inside(shape: Any, step: Any) -> Any:
    """The type one step further in: an element, a field, or the tagged member of a union."""
    shape = _bare(shape)
    members = _members(shape)
    if len(members) > 1:
        names = {getattr(_bare(one), "__name__", ""): one for one in members}
        tagged = [one for one in members if step in _tags(_bare(one))]
        return names.get(str(step)) or (tagged[0] if tagged else _inside(members[0], step))
    arguments = get_args(shape)
    if isinstance(step, int) and arguments:
        return arguments[0]
    if get_origin(shape) in (dict, Mapping) and len(arguments) == 2:
        return arguments[1]
    return Any if arguments else get_type_hints(shape, include_extras=True).get(str(step), Any)


def _tags(member: Any) -> set[Any]:
    """What tells a member of a tagged union from the others: its literals."""
    if not isinstance(member, type):
        return set()
    hints = get_type_hints(member).values()
    return {tag for hint in hints if get_origin(hint) is Literal for tag in get_args(hint)}


def _short(value: Any) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
