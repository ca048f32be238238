"""Other people's verifiers: enumerated, and told apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tabular_cases import models

from hierspec.cli.certify import certify
from hierspec.errors import HierspecError
from hierspec.exact.adapters import distance, examine, load_adapter, round_law
from hierspec.exact.published import PUBLISHED
from hierspec.verifiers.registry import get

LOSSY = {"transformers-ensemble", "branch-released", "typical-acceptance"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_verifiers(name):
    found = examine(PUBLISHED[name].verify, lengths=(1, 2), seeds=1)
    assert found.lossless == (name not in LOSSY)
    if name in LOSSY:
        assert max(found.tv.values()) > 1e-3
    assert all(1.0 < found.tokens[n] < n + 1 + 1e-9 for n in found.tokens)


def test_a_round_has_the_interpreters_law():
    """The harness against the rules' own probabilities."""
    q, p = models("random", 2, seed=3)
    law = round_law(PUBLISHED["block"].verify, p, q, 2)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(law, p, 3) < 1e-12
    assert get("block").exact
    tokens = {n: examine(PUBLISHED[n].verify, (2,), 2).tokens[2] for n in ("block", "gpt-fast")}
    assert tokens["block"] > tokens["gpt-fast"], "no one-draft rule keeps more than block"


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n\n\ndef verify(tokens, q, p):\n"
        "    return [*tokens.tolist(), int(torch.multinomial(p[-1:], 1))]\n"
    )
    found = examine(load_adapter(f"{path}:verify"), lengths=(1,), seeds=1)
    assert not found.lossless, "it keeps everything"
    with pytest.raises(ValueError, match="no function 'verfy'"):
        load_adapter(f"{path}:verfy")
    with pytest.raises(ValueError, match=r"give FILE\.py:FUNCTION"):
        load_adapter("nobody")


def test_what_is_no_round():
    def silent(tokens, q, p):
        return []

    with pytest.raises(ValueError, match="returns 1 to 2 token ids"):
        examine(silent, lengths=(1,), seeds=1)


def test_torch_is_left_as_it_was():
    before = torch.rand, torch.multinomial, torch.rand_like
    examine(PUBLISHED["gpt-fast"].verify, (1,), 1)
    assert (torch.rand, torch.multinomial, torch.rand_like) == before


def test_the_page_lists_them_all():
    page = Path(__file__).resolve().parents[2] / "docs" / "published-verifiers.md"
    rows = re.findall(r"^\| `([a-z-]+)`.* \| (yes|\*\*no\*\*) \|", page.read_text(), re.M)
    assert dict(rows) == {name: "**no**" if name in LOSSY else "yes" for name in PUBLISHED}


def test_the_command(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("def verify(tokens, q, p):\n    return [0]\n")
    assert certify(adapter=f"{path}:verify") == 1
    assert "NOT lossless" in capsys.readouterr().out
    with pytest.raises(HierspecError, match=r"either CASE\.json or --adapter"):
        certify()
