"""Files of one JSON or TOML document: what is wrong with one is a line that names it."""

import pytest

from hierspec.errors import HierspecError
from hierspec.utils.documents import read_json, read_object
from hierspec.utils.records import Record


class Numbers(Record):
    numbers: list[int]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not valid JSON: it is empty"),
        ("[1]", "it must be an object, not [1]"),
        ("{}", "'numbers' is missing"),
        ('{"numbers": [1, "x"]}', "numbers[1] must be"),
    ],
)
def test_a_file_of_another_type_is_refused(tmp_path, content, reason):
    path = tmp_path / "n.json"
    path.write_text(content)
    with pytest.raises(HierspecError) as error:
        read_json(Numbers, path, "the numbers", ": write it again")
    assert str(error.value).startswith(f"{path}: {reason}")
    assert str(error.value).endswith(": write it again")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(HierspecError, match=r"cannot read the numbers .*n\.json.*: write it again"):
        read_json(Numbers, tmp_path / "n.json", "the numbers", ": write it again")


def test_types_other_than_records_are_read(tmp_path):
    path = tmp_path / "n.json"
    path.write_text('{"numbers": [1, 2], "more": 3}')
    assert read_json(Numbers, path, "the numbers").numbers == [1, 2]
    path.write_text("[0.5, 2]")
    assert read_json(list[float], path, "the numbers") == [0.5, 2.0]


def test_objects_are_read_from_toml_and_json(tmp_path):
    toml, other = tmp_path / "s.toml", tmp_path / "s.json"
    toml.write_text("a = 1")
    other.write_text('{"a": 1}')
    for path in (toml, other):
        assert read_object(path, "settings file", "") == {"a": 1}
    (tmp_path / "S.TOML").write_text("a = 1")
    assert read_object(tmp_path / "S.TOML", "settings file", "") == {"a": 1}
    toml.write_text("a =")
    with pytest.raises(HierspecError, match=r"s\.toml: not valid TOML"):
        read_object(toml, "settings file", "")
    toml.write_text("a = " + "[" * 100_000)
    with pytest.raises(HierspecError, match=r"s\.toml: nested too deeply"):
        read_object(toml, "settings file", "")
    other.write_text("[]")
    with pytest.raises(HierspecError, match=r"s\.json: a settings file is a JSON object, not list"):
        read_object(other, "settings file", "")
    with pytest.raises(HierspecError, match=r"cannot read the settings file .*: give one$"):
        read_object(tmp_path / "none", "settings file", ": give one")
