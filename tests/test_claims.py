"""What README and other pages say was measured is what the committed files hold."""

from __future__ import annotations

import re

import pytest
from claims import CLAIMS, README, ROOT, SETTINGS, Claim, flat


def page(name: str) -> str:
    return flat((ROOT / name).read_text(encoding="utf-8"))


def measured(text: str) -> str:
    """README's part on measurements."""
    return text[text.index("## Measured") : text.index("## Reading on")]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.said[:40])
def test_a_page_says_what_the_files_hold(claim: Claim):
    assert claim.text() in page(claim.page)


def test_every_figure_of_the_measured_part_is_recomputed():
    left = measured(page("README.md"))
    for text in (*(claim.text() for claim in README), *SETTINGS):
        left = left.replace(text, "")
    assert re.findall(r"[^ ]*\d[^ ]*", left) == []


def test_one_digit_changed_is_seen():
    for claim in README:
        text = claim.text()
        for at in [match.start() for match in re.finditer(r"\d", text)][:3]:
            other = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
            assert text not in page(claim.page).replace(text, other)
