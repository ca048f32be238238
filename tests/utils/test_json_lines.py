"""Lines of JSON: numbered, checked one by one, and mistakes named in a line."""

import pytest

from hierspec.errors import HierspecError
from hierspec.utils.json_lines import is_json_lines, parse_lines, read_line


def read(body: bytes, may_be_cut: bool = False) -> list[tuple[int, object]]:
    return list(parse_lines(body, "f.jsonl", lambda value: value, may_be_cut=may_be_cut))


def test_lines_keep_their_numbers(tmp_path):
    body = '\ufeff{"a": 1}\r\n\n \t\n"x\u2028y"\n'.encode()
    assert read(body) == [(1, {"a": 1}), (4, "x\u2028y")]
    assert read(b"\n") == []
    assert [is_json_lines(tmp_path / name) for name in ("a.JSONL", "a.ndjson", "a.json")] == [
        True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("end", [b'{"a": "b', b'"caf\xc3', b"[" * 100_000, b"", b"  "])
def test_a_last_line_that_breaks_off_may_be_left_out(end):
    assert read(b"1\n2\n" + end, may_be_cut=True) == [(1, 1), (2, 2)]
    assert read(b"1\n2", may_be_cut=True) == [(1, 1), (2, 2)]
    if end.strip():
        for body, cut in ((b"1\n2\n" + end, False), (b"1\n2\n" + end + b"\n", True)):
            with pytest.raises(HierspecError, match=r"f\.jsonl, line 3: (not|nested)"):
                read(body, may_be_cut=cut)


def test_mistakes_name_file_and_line():
    with pytest.raises(HierspecError, match=r"^f\.jsonl, line 2: the key 'a' appears twice"):
        read(b'1\n{"a": 1, "a": 2}')

    def refuse(value: object) -> None:
        raise HierspecError(f"not {value}")

    with pytest.raises(HierspecError, match=r"^f\.jsonl, line 3: not 7$"):
        list(parse_lines(b"\n\n7", "f.jsonl", refuse))


def test_a_damaged_line_is_none():
    assert read_line(list[int], "[1, 2]") == [1, 2]
    assert [read_line(list[int], line) for line in ("[1, ", "3", '["a"]', "", b"\xff")] == [
        None
    ] * 5
