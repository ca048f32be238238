"""How threads wait: what is set and what is claimed, by the OpenMP runtime that torch calls."""

import sys

import pytest

from hierspec.utils import openmp

GNU = "7f00-7f01 r-xp 0 fe:00 1  /lib/torch/lib/libgomp-a34b.so.1"
INTEL = "7f00-7f01 r-xp 0 fe:00 1  /opt/my env/lib/libiomp5.so"
LLVM = "7f00-7f01 r-xp 0 fe:00 1  /usr/lib/libomp.so.5"
NEITHER = "7f00-7f01 r-xp 0 fe:00 1  /usr/lib/libcompute.so"


@pytest.fixture
def process(monkeypatch, tmp_path):
    """A process with these libraries, on this system; torch's folder tells nothing."""

    def made(*lines, platform="linux", shipped=()):
        maps = tmp_path / "maps"
        maps.write_text("\n".join(lines))
        monkeypatch.setattr(openmp, "_MAPS", maps)
        monkeypatch.setattr(openmp, "_shipped", lambda: frozenset(shipped))
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setitem(sys.modules, "torch", object())
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(name, raising=False)

    return made


@pytest.mark.parametrize(
    ("lines", "gnu"),
    [
        ([GNU, NEITHER], True),
        ([INTEL], False),
        ([LLVM], False),
        ([GNU, INTEL], False),  # which of them torch calls is not known
        ([NEITHER], True),  # a Linux that does not tell
    ],
)
def test_only_gnus_runtime_reads_the_spin_count(process, monkeypatch, lines, gnu):
    process(*lines)
    assert openmp.is_gnu() == gnu
    openmp.prepare()
    assert openmp.settings() == (
        {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "6000"}
        if gnu
        else {"OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": None}
    )
    assert openmp.spins() == gnu
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert openmp.spins() == gnu
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    assert not openmp.spins()


def test_before_torch_is_loaded_its_folder_tells(process, monkeypatch):
    process(INTEL, shipped=["libgomp.so.1"])
    monkeypatch.delitem(sys.modules, "torch")
    assert openmp.is_gnu(), "what else is in the process is not torch's yet"
    process(platform="darwin", shipped=["libomp.dylib"])
    monkeypatch.delitem(sys.modules, "torch")
    assert not openmp.is_gnu()
    process(platform="win32")
    assert not openmp.is_gnu()


def test_gnus_variables(process, monkeypatch):
    process(GNU)
    assert openmp.spins()
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert not openmp.spins()
    openmp.prepare()
    assert openmp.settings() == {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": None}


def test_this_process():
    """What the system lists of it, if it lists anything, is what torch came with."""
    import torch

    assert torch.get_num_threads() > 0
    loaded, shipped = openmp._loaded(), openmp._shipped()
    assert not loaded or not shipped or shipped <= loaded
