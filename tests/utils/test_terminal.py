"""Tables: no number, header or name is cut at any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hierspec.utils.terminal import borderless, console

ROWS = {
    "a-method-of-a-long-name": ("1975.25 [1900.10, 2050.75]", "12.5"),
    "plain": ("2.00 [1.90, 2.10]", "500.0"),
}


def printed(width: int, terminal: bool = True) -> str:
    table = borderless(("method",), ("median ms/token", "tokens/s"), "a title")
    for name, cells in ROWS.items():
        table.add_row(name, *cells)
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system=None).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [200, *range(40, 81)])
@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_cut(width, terminal):
    text = printed(width, terminal)
    assert "…" not in text
    for name, cells in ROWS.items():
        assert name in text
        assert all(cell in text for cell in cells)
    assert "median ms/token" in text
    assert max(map(len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())


def test_columns_where_there_is_room_and_paragraphs_elsewhere():
    assert printed(80).splitlines()[1].split() == ["method", "median", "ms/token", "tokens/s"]
    assert printed(40).splitlines()[1].strip() == "a-method-of-a-long-name"
    assert "median ms/token 1975.25" in printed(50)


def test_files_and_pipes_get_lines_of_any_length(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert console().width > 1000
    assert console(columns=True).width == 60
    monkeypatch.setenv("COLUMNS", "1")
    assert console(columns=True).width == 40  # a letter a line helps nobody
