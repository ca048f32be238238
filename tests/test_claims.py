"""What README and other pages say was measured is what the committed files hold."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from claims import (
    CLAIMS,
    CONSTANTS,
    MEASURED_PAGE,
    README_PAGE,
    ROOT,
    SETTINGS,
    Claim,
    figures,
    flat,
)

# Dated findings stay as they were found, records of decisions likewise; the others are written by
# scripts, which tests run again (here, in tests/lab/papers and tests/exact).
UNCHECKED = {"LOG.md", "results.md", "evidence.md", "published-verifiers.md"}
PAGES = ["README.md", "CHANGELOG.md"] + [
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if path.name not in UNCHECKED and path.parent.name != "adr"
]


def page(name: str) -> str:
    return flat((ROOT / name).read_text(encoding="utf-8"))


def measured(name: str) -> str:
    """The part of a page that is about measurements."""
    text = page(name)
    if name == MEASURED_PAGE:
        return text
    return text[text.index("## Measured") : text.index("## Reading on")]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.said[:40]}")
def test_a_page_says_what_the_files_hold(claim: Claim):
    assert claim.text() in page(claim.page)


@pytest.mark.parametrize("name", [README_PAGE, MEASURED_PAGE])
def test_every_figure_of_a_measured_part_is_recomputed(name: str):
    left = measured(name)
    for text in (*(claim.text() for claim in CLAIMS if claim.page == name), *SETTINGS):
        left = left.replace(text, "")
    assert re.findall(r"[^ ]*\d[^ ]*", left) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_of_every_page_is_recomputed(name: str):
    left = page(name)
    for text in (*(c.text() for c in CLAIMS if c.page == name), *CONSTANTS.get(name, ())):
        assert text in left, f"{name} no longer says {text!r}"
        left = left.replace(text, "")
    assert figures(left) == []


def test_pages_of_results_are_what_the_files_say():
    script = ROOT / "benchmarks" / "report.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_one_digit_changed_is_seen():
    for claim in CLAIMS:
        text = claim.text()
        for at in [match.start() for match in re.finditer(r"\d", text)][:3]:
            other = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
            assert text not in page(claim.page).replace(text, other)
