"""A verifier of one's own: found, enumerated, and refused where it is none."""

from __future__ import annotations

import pytest
import torch

from hierspec.cli.certify import certify
from hierspec.errors import HierspecError
from hierspec_lab.verifiers.adapters import examine, load_adapter


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
    def draw(tokens, q, p):
        return torch.multinomial(p[:1], 1)[0]

    before = torch.rand, torch.multinomial, torch.rand_like
    assert examine(draw, (1,), 1).lossless
    assert (torch.rand, torch.multinomial, torch.rand_like) == before


def test_the_command(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n\n\ndef verify(tokens, q, p):\n"
        "    return [int(torch.multinomial(q[:1], 1))]\n"
    )
    assert certify(adapter=f"{path}:verify") == 1
    out = capsys.readouterr().out
    assert "NOT lossless" in out
    assert "float32" not in out
    rounded = tmp_path / "rounded.py"
    rounded.write_text(path.read_text().replace("q[:1]", "p[:1] + 1e-8"))
    assert certify(adapter=f"{rounded}:verify") == 1
    assert "as far as float32 rounds" in capsys.readouterr().out
    with pytest.raises(HierspecError, match=r"either CASE\.json or --adapter"):
        certify()


def test_an_adapters_file_that_is_missing_is_named() -> None:
    with pytest.raises(HierspecError, match=r"no file 'nofile\.py' with the adapter 'verify'"):
        load_adapter("nofile.py:verify")


def test_an_adapter_that_is_not_named_in_full_gets_a_hint(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def verify(tokens, q, p): ...", encoding="utf-8")
    for location in (f"{file}", f"{file}:"):
        with pytest.raises(
            HierspecError, match=r"which function of .*mine\.py\? Give .*:FUNCTION$"
        ):
            load_adapter(location)
    with pytest.raises(HierspecError, match=r"no file 'gone\.py'$"):
        load_adapter("gone.py")
