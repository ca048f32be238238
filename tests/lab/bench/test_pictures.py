"""Pictures and the page of a bench: they show the results' numbers, all of them, no others."""

from __future__ import annotations

import copy
import importlib
import json
import re
from html.parser import HTMLParser

import pytest
from bench_cases import METHODS, PROMPTS, SKIPPED, content, results
from svg import letters

from hierspec_lab.bench.method_records import CategorySpeedup, PairedRatio
from hierspec_lab.bench.report.charts import (
    GROUP_COLOURS,
    acceptance,
    predictions,
    speedups,
    time_spent,
    tokens_per_call,
)
from hierspec_lab.bench.report.columns import TableCell, correctness, fastest
from hierspec_lab.bench.report.page import html
from hierspec_lab.bench.report.pictures import draw, pictures
from hierspec_lab.bench.results import parse
from hierspec_lab.plotting import figures

pytestmark = pytest.mark.usefixtures("matplotlib")
OURS = [name for name, entry in METHODS.items() if entry[1] != "peer"]


def drawn(chart, data, number=0):
    with figures.style():
        return chart(data, data.cells[number])


def bars(figure):
    return [patch for patch in figure.axes[0].patches if patch.get_width()]


def labels(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def words(figure):
    """Everything outside the axes' ticks: captions, annotations."""
    captions = [legend.get_title() for legend in figure.legends]
    texts = [*figure.texts, *captions, *(t for axes in figure.axes for t in axes.texts)]
    return " | ".join(" ".join(text.get_text().split("\n")) for text in texts)


def colour(hexadecimal):
    return importlib.import_module("matplotlib.colors").to_rgba(hexadecimal)


def test_a_file_per_picture_and_temperature(tmp_path):
    data = results()
    for number, cell in enumerate(data.cells):  # as few methods as will do
        cell.methods = [method(data, name, number) for name in ("plain", "hierarchy")]
    paths = draw(data, tmp_path / "new" / "folder")
    stems = ["speedup", "time", "tokens-per-call", "acceptance", "predicted"]
    assert [path.name for path in paths] == [f"{stem}-t{t}.svg" for t in "01" for stem in stems]
    for path in paths:
        assert "zoo:large?eps=0.2" in " ".join(letters(path.read_bytes()))


def test_the_same_results_give_the_same_bytes():
    data = results((0.7,))
    first, second = pictures(data), pictures(copy.deepcopy(data))
    assert first == second
    assert next(picture.stem for picture in first) == "speedup-t0.7"
    for picture in first:
        text = picture.content.decode()
        assert "Matplotlib" not in text
        assert not re.search(r"<dc:date>|\b20\d\d-\d\d", text)


def test_drawing_changes_nothing_global():
    rc = importlib.import_module("matplotlib").rcParams
    before = dict(rc)
    drawn(speedups, results((0.0,)))
    assert dict(rc) == before


def test_speedups_are_sorted_and_coloured_by_group():
    data = results()
    figure = drawn(speedups, data)
    order = sorted(METHODS, key=lambda name: -METHODS[name][-1])
    assert labels(figure) == order
    assert [bar.get_width() for bar in bars(figure)] == [METHODS[name][-1] for name in order]
    for name, bar in zip(order, bars(figure), strict=True):
        assert bar.get_facecolor() == colour(GROUP_COLOURS[METHODS[name][1]])
    said = words(figure)
    assert "2.60×  [2.47, 2.76]" in said
    assert "1.00×" in said
    ends = {tuple(line.get_xdata()) for line in figure.axes[0].lines}
    assert (0.95 * 2.6, 1.06 * 2.6) in ends
    assert [1.0, 1.0] in [list(line.get_xdata()) for line in figure.axes[0].lines]


def test_what_did_not_run_is_told_but_not_drawn():
    figure = drawn(speedups, results())
    name, _, _, reason = SKIPPED
    assert name not in labels(figure)
    assert f"Not run: {name} ({reason})." in words(figure)
    assert "Not lossless: lossy." in words(figure)


def ratio(median, low95, high95, n=9):
    return PairedRatio(median=median, q1=median, q3=median, n=n, low95=low95, high95=high95)


def test_an_interval_takes_five_prompts():
    assert ratio(1.2, 1.2, 1.2).interval is None
    assert ratio(1.2, 1.1, 1.3).interval == (1.1, 1.3)
    assert ratio(1.2, 1.1, 1.3, n=5).format() == "1.20× [1.10, 1.30]"
    assert ratio(1.2, 1.1, 1.3, n=4).interval is None
    assert ratio(1.2, 1.1, 1.3, n=4).format() == "1.20×"
    plain = method(results(), "plain")
    assert plain.summary.speedup is None
    assert plain.median_speedup == 1.0


def test_the_time_adds_up_to_what_decoding_takes():
    data = results()
    figure = drawn(time_spent, data)
    found = {m.name: m.summary for m in data.cells[0].methods if m.summary}
    ends: dict[int, float] = {}
    for bar in bars(figure):
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
    totals = [ends[row] for row in sorted(ends)]
    assert totals == sorted(totals)
    for title, total in zip(labels(figure), totals, strict=True):
        spread = found[title].decode_ms_per_token or found[title].ms_per_token
        assert total == pytest.approx(spread.mean)
    assert "Not split" in words(figure)
    assert [8.0, 8.0] in [list(line.get_xdata()) for line in figure.axes[0].lines]
    assert "The roofline:" in words(figure)


def test_without_a_roofline_there_is_no_line():
    data = results()
    data.roofline = None
    figure = drawn(time_spent, data)
    assert not figure.axes[0].lines
    assert "roofline" not in words(figure)


def test_tokens_per_call_of_those_who_tell():
    data = results()
    figure = drawn(tokens_per_call, data)
    assert sorted(labels(figure)) == sorted(OURS)
    widths = [bar.get_width() for bar in bars(figure)]
    assert widths == sorted(widths, reverse=True)
    assert "Unknown for: hf-plain; hf-assisted." in words(figure)


def test_acceptance_has_a_panel_per_method_and_a_curve_per_level():
    data = results()
    figure = drawn(acceptance, data)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.lines}
    assert set(panels) == {name for name in OURS if METHODS[name][4]}
    method = data.cells[0].methods[list(METHODS).index("dynamic-windows")]
    shares = method.summary.acceptance_per_position
    lines = panels[method.name].lines
    assert [list(line.get_ydata()) for line in lines] == list(reversed(shares.values()))
    assert list(lines[0].get_xdata()) == [1, 2, 3, 4]
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines})
    assert len({line.get_color() for line in lines}) == 3


def test_predictions_beside_measurements():
    data = results()
    both = [m for m in data.cells[0].methods if m.predicted_ms_per_token]
    assert len(both) == 9
    figure = drawn(predictions, data)
    points = [tuple(map(float, c.get_offsets()[0])) for c in figure.axes[0].collections[1:]]
    expected = [(m.summary.decode_ms_per_token.mean, m.predicted_ms_per_token) for m in both]
    assert sorted(points) == sorted(expected)
    errors = [predicted / measured - 1 for measured, predicted in expected]
    within = sum(abs(error) <= 0.1 for error in errors)
    assert 0 < within < len(errors)
    assert f"{within} of 9 within 10 %" in words(figure)
    for error in errors:
        assert f"{100 * error:+.1f} %".replace("-", "−") in words(figure)


def test_no_numbers_no_picture(tmp_path):
    data = results((0.0,))
    data.cells[0].methods = data.cells[0].methods[-2:]  # a peer, and a skipped one
    assert [path.stem for path in draw(data, tmp_path)] == ["speedup-t0", "time-t0"]
    data.cells[0].methods = data.cells[0].methods[-1:]
    assert draw(data, tmp_path) == []


def test_names_may_hold_anything():
    data = results((0.0,))
    data.cells[0].methods[1].name = "$x^2$ & <i> ”_{"
    for picture in pictures(data):
        assert "$x^2$ & <i> ”_{" in " ".join(letters(picture.content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "other"}, "no results of hierspec bench"),
        ({"schema_version": 2}, "schema version 2"),
    ],
)
def test_other_results_are_refused(change, said):
    with pytest.raises(ValueError, match=f"results.json .*{said}"):
        parse(content() | change, "results.json")


class ReadPage(HTMLParser):
    """Tags must close in order; collects rows of tables, ids, and what stands in elements."""

    VOID = ("meta", "br", "link", "img", "hr", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.rows, self.said, self.tags = [], [], [], [], []
        self.attributes = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.said.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.said).split())


@pytest.fixture(scope="module")
def page_text():
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    return html({"A title & more": results()})


def test_the_page_is_well_formed_and_stands_alone(page_text):
    page = ReadPage(page_text)
    assert "http" not in page_text
    assert len(page.ids) == len(set(page.ids))
    for name, value in page.attributes:
        assert name not in ("src", "srcset", "data", "action")
        assert not name.startswith("on")
        if name == "href":
            assert value.startswith("#")
            assert value[1:] in page.ids
    for target in re.findall(r"url\(#([^)]*)\)", page_text):
        assert target in page.ids
    assert not re.search(r"@import|url\((?!#)", page_text)
    assert page.tags.count("svg") == 10
    assert page.tags.count("script") == 1


def test_the_page_says_what_was_measured_and_where(page_text):
    said = ReadPage(page_text).text
    for part in (
        "A title & more",
        "zoo:large is a synthetic cost with a real distribution (eps 0.2)",
        "A CPU <of some kind>",
        "0123456789abcdef" * 4,
        "PASSIVE",
        "torch 2.13.0",
        "Temperature 0 (greedy)",
        "Temperature 1",
        "Fastest lossless method: planned (planned here), 2.60× plain decoding [2.47, 2.76].",
        "Load averages before: 0.1, 0.2, 0.3; after: 0.9, 0.8, 0.7.",
        "8.00 ms per token: 232 MB of weights at 29.0 GB/s (one sample of memory's bandwidth)",
        "hierspec bench --target 'zoo:large?eps=0.2' --draft zoo:small --draft zoo:trunk "
        "--prompts 'some prompts.jsonl' --dtype bfloat16",
        '"verify": "block"',
        '{"num_speculative_tokens": 8}',
    ):
        assert part in said
    assert "Unfinished" not in said


def test_the_table_has_every_method_fastest_first(page_text):
    rows = ReadPage(page_text).rows
    start = next(i for i, row in enumerate(rows) if row[0] == "method")
    head, body = rows[start], rows[start + 1 : start + 2 + len(METHODS)]
    order = sorted(METHODS, key=lambda name: -METHODS[name][-1])
    measured = results().cells[0].methods[: len(METHODS)]
    medians = {m.name: m.summary.ms_per_token.median for m in measured}
    for name, row in zip(order, body, strict=False):
        title = METHODS[name][0]
        about = title if title.replace(" ", "-") != name else ""
        assert row[0].startswith(name + ("lossy" if name == "lossy" else "") + about)
        cells = dict(zip(head, row, strict=True))
        assert cells["median ms/token"].startswith(f"{medians[name]:.2f}[")
        assert cells["speed-up"].startswith(f"{METHODS[name][-1]:.2f}×")
        if METHODS[name][1] == "peer":
            assert cells["tokens / target call"] == ""
    assert "lossy" in body[order.index("lossy")][0]
    last = body[-1]
    assert last[0].startswith(SKIPPED[0] + SKIPPED[1])
    assert last[1] == f"not run: {SKIPPED[3]}"
    assert len(last) == 2


def test_columns_sort_by_numbers(page_text):
    body = page_text.split("<tbody>")[1].split("</tbody>")[0]
    rows = [re.findall(r'data-value="([^"]*)"', row) for row in body.split("<tr")[1:]]
    speeds = [float(row[1]) for row in rows[: len(METHODS)]]
    assert speeds == sorted((entry[-1] for entry in METHODS.values()), reverse=True)
    assert len(rows[-1]) == 1  # a method that did not run has its name alone


def method(data, name, cell=0):
    return data.cells[cell].methods[list(METHODS).index(name)]


def test_verdicts():
    data = results()
    greedy, sampled = data.cells

    def judged(cell, of, number=0):
        found = correctness(cell, method(data, of, number))
        return found and (found.text, found.mark)

    assert judged(greedy, "plain") is None
    assert judged(greedy, "hierarchy") == (f"{PROMPTS} of {PROMPTS} equal", "good")
    lossy = method(data, "lossy")
    assert correctness(greedy, lossy) == TableCell(0.8, "4 of 5 equal", mark="bad")
    lossy.runs[0].first_difference_gap = 0.06
    assert judged(greedy, "lossy")[1] == "bad"
    greedy.near_tie_tolerance = 0.07
    assert judged(greedy, "lossy") == ("4 of 5 equal, near-tie 1", "soft")
    assert judged(sampled, "hierarchy", 1) == ("−0.002 ± 0.004", "good")
    assert judged(sampled, "lossy", 1) == ("−0.200 ± 0.004", "bad")


def test_the_fastest_method_is_lossless():
    data = results((0.0,))
    method(data, "lossy").summary.speedup = ratio(9.0, 8.0, 10.0)
    assert "planned (planned here)" in fastest(data.cells[0])
    planned = method(data, "planned")  # it says so; one text says otherwise
    planned.runs[0].same_as_plain, planned.summary.same_as_plain = False, PROMPTS - 1
    assert "hierarchy (three levels)" in fastest(data.cells[0])
    data.cells[0].methods = data.cells[0].methods[:1]
    assert fastest(data.cells[0]) == ""


def test_what_is_slower_than_plain_decoding_is_not_called_the_fastest():
    data = results((0.0,))
    for each in data.cells[0].measured:
        if each.name != "plain":
            each.summary.speedup = ratio(0.9, 0.8, 0.95)
    assert fastest(data.cells[0]).startswith("Nothing beats plain decoding here: ")
    assert "0.90× plain decoding" in fastest(data.cells[0])


def test_categories_have_a_table_where_there_are_some(page_text):
    assert "By category" not in page_text
    data = results((0.0,))
    found = {
        "writing": CategorySpeedup(speedup=1.25, n=2),
        "maths & logic": CategorySpeedup(speedup=3.5, n=3),
    }
    method(data, "hierarchy").summary.by_category = found
    page = ReadPage(html({"x": data}))
    assert ["method", "writing", "maths & logic"] in page.rows
    row = next(row for row in page.rows if row[1:] == ["1.25×", "3.50×"])
    assert row[0].startswith("hierarchythree levels, ")


def test_tuning_on_batches_says_so(page_text):
    assert "tried on 2 other prompts<" in page_text
    data = results((0.0,))
    data.cells[0].methods = [method(data, "plain"), method(data, "hierarchy")]
    data.cells[0].methods[1].tuning.batch_size = 4
    assert "tried on 2 other prompts, 4 at once<" in html({"x": data})


def test_an_unfinished_bench_says_so():
    data = results(finished=False)
    data.roofline = None
    data.cells[1].load_average.after = None
    for entry in data.cells[1].methods:
        entry.summary = entry.configuration = entry.skipped = None
    page = ReadPage(html({"x": data}))
    assert "Unfinished" in page.text
    assert page.tags.count("svg") == 5
    assert page.rows.count(["plainplain decoding, plain decoding", "not run: not measured"]) == 1


def test_without_matplotlib_the_page_has_no_pictures(monkeypatch, tmp_path):
    def missing(name, *args):
        raise ImportError(name)

    monkeypatch.setattr(figures.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=re.escape("pip install 'hierspec[plot]'")):
        draw(results(), tmp_path)
    page = ReadPage(html({"x": results()}))
    assert "svg" not in page.tags
    assert "pip install 'hierspec[plot]'" in page.text
    assert "2.60×" in page.text


def test_nothing_is_changed_and_the_shape_is_json():
    data = results()
    data.cells[0].methods = [data.cells[0].methods[n] for n in (0, -2, -1)]
    before = copy.deepcopy(data)
    html({"x": data})
    assert data == before == parse(json.loads(json.dumps(data.to_dict())), "made up")
