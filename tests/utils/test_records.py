"""Records of files that we write: further keys are kept, and none is added."""

from __future__ import annotations

import json

import pytest

from hierspec.utils.records import Record, to_json
from hierspec.utils.schema import validate


class Part(Record):
    number: int
    note: str | None = None


class Whole(Record):
    parts: dict[int, Part]
    name: str = "none"


def test_a_record_is_written_as_it_was_read():
    for data in (
        {"parts": {"1": {"number": 2}, "3": {"number": 4, "note": None, "later": [1]}}},
        {"parts": {}, "name": "none", "later": {"key": None}},
    ):
        record = validate(Whole, data, "")
        assert record.name == "none"
        assert json.dumps(record.to_dict()) == json.dumps(data)


def test_what_is_made_in_python_has_the_keys_that_were_given():
    whole = Whole(parts={1: Part(number=2), 3: Part(number=4, note=None)})
    assert whole.to_dict() == {"parts": {"1": {"number": 2}, "3": {"number": 4, "note": None}}}


def test_containers_of_records():
    shape = tuple[dict[str, Part], list[list[int]]]
    value = {"a": Part(number=1)}, [[1], []]
    data = to_json(shape, value)
    assert data == [{"a": {"number": 1}}, [[1], []]]
    assert validate(shape, data, "") == value


def test_a_damaged_record_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^p\.json\.parts\['1'\]: 'number' is missing$"):
        validate(Whole, {"parts": {"1": {}}}, "p.json")
