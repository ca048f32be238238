"""What pages say was measured is what the result files hold, and no figure is written by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))
import report_pages  # noqa: E402


def test_pages_are_what_the_files_say():
    script = ROOT / "benchmarks" / "report.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", report_pages.PAGES, ids=lambda path: path.name)
def test_no_figure_is_written_by_hand(path: Path):
    text = path.read_text(encoding="utf-8")
    assert report_pages.by_hand(text) == []
    # A comment there would end the paragraph.
    assert not re.search(r"^[\s>*-]*<!-- [{/]", text, re.MULTILINE), "a line begins with a figure"


@pytest.mark.parametrize(
    "text", ["1.26× as fast", "12 ms", "3 %", "at 0.98", "TV .07", "41 tokens/s", "310 of the 720"]
)
def test_a_figure_is_seen(text: str):
    assert report_pages.by_hand(f"It is {text} here.")
    assert not report_pages.by_hand(f"It is <!-- {{x}} -->{text}<!-- / --> here.")


@pytest.mark.parametrize(
    "text", ["`0.75` by default", "a 95 % interval", "Python 3.11", "temperature 0.8", '"1.28"']
)
def test_a_setting_is_no_figure(text: str):
    assert not report_pages.by_hand(f"It is {text} here.")


def test_a_figure_comes_from_its_file():
    page = "takes <!-- {1e3 * search.searches[0].seconds.median:.0f} ms -->? ms<!-- / --> here"
    assert re.fullmatch(r"takes <!-- .* -->\d+ ms<!-- / --> here", report_pages.fill(page))
    with pytest.raises(NameError):
        report_pages.fill("<!-- {no_such_file.seconds} --><!-- / -->")
