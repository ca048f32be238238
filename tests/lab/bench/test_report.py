"""What tables and pages say of results, on wide and narrow terminals."""

import copy
from pathlib import Path

import pytest
from bench_cases import results as made_up
from tiny_benches import shown

from hierspec_lab.bench import results
from hierspec_lab.bench.report.page import html

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.mark.parametrize("name", sorted(path.name for path in COMMITTED.glob("bench-*.json.gz")))
def test_committed_results_are_read(name, monkeypatch):
    monkeypatch.setattr("hierspec_lab.bench.report.page.pictures", lambda data: [])  # tables alone
    data = results.read(COMMITTED / name)
    assert data.cells
    page = html({"x": data})
    assert page.count("<tr") > sum(len(cell.methods) for cell in data.cells)
    assert page.count("tried on") >= len(data.cells)
    for width in (60, 140):
        text = shown(data, width)
        assert max(map(len, text.splitlines())) <= width
        assert all(method.name in text for method in data.cells[0].methods)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_narrow_terminal_gets_whole_words(width):
    """Neither a configuration nor a number is broken into letters."""
    data = results.read(COMMITTED / "bench-eps-0.2.json.gz")
    lines = shown(data, width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(len(line.strip()) >= 3 for line in lines if line.strip())
    if width >= 60:
        assert "  prompt_lookup 15 > small 2 > trunk 9, block" in map(str.rstrip, lines)
        assert any("median ms/token 6.18 [5.18, 7.29]" in line for line in lines)


def test_the_roofline_is_called_an_estimate():
    said = shown(made_up())
    assert "estimated roofline of plain decoding: 8.00 ms/token" in said
    assert "one sample of memory's bandwidth" in said
    assert "cannot be faster" not in said
    data = made_up()
    data.roofline.samples = [1e9, 29e9]
    assert "plain decoding&#39;s roofline, estimated" in html({"x": data})
    assert "(the best of 2 samples of memory&#39;s bandwidth)" in html({"x": data})


def test_errors_of_predictions_are_told_with_the_machines_drift_taken_out():
    data = made_up((0.0,))
    (cell,) = data.cells
    slower = {"plain": 1.25, "planned": 1.25 * 1.02}
    cell.methods = [method for method in cell.methods if method.name in slower]
    for method in cell.methods:
        method.predicted_ms_per_token = 2.0
        method.summary.decode_ms_per_token.mean = 2.0 * slower[method.name]
    said = " ".join(shown(data).split())
    assert "Errors of predictions: 20.8 % in the median, 21.6 % at worst" in said
    assert "as shares of plain decoding's time 2.0 % in the median, 2.0 % at worst." in said


def test_table_and_page_show_the_same_median_under_one_name():
    data = made_up((0.0,))
    data.cells[0].methods = data.cells[0].methods[:2]
    spread = data.cells[0].methods[0].summary.ms_per_token
    spread.median, spread.mean = 12.34, 56.78
    page, table = html({"x": copy.deepcopy(data)}), shown(data)
    for text in (page, table):
        assert "median ms/token" in text
        assert "12.34" in text
        assert "56.78" not in text
    assert "whose median ms/token is smallest" in page
