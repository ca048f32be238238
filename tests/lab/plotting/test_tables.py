"""Tables: no number, header or name is cut at any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hierspec_lab.plotting.tables import Borderless, borderless

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


def paragraphs(table: Borderless) -> list[str]:
    """Print a table where it is too narrow for columns."""
    out = io.StringIO()
    Console(file=out, width=40, color_system=None).print(table)
    return out.getvalue().splitlines()


def test_a_paragraph_is_headed_by_its_first_cell_and_a_number_by_its_header():
    table = borderless((), ("time a token", "simulated"))
    table.add_column("hierarchy")
    for time, simulated in (("10.07", "11.2 ± 0.3"), ("1,234", ""), ("", "12.5 ± 0.3")):
        table.add_row(time, simulated, "small (4) → large")
    assert paragraphs(table) == [
        "time a token 10.07",
        "    simulated 11.2 ± 0.3",
        "    hierarchy small (4) → large",
        "time a token 1,234",
        "    hierarchy small (4) → large",
        "12.5 ± 0.3",
        "    hierarchy small (4) → large",
    ]
    table = borderless(("level", "model"), ("num_speculative_tokens",))
    table.add_row("", "all", "12")
    table.add_row("0", "the smallest model of the family", "4")
    assert paragraphs(table)[0] == "all"
    assert "level 0" in paragraphs(table)


def test_a_long_cell_without_a_header_leaves_no_blank_line():
    table = borderless(("method", ""))
    table.add_row("hierarchy-of-a-long-name", "three levels and more, block verification; tuned")
    assert paragraphs(table) == [
        "hierarchy-of-a-long-name",
        "    three levels and more, block",
        "    verification; tuned",
    ]
