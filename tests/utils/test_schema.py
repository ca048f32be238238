"""Declared schemas: what they take, and the one line that each refusal is."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Annotated, Any, Literal

import pytest

from hierspec.errors import HierspecError
from hierspec.utils.schema import (
    Boolean,
    Expected,
    Integer,
    Natural,
    NonEmptyString,
    NonNegativeNumber,
    Number,
    OneOf,
    PositiveInteger,
    ReadAs,
    Temperature,
    checked_dataclass,
    error_at,
    json_object,
    parse_json,
    unknown_key_message,
    validate,
    validate_keys,
)


@checked_dataclass
class Circle:
    kind: Literal["circle"] = "circle"
    radius: NonNegativeNumber


@checked_dataclass
class Square:
    kind: Literal["square"] = "square"
    side: PositiveInteger = 1
    border: Natural = 0

    def __post_init__(self) -> None:
        if self.side == 13:
            raise error_at(["side"], "13 is no side")
        if self.border > self.side:
            raise error_at(["side"], "it must not be below border")
        if self.side == 14:
            raise HierspecError("a square of 14 is too large")


KINDS = {"circle": Circle, "square": Square}
Shape = Annotated[Any, OneOf("kind", lambda kind, keys: KINDS.get(kind), KINDS.keys)]
Name = Annotated[str, ReadAs(NonEmptyString, lambda value, check: check(value).lower())]


@checked_dataclass
class Drawing:
    name: NonEmptyString
    shapes: tuple[Shape, ...] = ()
    by_name: dict[str, Circle] = dataclasses.field(default_factory=dict)
    scale: Number | None = None
    title: Name = "none"


ROUND = {"kind": "circle", "radius": 2}


def test_files_and_python_make_the_same_objects():
    made = Drawing(name="a", shapes=(Circle(radius=2.0), Square()), title="LOW")
    found = validate(
        Drawing, {"name": "a", "shapes": [ROUND, {"kind": "square"}], "title": "LOW"}, ""
    )
    document = parse_json(json.dumps(dataclasses.asdict(made)), "")
    assert made == found == validate(Drawing, document, "")
    assert made.title == "low"
    assert hash(made.shapes[0]) == hash(Circle(radius=2))


def test_declared_classes_are_frozen_dataclasses():
    square = Square(side=3)
    assert dataclasses.replace(square, side=4) == Square(side=4)
    assert [field.name for field in dataclasses.fields(Square)] == ["kind", "side", "border"]
    assert pickle.loads(pickle.dumps(square)) == copy.deepcopy(square) == square
    assert not hasattr(square, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        square.side = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (3, "drawing must be an object, not 3"),
        ({}, "drawing: 'name' is missing"),
        ({"nam": "a"}, "drawing: unknown key 'nam'; did you mean 'name'? keys: name, shapes, "),
        ({"name": "a", "zzz": 1}, "drawing: unknown key 'zzz'; keys: name, "),
        ({"name": ""}, "drawing.name must be a non-empty string, not ''"),
        ({"name": "a", "shapes": {}}, "drawing.shapes must be a list, not {}"),
        ({"name": "a", "shapes": [3]}, "drawing.shapes[0] must be an object, not 3"),
        (
            {"name": "a", "shapes": [{}]},
            "drawing.shapes[0]: 'kind' is missing; there are: circle, square",
        ),
        (
            {"name": "a", "shapes": [ROUND, {"kind": "cube"}]},
            "drawing.shapes[1].kind is 'cube'; there are: circle, square",
        ),
        (
            {"name": "a", "shapes": [{"kind": "square", "sdie": 2}]},
            "drawing.shapes[0]: unknown key 'sdie'; did you mean 'side'? keys: kind, side, border",
        ),
        ({"name": "a", "shapes": [{"kind": "circle"}]}, "drawing.shapes[0]: 'radius' is missing"),
        (
            {"name": "a", "shapes": [{"kind": "square", "side": True}]},
            "drawing.shapes[0].side must be an integer of at least 1, not True",
        ),
        ({"name": "a", "shapes": [{"kind": "square", "side": 13}]}, "drawing.shapes[0].side: 13"),
        (
            {"name": "a", "shapes": [{"kind": "square", "border": 2}]},
            "drawing.shapes[0].side: it must not be below border",
        ),
        ({"name": "a", "shapes": [{"kind": "square", "side": 14}]}, "drawing.shapes[0]: a square"),
        (
            {"name": "a", "by_name": {"0,1": {"radius": -1}}},
            "drawing.by_name['0,1'].radius must be a number of at least 0, not -1",
        ),
        (
            {"name": "a", "by_name": {"x": {"radus": 1}}},
            "drawing.by_name.x: unknown key 'radus'; did you mean 'radius'?",
        ),
        ({"name": "a", "scale": "2"}, "drawing.scale must be a number, not '2'"),
        ({"name": "a", "scale": float("inf")}, "drawing.scale must be a number, not inf"),
        ({"name": "a", "title": ""}, "drawing.title must be a non-empty string, not ''"),
    ],
)
def test_refusals_name_place_and_fix_in_one_line(data, says):
    with pytest.raises(HierspecError) as caught:
        validate(Drawing, data, "drawing")
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_python_callers_are_refused_alike():
    with pytest.raises(HierspecError, match=r"^Square\.side must be an integer of at least 1"):
        Square(side=0)
    with pytest.raises(HierspecError, match=r"^Circle: 'radius' is missing"):
        Circle()  # type: ignore[call-arg]
    with pytest.raises(HierspecError, match=r"^Square: unknown key 'sid'; did you mean 'side'"):
        Square(sid=3)  # type: ignore[call-arg]
    with pytest.raises(HierspecError, match=r"^Square\.side: 13"):
        Square(side=13)
    with pytest.raises(HierspecError, match=r"^Drawing\.shapes\[1\] must be an object"):
        Drawing(name="a", shapes=(Square(), 4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (Integer, [-1, 0], [1.0, "1", True, None]),
        (Natural, [0, 5], [-1, 1.5, False]),
        (PositiveInteger, [1], [0, "1", True, 2.5, [1]]),
        (Number, [0, -1.5], ["1", True, None]),
        (NonNegativeNumber, [0, 1e300], [-1e-9, "0"]),
        (Boolean, [True, False], [0, 1, "yes", None]),
        (NonEmptyString, ["a"], ["", None, 3, b"a"]),
        (Temperature, [0, 1e-5, 2], [1e-6, -1, float("nan"), float("inf"), True, "1"]),
    ],
)
def test_values_are_taken_as_written(shape, good, bad):
    for value in good:
        assert validate(shape, value, "x") == value
    for value in bad:
        with pytest.raises(HierspecError, match=r"^x must be ") as caught:
            validate(shape, value, "x")
        assert repr(value) in str(caught.value)


def test_long_values_are_cut():
    with pytest.raises(HierspecError) as caught:
        validate(Integer, "a" * 1000, "x")
    assert len(str(caught.value)) < 150


def test_an_expectation_speaks_for_all_that_may_be_wrong():
    pair = Annotated[tuple[int, int], Expected("a pair")]
    for value in (3, [1], [1, "x"], None):
        with pytest.raises(HierspecError, match=r"^at must be a pair, not "):
            validate(pair, value, "at")


def test_closed_mappings():
    assert validate_keys({"a": 1}, ["a", "b"], "options") == {"a": 1}
    with pytest.raises(HierspecError, match=r"^options: unknown key 'temprature'; did you mean"):
        validate_keys({"temprature": 1}, ["temperature"], "options")
    assert unknown_key_message("qqq", ["temperature"]) == "unknown key 'qqq'; keys: temperature"


@pytest.mark.parametrize("text", ["{", "", "[1,]", b"\xff", "[" * 100_000])
def test_what_is_not_json_is_said(text: Any):
    says = r"^f\.json: (not valid JSON: |nested too deeply to be read$)"
    with pytest.raises(HierspecError, match=says) as caught:
        parse_json(text, "f.json")
    assert "\n" not in str(caught.value)


def test_a_repeated_key_and_an_empty_file():
    with pytest.raises(HierspecError, match=r"^f\.json: the key 'a' appears twice: leave one out$"):
        parse_json('{"b": {"a": 1, "c": 2, "a": 3}}', "f.json")
    with pytest.raises(HierspecError, match=r"^f\.json: not valid JSON: it is empty$"):
        parse_json(" \n", "f.json")


def test_json_that_is_no_object_is_said():
    assert json_object('{"a": 1}', "f.json", "a case") == {"a": 1}
    with pytest.raises(HierspecError, match=r"^f\.json: a case is a JSON object, not list"):
        json_object("[]", "f.json", "a case")
