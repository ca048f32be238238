"""``hierspec reproduce``: which printed numbers the printed inputs give, and how that is shown."""

import json

import pytest

from hierspec.cli import run
from hierspec_lab.papers import Cell, reproduce
from hierspec_lab.papers.p1.tables import SECOND_COSTS, TABLE_7
from hierspec_lab.papers.p2.formula import expected_tokens


@pytest.fixture(scope="module")
def tables():
    return {table.name: table for table in reproduce("p1-tables").tables}


def test_table_9_matches_but_for_five_cells(tables):
    table = tables["Table 9"]
    assert len(list(table.cells())) == 90
    assert table.matching == 85
    off = {
        (row.label, column): cell.units
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if not cell.matches
    }
    assert off == {
        ("0.2", "2.0"): -1,
        ("0.6", "1.0"): -1,
        ("0.6", "8.0"): 1,
        ("0.6", "16.0"): 1,
        ("0.6", "32.0"): 1,
    }
    hierarchies = {cell.detail for cell in table.cells()}
    assert hierarchies == {"A-B", "A-C", "A-B-C"}  # as in the printed legend


@pytest.mark.parametrize(
    ("name", "speedups", "latencies"),
    [
        ("Table 1", (1, 2), (1, 2, 5)),
        ("Table 8", (1,), (1, 2)),
    ],
)
def test_which_rows_of_the_examples_match(tables, name, speedups, latencies):
    rows = tables[name].rows
    for at, expected in ((0, speedups), (1, latencies)):
        assert tuple(i for i, row in enumerate(rows, 1) if row.cells[at].matches) == expected


def test_what_the_notes_say(tables):
    """Check what the notes claim about the printed numbers."""
    first, second = tables["Table 1"], tables["Table 8"]
    for row in first.rows[2:]:
        ms = row.cells[1]
        assert row.extra[-1] < float(ms.printed) < ms.computed
    for row in first.rows:
        speedup, ms = (float(cell.printed) for cell in row.cells)
        agree = (speedup - 5e-5) * (ms - 5e-3) <= 33 <= (speedup + 5e-5) * (ms + 5e-3)
        assert agree == (row.label in "12")
    assert "from 3 models on" in " ".join(first.notes)
    assert (Cell("1.7090", 33 / 19.31).matches, second.rows[1].cells[0].rounded) == (True, "1.7091")
    # κ of the three largest models of the second example (MATH §4), at whole lengths
    cost, rates = SECOND_COSTS[-3:], (TABLE_7[3][0], TABLE_7[3][1], TABLE_7[4][0])
    small = cost[0]
    mid = min(
        cost[1], *((small * x + cost[1]) / expected_tokens(rates[0], x) for x in range(1, 60))
    )
    bound = min(
        cost[2],
        *((small * x + cost[2]) / expected_tokens(rates[1], x) for x in range(1, 60)),
        *((mid * x + cost[2]) / expected_tokens(rates[2], x) for x in range(1, 60)),
    )
    assert round(float(bound), 3) == 15.884
    assert "15.88," in " ".join(second.notes)
    assert float(second.rows[2].cells[1].printed) < bound


def test_operations_of_verification_and_forwards():
    (table,) = reproduce("p4-operations").tables
    assert table.matching == len(table.rows) == 2
    small, large = table.rows
    assert small.extra[0] == pytest.approx(0.494 * 2 + 2 * 24 * 2 * 896 * 2048 / 1e9, rel=0.01)
    assert large.extra[0] == pytest.approx(72.7 * 2 + 2 * 80 * 2 * 8192 * 2048 / 1e9, rel=0.03)
    assert small.extra[1] < 1
    assert large.extra[1] < 0.01


def test_a_cell():
    cell = Cell("1.20", 1.2049)
    assert (cell.rounded, cell.matches, cell.units) == ("1.20", True, 0)
    assert (Cell("1.20", 1.1849).units, Cell("33.00", 33.0).matches) == (-2, True)
    assert not Cell("1.2", 1.26).matches


def test_the_command_prints_every_table(capsys, monkeypatch):
    for module in ("hierspec.utils.terminal", "hierspec_lab.plotting.tables"):
        monkeypatch.setattr(f"{module}.UNLIMITED", 100)  # a pipe as wide as a terminal
    assert run(["reproduce", "p1-tables"]) == 0
    out = capsys.readouterr().out
    for text in ("Table 1", "Table 8", "Table 9", "85 of 90", "≠ 11.21", "10.89", "≠1.21", "0.525"):
        assert text in out
    assert "5 of 12 printed cells match" in out
    assert "3 of 12 printed cells match" in out
    assert max(map(len, out.splitlines())) <= 100


def test_json(capsys, tmp_path):
    file = tmp_path / "tables.json"
    assert run(["reproduce", "p1-tables", "--json", "--output", str(file)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == json.loads(file.read_text())
    assert (data["schema_version"], data["what"]) == (1, "p1-tables")
    assert (data["cells"], data["matching_cells"]) == (114, 93)
    first = data["tables"][0]
    assert first["inputs"]["costs"][0] == 1e-5
    row = first["rows"][2]
    assert row["number of models"] == "3"
    assert row["latency"]["printed"] == 10.89
    assert round(row["latency"]["computed"], 4) == 11.2106
    assert row["latency"]["matches"] is False
    assert (row["levels"], row["num_speculative_tokens"]) == (["M4", "M5", "M6"], [4, 8])
    assert round(row["latency with overshoot"], 4) == 10.7911


def test_an_unknown_name_lists_what_there_is(capsys):
    assert run(["reproduce", "p1-table"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "did you mean p1-tables?" in error
    assert "there is: p1-tables" in error
