"""Schemas for files and options that people write, checked by pydantic, with one-line errors.

:func:`declared` makes frozen dataclasses, filled in the same way by files and Python callers, and
:func:`read` converts parsed JSON or TOML to one. Only the edges import this module: nothing in
``core``, ``verifiers`` or ``engine`` does (docs/adr/0006).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import pydantic.dataclasses
from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, core_schema

from hierspec.errors import HierspecError
from hierspec.utils.checks import MIN_TEMPERATURE, is_temperature

T = TypeVar("T")

CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)  # no unknown keys, no infinities


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What the errors of a type say was expected, whatever is wrong with the value.

    The last part of an ``Annotated`` type: ``Annotated[int, Field(ge=1), Expected("a size")]``.
    """

    what: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), "expected", custom_error_message=self.what
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ReadAs:
    """The ``form`` that a type has in files, and the conversion from it.

    Attributes:
        form: an annotated type.
        convert: (value, read) → a value of the annotated type; ``read`` checks against ``form``.
    """

    form: Any
    convert: Callable[[Any, Callable[[Any], Any]], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        form = handler.generate_schema(self.form)
        return core_schema.no_info_wrap_validator_function(self.convert, form)


# Values are not converted: no number from a string, no boolean from a number.
Integer = Annotated[int, Strict(), Expected("an integer")]
Natural = Annotated[int, Strict(), Field(ge=0), Expected("an integer of at least 0")]
PositiveInteger = Annotated[int, Strict(), Field(ge=1), Expected("an integer of at least 1")]
Number = Annotated[float, Strict(), Expected("a number")]
NonNegativeNumber = Annotated[float, Strict(), Field(ge=0), Expected("a number of at least 0")]
Boolean = Annotated[bool, Strict(), Expected("true or false")]
NonEmptyString = Annotated[str, Strict(), Field(min_length=1), Expected("a non-empty string")]


def _temperature(value: float) -> float:
    if not is_temperature(value):
        raise ValueError
    return value


Temperature = Annotated[
    float,
    Strict(),
    AfterValidator(_temperature),
    Expected(f"0 (greedy) or a number of at least {MIN_TEMPERATURE}"),
]

MAX_COUNT = 4096  # the largest number of tokens of a draft, of drafts, of repetitions


def _countable(value: int) -> int:
    if value > MAX_COUNT:
        raise ValueError(
            f"{value if value < 10**9 else 'it'} is more than {MAX_COUNT}, the most there is"
        )
    return value


Count = Annotated[PositiveInteger, AfterValidator(_countable)]

# pydantic's name of an error, for types without Expected → what the error says was expected
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "dataclass_exact_type": "an object",
    "model_attributes_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "an integer",
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
}
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def declared(cls: type[T]) -> type[T]:
    """Make a class a frozen, slotted, keyword-only dataclass that checks its fields.

    Instances made in Python are checked like those read from files: there too unknown fields and
    wrong values raise :class:`HierspecError`.
    """
    checking = pydantic.dataclasses.dataclass(config=CLOSED, frozen=True, slots=True, kw_only=True)
    made: Any = checking(cls)
    check = made.__init__

    @functools.wraps(check)
    def init(self: Any, **values: Any) -> None:
        try:
            check(self, **values)
        except ValidationError as error:
            raise HierspecError(_explain(error, made, values, cls.__name__)) from None

    made.__init__ = init
    return made


@functools.cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


@overload
def read(shape: type[T], data: Any, where: str) -> T: ...
@overload
def read(shape: Any, data: Any, where: str) -> Any: ...
def read(shape: Any, data: Any, where: str) -> Any:
    """Convert ``data``, parsed from a file, to ``shape``: a declared class or any annotated type.

    Args:
        where: the name of the file, or of a part of it, in errors; may be empty.

    Raises:
        HierspecError: one line that names the place, what was expected there, and for an unknown
            key the nearest valid one.
    """
    try:
        return _adapter(shape).validate_python(data)
    except RecursionError:
        raise HierspecError(f"{where or 'it'}: nested too deeply to be read") from None
    except ValidationError as error:
        raise HierspecError(_explain(error, shape, data, where)) from None


def read_json(shape: type[T], text: str | bytes, where: str) -> T:
    """Convert JSON text as :func:`read` does.

    Raises:
        HierspecError: as :func:`read`, or the text is not JSON.
    """
    return read(shape, parse_json(text, where), where)


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON text.

    Raises:
        HierspecError: it is not JSON, repeats a key, or is nested too deeply.
    """

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise HierspecError(f"{where}: {twice!r} is said twice: leave one of them out")
        return found

    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except RecursionError:
        raise HierspecError(f"{where}: nested too deeply to be anything of hierspec's") from None
    except HierspecError:
        raise
    except ValueError as error:  # also for bytes that are not text
        why = str(error) if text.strip() else "there is nothing in it"
        raise HierspecError(f"{where}: not valid JSON: {why}") from None


def json_object(text: str | bytes, where: str, what: str) -> dict[str, Any]:
    """Parse JSON text that must be an object; errors call it ``what``: ``a case``.

    Raises:
        HierspecError: as :func:`parse_json`, or it is a list, a number, ….
    """
    data = parse_json(text, where)
    if not isinstance(data, dict):
        raise HierspecError(f"{where}: {what} is a JSON object, not {type(data).__name__}")
    return data


def error_at(at: Sequence[str | int], why: str) -> PydanticCustomError:
    """Return the error that a validator raises about the place ``at`` inside its value."""
    return PydanticCustomError("misplaced", "{why}", {"at": tuple(at), "why": why})


def _explain(error: ValidationError, shape: Any, data: Any, where: str) -> str:
    """Return the first error in one line; an unknown key comes before the key it should be."""
    errors = error.errors(include_url=False)
    first = next((each for each in errors if each["type"] in _UNKNOWN_KEY), errors[0])
    kind, loc, context = first["type"], first["loc"], first.get("ctx", {})
    inside = _place(loc[:-1], data, where)
    at = context.get("at", ())
    place = _place((*loc, *at), data, where)
    if at and isinstance(at[-1], str) and not place.endswith(at[-1]):  # a default is at fault
        place = _step(place, at[-1])
    if kind in _UNKNOWN_KEY:
        return _join(inside, unknown_key_message(str(loc[-1]), _keys(_at(shape, loc[:-1]))))
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return _join(inside, f"{loc[-1]!r} is missing")
    if kind == "union_tag_invalid":
        key, tags = (context[name].replace("'", "") for name in ("discriminator", "expected_tags"))
        tag = first["input"][key]
        near = nearest_key(str(tag), tags.split(", "))
        hint = f"did you mean {near!r}? There are" if near else "there are"
        return f"{_step(place, key)} is {_short(tag)}; {hint}: {tags}"
    if kind == "union_tag_not_found":
        name = context["discriminator"]
        members = [_bare(member) for member in _members(_at(shape, loc))]
        tags = [tag for member in members for tag in _tags(member, name.strip("'"))]
        return _join(place, f"{name} is missing; there are: {', '.join(tags)}")
    if kind in ("value_error", "misplaced"):  # raised by a validator of ours, with its own text
        return _join(place, str(context.get("error", context.get("why"))))
    expected = first["msg"] if kind == "expected" else _EXPECTED.get(kind)
    if expected is None:
        return _join(place, f"{first['msg']}, not {_short(first['input'])}")
    return f"{place or 'it'} must be {expected.format(**context)}, not {_short(first['input'])}"


def one_line_repr(value: Any) -> str:
    """Return ``repr`` in one line; a torch module is its class's name."""
    if hasattr(value, "named_modules"):
        return f"<{type(value).__name__}>"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(one_line_repr, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {one_line_repr(v)}" for k, v in value.items()) + "}"
    return " ".join(repr(value).split())


def check_keys(data: Mapping[str, Any], keys: Sequence[str], where: str) -> dict[str, Any]:
    """Return ``data`` as a dict, provided that it has no other keys than ``keys``.

    Raises:
        HierspecError: naming the first other key, and the nearest valid one.
    """
    for key in data:
        if key not in keys:
            raise HierspecError(_join(where, unknown_key_message(str(key), keys)))
    return dict(data)


def unknown_key_message(key: str, keys: Iterable[str]) -> str:
    """Return ``unknown key 'x'; did you mean 'y'? keys: …``, with a suggestion if one is near."""
    keys = list(keys)
    near = nearest_key(key, keys)
    hint = f"did you mean {near!r}? " if near else ""
    return f"unknown key {key!r}; {hint}keys: {', '.join(keys)}"


def nearest_key(key: str, keys: Iterable[str]) -> str | None:
    """Return the valid key most similar to a wrong one; ``None`` if none is similar."""
    return next(iter(difflib.get_close_matches(key, list(keys), n=1, cutoff=0.6)), None)


def _join(place: str, why: str) -> str:
    return f"{place}: {why}" if place else why


def _place(loc: Sequence[Any], data: Any, where: str) -> str:
    """Return ``where.levels[0].verify``; steps not in ``data`` are tags of unions, left out."""
    for step in loc:
        if isinstance(step, int) and isinstance(data, list | tuple) and step < len(data):
            where, data = f"{where}[{step}]", data[step]
        elif isinstance(data, Mapping) and step in data:
            where, data = _step(where, step), data[step]
        elif dataclasses.is_dataclass(data) and hasattr(data, str(step)):
            where, data = _step(where, step), getattr(data, str(step))
    return where


def _step(where: str, key: Any) -> str:
    if not str(key).isidentifier():
        return f"{where}[{key!r}]"
    return f"{where}.{key}".removeprefix(".")


def _keys(shape: Any) -> list[str]:
    """Return the keys that an object of this type may have."""
    if dataclasses.is_dataclass(shape):
        return [field.name for field in dataclasses.fields(shape) if field.init]
    return list(getattr(shape, "model_fields", None) or getattr(shape, "__annotations__", {}))


def _at(shape: Any, loc: Sequence[Any]) -> Any:
    """Return the type at the place ``loc`` in a type."""
    for step in loc:
        shape = _inside(shape, step)
    return _bare(shape)


def _bare(shape: Any) -> Any:
    """Return a type without ``Annotated`` and ``| None``, with forward references resolved."""
    while get_origin(shape) is Annotated:
        shape, *metadata = get_args(shape)
        shape = next((each.form for each in metadata if isinstance(each, ReadAs)), shape)
    if isinstance(shape, ForwardRef):
        return getattr(sys.modules[str(shape.__forward_module__)], shape.__forward_arg__)
    members = [member for member in _members(shape) if member is not type(None)]
    return _bare(members[0]) if len(members) == 1 and members[0] is not shape else shape


def _members(shape: Any) -> list[Any]:
    """Return the members of a union; of any other type, the type."""
    return list(get_args(shape)) if get_origin(shape) in (Union, UnionType) else [shape]


def _inside(shape: Any, step: Any) -> Any:
    """Return the type one step inside another: of an element, a field, or a member of a union."""
    shape = _bare(shape)
    members = _members(shape)
    if len(members) > 1:
        names = {getattr(_bare(member), "__name__", ""): member for member in members}
        tagged = [member for member in members if step in _tags(_bare(member))]
        return names.get(str(step)) or (tagged[0] if tagged else _inside(members[0], step))
    arguments = get_args(shape)
    if isinstance(step, int) and arguments:
        return arguments[0]
    if get_origin(shape) in (dict, Mapping) and len(arguments) == 2:
        return arguments[1]
    return Any if arguments else get_type_hints(shape, include_extras=True).get(str(step), Any)


def _tags(member: Any, name: str | None = None) -> list[str]:
    """Return the tags of a tagged union's member: the literals of field ``name``, or of any."""
    if not isinstance(member, type):
        return []
    hints = get_type_hints(member)
    chosen = hints.values() if name is None else [hints.get(name)]
    literals = [hint for hint in chosen if get_origin(hint) is Literal]
    return [tag for hint in literals for tag in get_args(hint) if isinstance(tag, str)]


def _short(value: Any) -> str:
    text = one_line_repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
