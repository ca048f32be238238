"""The papers' figures drawn: files with names of their own, bars side by side, the best framed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from paper_cases import FIGURES

from hierspec_lab.papers import Curve, Figure, Grid, Reproduction
from hierspec_lab.papers.drawing import best_cell, draw, draw_all


@pytest.mark.usefixtures("matplotlib")
def test_names_of_files_differ_and_empty_figures_have_none(tmp_path):
    empty = Figure("Figure 1", "", "", "", grid=Grid(("a",), ("b",), ((None,),)))
    found = Reproduction("p9", (), (FIGURES[0], FIGURES[0], empty, Figure("Figure 2", "", "", "")))
    names = [path.name for path in draw_all(found, tmp_path)]
    assert names == ["p9-figure-7.svg", "p9-figure-7-2.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.usefixtures("matplotlib")
def test_the_same_figure_is_the_same_file(tmp_path):
    for figure in FIGURES:
        for name in ("a.svg", "b.svg"):
            draw(figure, tmp_path / name)
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (Figure("F", "", "", ""), "holds no numbers"),
        (Figure("F", "", "", "", (Curve("c", (1.0,), (1.0, 2.0)),)), "has 1 x, 2 y"),
        (Figure("F", "", "", "", (Curve("c", (1.0,), (1.0,), spread=(1.0, 2.0)),)), "2 spreads"),
        (Figure("F", "", "", "", (Curve("c", (1.0,), (1.0,), "pie"),)), "not line, points or bars"),
    ],
)
def test_what_cannot_be_drawn(figure, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        draw(figure, tmp_path / "x.svg")


@pytest.mark.usefixtures("matplotlib")
def test_bars_stand_side_by_side(tmp_path, monkeypatch):
    from hierspec_lab.papers import drawing

    kept = []
    monkeypatch.setattr(drawing, "save", lambda canvas, path: kept.append(canvas))
    bars = tuple(Curve(name, (1, 2, 4), (0.1, 0.2, 0.3), "bars") for name in ("a", "b"))
    draw(Figure("F", "", "x", "y", bars), tmp_path / "x.svg")
    axes = kept[0].axes[0]
    spans = sorted((p.get_x(), p.get_x() + p.get_width()) for p in axes.patches)
    assert len(spans) == 6
    for (_, end), (start, _) in pairwise(spans):
        assert end < start + 1e-9
    assert [p.get_height() for p in axes.patches] == [0.1, 0.2, 0.3] * 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("caption", "where"),
    [
        ("speed-up over plain decoding", (0, 1)),
        ("latency, ms per token", (1, 0)),
        ("speed-up in latency", (0, 1)),
    ],
)
def test_the_best_cell(caption, where):
    grid = Grid(("a", "b"), ("c", "d"), ((2.0, 3.0), (1.0, None)))
    assert best_cell(Figure("F", caption, "", "", grid=grid), grid) == where
