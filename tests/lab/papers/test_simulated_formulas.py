"""``hierspec reproduce`` by simulation: formulas and the algorithm itself, side by side."""

import json
from importlib import import_module

import numpy as np
import pytest
from paper_cases import columns

from hierspec.cli import run
from hierspec_lab.papers import COMPUTED, MEASURED, NAMES, reproduce
from hierspec_lab.papers.p1 import simulation as p1_simulation
from hierspec_lab.papers.p2 import orders as p2_orders

ROUNDS = 500


@pytest.fixture(scope="module")
def found():
    """Reproduce both with fewer rounds than the command takes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (p1_simulation, p2_orders):
            patch.setattr(module, "ROUNDS", ROUNDS)
        yield {name: reproduce(name) for name in ("p1-simulation", "p2-orders")}


def within(simulated, expected, errors, count=4.0):
    """Check that all are within four standard errors; each fails for one seed in 15,000."""
    gap = np.abs(np.array(simulated) - np.array(expected))
    return bool((gap <= count * np.array(errors) + 1e-9).all())


def test_names():
    assert tuple(COMPUTED) == (
        "p1-tables", "p1-simulation", "p2-orders", "p4-operations",
    )  # fmt: skip
    assert sorted((*COMPUTED, *MEASURED)) == sorted(NAMES)  # other tests take kinds out for a while
    for kinds, function in ((COMPUTED, "compute"), (MEASURED, "measure")):
        for name, (module, shows) in kinds.items():
            assert callable(getattr(import_module(f"hierspec_lab.papers.{module}"), function)), name
            assert shows.startswith(name[:2].upper()), name


def test_p2_by_length(found):
    table, *_ = found["p2-orders"].tables
    got = columns(table)
    assert [row.label for row in table.rows] == [str(n) for n in range(17)]
    printed = dict(zip(range(17), got["interleaved"], strict=True))
    assert {n: round(printed[n], 4) for n in (0, 1, 2, 3, 4, 8, 16)} == {
        0: 2.4011, 1: 1.7094, 2: 1.4768, 3: 1.3705, 4: 1.3074, 8: 1.1642, 16: 0.9804,
    }  # fmt: skip
    for order in ("interleaved", "horizontal"):
        assert within(got[f"{order} simulated"], got[order], got[f"{order} error"])
        assert max(got[f"{order} error"]) < 0.1
    # what the notes say
    assert got["interleaved"] == sorted(got["interleaved"], reverse=True)
    assert got["interleaved"][-1] < 1 < got["interleaved"][-3]
    pairs = zip(got["horizontal"], got["interleaved"], strict=True)
    assert all(line >= mixed - 1e-12 for line, mixed in pairs)


def test_p2_orders(found):
    _, table, panels = found["p2-orders"].tables
    got = columns(table)
    ways = [row.label for row in table.rows]
    assert ways == ["horizontal", "mid", "small", "interleaved", "plain"]
    assert (got["n of M_s"][0], got["m of M_q"][0], round(got["speed-up"][0], 4)) == (3, 4, 2.6014)
    assert within(got["simulated"], got["speed-up"], got["error"])
    assert got["simulated"][-1] == 1.0
    best = {(row.label, row.extra[0]): row.extra[1] for row in panels.rows}
    assert best["0.5, 0.1", 4] == 0, "a small model does not help"
    assert best["0.7, 0.2", 1] > 0, "but where it is good and M_q drafts little"
    assert len(found["p2-orders"].figures) == 8


def test_p1_table_5_as_printed(found):
    table, *_ = found["p1-simulation"].tables
    got = columns(table)
    assert got["against real"] == ["+0.00 %", "-0.16 %", "+0.24 %", "+0.12 %"]
    seconds = [float(text) for text in got["printed latency"]]
    assert 0.0040 < max(seconds) / min(seconds) - 1 < 0.0041
    assert min(seconds) > max(float(text) for text in p1_simulation.PLAIN_GEMMA)
    assert "Not reproducible" in table.notes[0]


@pytest.mark.parametrize("number", [1, 2])
def test_p1_examples(found, number):
    got = columns(found["p1-simulation"].tables[number])
    assert within(got["simulated"], got["exact model"], got["error"])
    assert got["simulated"][0] == 33.0
    assert got["formula"][:2] == pytest.approx(got["exact model"][:2])
    assert all(a > b for a, b in zip(got["formula"][2:], got["exact model"][2:], strict=True))
    if number == 1:
        assert [round(ms, 4) for ms in got["exact model"][1:3]] == [14.3659, 10.7911]


def test_the_commands(capsys, monkeypatch):
    for module in ("hierspec.utils.terminal", "hierspec_lab.plotting.tables"):
        monkeypatch.setattr(f"{module}.UNLIMITED", 100)  # a pipe as wide as a terminal
    monkeypatch.setattr(p1_simulation, "ROUNDS", 20)
    monkeypatch.setattr(p2_orders, "ROUNDS", 20)
    assert run(["reproduce", "p1-simulation"]) == 0
    out = capsys.readouterr().out
    for text in ("Table 5", "0.0439264", "Not reproducible", "Table 8 simulated", "10.7911"):
        assert text in out
    assert "printed cells match" not in out
    assert run(["reproduce", "p2-orders"]) == 0
    out += capsys.readouterr().out
    assert "2.4011" in out
    assert max(map(len, out.splitlines())) <= 100
    assert run(["reproduce", "p2-orders", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["what"], data["cells"]) == ("p2-orders", 0)
    row = data["tables"][0]["rows"][1]
    assert (row["n"], round(row["interleaved"], 4)) == ("1", 1.7094)
    assert row["interleaved simulated"] > 0
