"""Schemas for files and options that people write, checked by pydantic, with one-line errors.

:func:`checked_dataclass` makes frozen dataclasses that files and Python callers fill in the same
way, and :func:`validate` converts parsed JSON or TOML to one. Only the edges import this module:
nothing in ``core``, ``verifiers`` or ``engine`` does (docs/adr/0006).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, dataclass_transform, overload

import pydantic.dataclasses
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ArgsKwargs, PydanticCustomError, core_schema

from hierspec.errors import HierspecError

from .validation import MIN_TEMPERATURE, is_temperature

T = TypeVar("T")

CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)  # no unknown keys, no infinities
OPEN = ConfigDict(extra="ignore", allow_inf_nan=False)  # files hold more than what is read


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The words by which errors name the values a type allows, whatever is wrong with a value.

    The last part of an ``Annotated`` type: ``Annotated[int, Field(ge=1), Expected("a size")]``.
    """

    description: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), "expected", custom_error_message=self.description
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ReadAs:
    """The ``form`` that a type has in files, and the conversion from it.

    Attributes:
        form: an annotated type.
        convert: (value, validate_form) → a value of the annotated type; ``validate_form`` checks a
            value against ``form``.
    """

    form: Any
    convert: Callable[[Any, Callable[[Any], Any]], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        form = handler.generate_schema(self.form)
        return core_schema.no_info_wrap_validator_function(self.convert, form)


@dataclasses.dataclass(frozen=True, slots=True)
class OneOf:
    """A class that is found by the value of one key, so that there may be more at run time.

    A tagged union is the same of classes that are known when its module is read.

    Attributes:
        key: whose value says which class it is.
        find: that value, the keys that there are → the class; ``None`` if there is none.
        names: lists the values that there are.
        more: how there may be more of them, for the message about another value.
        meant: the one that another word means; by default none does.
    """

    key: str
    find: Callable[[str, Iterable[str]], type | None]
    names: Callable[[], Iterable[str]]
    more: str = ""
    meant: Callable[[str], str | None] = lambda _: None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: Any) -> Any:
        read = value.get if isinstance(value, Mapping) else functools.partial(getattr, value)
        name = read(self.key, None)
        keys = value if isinstance(value, Mapping) else ()
        shape = self.find(name, keys) if isinstance(name, str) else None
        if shape is not None:
            return _adapter(shape).validate_python(value)
        if not isinstance(value, Mapping):
            raise PydanticCustomError("model_attributes_type", "it must be an object")
        names = list(self.names())
        known = ", ".join(names)
        if self.key not in value:
            raise error_at([], f"{self.key!r} is missing; there are: {known}")
        near = self.meant(str(name)) or nearest_key(str(name), names)
        hint = f"did you mean {near!r}? There are" if near else "there are"
        more = f"; {self.more}" if self.more else ""
        message = f"{short_repr(value[self.key])}; {hint}: {known}{more}"
        context = {"path": (self.key,), "message": message}
        raise PydanticCustomError(_UNKNOWN_TAG, "{message}", context)


# Values are not converted: no number from a string, no boolean from a number.
Integer = Annotated[int, Strict(), Expected("an integer")]
Natural = Annotated[int, Strict(), Field(ge=0), Expected("an integer of at least 0")]
PositiveInteger = Annotated[int, Strict(), Field(ge=1), Expected("an integer of at least 1")]
Number = Annotated[float, Strict(), Expected("a number")]
NonNegativeNumber = Annotated[float, Strict(), Field(ge=0), Expected("a number of at least 0")]
Boolean = Annotated[bool, Strict(), Expected("true or false")]
NonEmptyString = Annotated[str, Strict(), Field(min_length=1), Expected("a non-empty string")]


def _validate_temperature(value: float) -> float:
    if not is_temperature(value):
        raise ValueError
    return value


Temperature = Annotated[
    float,
    Strict(),
    AfterValidator(_validate_temperature),
    Expected(f"0 (greedy) or a number of at least {MIN_TEMPERATURE}"),
]

MAX_COUNT = 4096  # the largest number of tokens of a draft, of drafts, of repetitions


def _validate_count(value: int) -> int:
    if value > MAX_COUNT:
        raise ValueError(f"it must be at most {MAX_COUNT}, not {short_repr(value)}")
    return value


Count = Annotated[PositiveInteger, AfterValidator(_validate_count)]

# pydantic's name of an error, for types without Expected → the description of allowed values
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
}
_UNKNOWN_KEY, _UNKNOWN_TAG = "unknown_key", "unknown_tag"  # our own; they name the nearest valid


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def checked_dataclass(cls: type[T]) -> type[T]:
    """Make a class a frozen, slotted, keyword-only dataclass that checks its fields.

    Instances made in Python are checked like those read from files: there too unknown fields and
    wrong values raise :class:`HierspecError`.
    """

    def refuse_unknown_keys(dataclass: Any, given: Any) -> Any:
        values = given.kwargs if isinstance(given, ArgsKwargs) else given
        if isinstance(values, Mapping):
            keys = [field.name for field in dataclasses.fields(dataclass) if field.init]
            for key in values:
                if key not in keys:
                    message = {"message": unknown_key_message(str(key), keys)}
                    raise PydanticCustomError(_UNKNOWN_KEY, "{message}", message)
        return given

    validator: Any = model_validator(mode="before")
    cls._refuse_unknown_keys = validator(classmethod(refuse_unknown_keys))  # type: ignore[attr-defined]
    decorate = pydantic.dataclasses.dataclass(config=CLOSED, frozen=True, slots=True, kw_only=True)
    dataclass: Any = decorate(cls)
    checked_init = dataclass.__init__

    @functools.wraps(checked_init)
    def init(self: Any, **values: Any) -> None:
        try:
            checked_init(self, **values)
        except ValidationError as error:
            raise HierspecError(_error_message(error, values, cls.__name__)) from None

    dataclass.__init__ = init
    return dataclass


_adapter = functools.cache(TypeAdapter)


@overload
def validate(shape: type[T], data: Any, source: str) -> T: ...
@overload
def validate(shape: Any, data: Any, source: str) -> Any: ...
def validate(shape: Any, data: Any, source: str) -> Any:
    """Convert ``data``, parsed from a file, to ``shape``: a dataclass or any annotated type.

    Args:
        source: the name of the file, or of a part of it, in errors; may be empty.

    Raises:
        HierspecError: one line that names the place, what was expected there, and for an unknown
            key the nearest valid one.
    """
    try:
        return _adapter(shape).validate_python(data)
    except RecursionError:
        raise HierspecError(f"{source or 'it'}: nested too deeply to be read") from None
    except ValidationError as error:
        raise HierspecError(_error_message(error, data, source)) from None


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON text; errors begin with ``source``, the name of its file.

    Raises:
        HierspecError: it is not JSON, repeats a key, or is nested too deeply.
    """

    def refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated = next(key for key in keys if keys.count(key) > 1)
            raise HierspecError(f"{source}: the key {repeated!r} appears twice: leave one out")
        return document

    try:
        return json.loads(text, object_pairs_hook=refuse_repeated_keys)
    except RecursionError:
        raise HierspecError(f"{source}: nested too deeply to be read") from None
    except HierspecError:
        raise
    except ValueError as error:  # also for bytes that are not text
        reason = str(error) if text.strip() else "it is empty"
        raise HierspecError(f"{source}: not valid JSON: {reason}") from None


def json_object(text: str | bytes, source: str, noun: str) -> dict[str, Any]:
    """Parse JSON text that must be an object; errors call it ``noun``: ``a case``.

    Raises:
        HierspecError: as :func:`parse_json`, or it is a list, a number, ….
    """
    data = parse_json(text, source)
    if not isinstance(data, dict):
        raise HierspecError(f"{source}: {noun} is a JSON object, not {type(data).__name__}")
    return data


def error_at(path: Sequence[str | int], message: str) -> PydanticCustomError:
    """Return the error that a validator raises about the place ``path`` inside its value."""
    return PydanticCustomError("error_at", "{message}", {"path": tuple(path), "message": message})


def _error_message(error: ValidationError, data: Any, source: str) -> str:
    """Return one error in one line: an unknown key before all others, which may follow from it."""
    errors = error.errors(include_url=False)
    details = next((entry for entry in errors if entry["type"] == _UNKNOWN_KEY), errors[0])
    kind, loc, context = details["type"], details["loc"], details.get("ctx", {})
    parent = _place(loc[:-1], data, source)
    path = context.get("path", ())
    place = _place((*loc, *path), data, source)
    if (
        path and isinstance(path[-1], str) and not place.endswith(path[-1])
    ):  # ``data`` has no such key: its default is wrong
        place = _append_key(place, path[-1])
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return _prefix(parent, f"{loc[-1]!r} is missing")
    if kind == _UNKNOWN_TAG:
        return f"{place} is {context['message']}"
    if kind in ("value_error", "error_at", _UNKNOWN_KEY):  # of a validator of ours, with its text
        return _prefix(place, str(context.get("error", context.get("message"))))
    value = short_repr(details["input"])
    expected = details["msg"] if kind == "expected" else _EXPECTED.get(kind)
    if expected is None:
        return _prefix(place, f"{details['msg']}, not {value}")
    return f"{place or 'it'} must be {expected.format(**context)}, not {value}"


def short_repr(value: Any) -> str:
    """Return ``repr`` in one line of up to 80 characters, with a torch module's class as name."""
    text = _one_line_repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _one_line_repr(value: Any) -> str:
    if hasattr(value, "named_modules"):
        return f"<{type(value).__name__}>"
    if isinstance(value, list | tuple):
        elements = ", ".join(map(_one_line_repr, value))
        return f"[{elements}]" if isinstance(value, list) else f"({elements})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_one_line_repr(v)}" for k, v in value.items()) + "}"
    return " ".join(repr(value).split())


def validate_keys(data: Mapping[str, Any], keys: Sequence[str], source: str) -> dict[str, Any]:
    """Return ``data`` as a dict, provided that it has no other keys than ``keys``.

    Raises:
        HierspecError: naming the first other key, and the nearest valid one.
    """
    for key in data:
        if key not in keys:
            raise HierspecError(_prefix(source, unknown_key_message(str(key), keys)))
    return dict(data)


def unknown_key_message(key: str, keys: Iterable[str]) -> str:
    """Return ``unknown key 'x'; did you mean 'y'? keys: …``, with a suggestion if one is near."""
    keys = list(keys)
    near = nearest_key(key, keys)
    hint = f"did you mean {near!r}? " if near else ""
    return f"unknown key {key!r}; {hint}keys: {', '.join(keys)}"


def nearest_key(key: str, keys: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the valid key most similar to a wrong one; ``None`` if none is similar."""
    return next(iter(difflib.get_close_matches(key, list(keys), n=1, cutoff=cutoff)), None)


def _prefix(place: str, message: str) -> str:
    return f"{place}: {message}" if place else message


def _place(loc: Sequence[Any], data: Any, place: str) -> str:
    """Return ``place.levels[0].verify``; steps not in ``data`` are tags of unions, left out."""
    for step in loc:
        inside = _data_inside(data, step)
        if inside is not data:
            place = f"{place}[{step}]" if isinstance(step, int) else _append_key(place, step)
        data = inside
    return place


def _data_inside(data: Any, step: Any) -> Any:
    """Return what is one step inside a value; the value itself if that has no such part."""
    if isinstance(data, list | tuple):
        return data[step] if isinstance(step, int) and step < len(data) else data
    if isinstance(data, Mapping):
        return data.get(step, data)
    return getattr(data, str(step), data) if dataclasses.is_dataclass(data) else data


def _append_key(place: str, key: Any) -> str:
    if not str(key).isidentifier():
        return f"{place}[{key!r}]"
    return f"{place}.{key}".removeprefix(".")
