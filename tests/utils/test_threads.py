"""How threads wait: what is set and what is claimed, by the OpenMP runtime that torch calls."""

import subprocess
import sys
from pathlib import Path

import pytest

from hierspec.utils import threads

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
        monkeypatch.setattr(threads, "_MAPS", maps)
        monkeypatch.setattr(threads, "_shipped_runtimes", lambda: frozenset(shipped))
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
    assert threads.is_gnu() == gnu
    threads.prepare()
    assert threads.settings() == (
        {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "6000"}
        if gnu
        else {"OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": None}
    )
    assert threads.threads_spin() == gnu
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert threads.threads_spin() == gnu
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")
    assert not threads.threads_spin()


def test_before_torch_is_loaded_its_folder_tells(process, monkeypatch):
    process(INTEL, shipped=["libgomp.so.1"])
    monkeypatch.delitem(sys.modules, "torch")
    assert threads.is_gnu(), "what else is in the process is not torch's yet"
    process(platform="darwin", shipped=["libomp.dylib"])
    monkeypatch.delitem(sys.modules, "torch")
    assert not threads.is_gnu()
    process(platform="win32")
    assert not threads.is_gnu()


def test_gnus_variables(process, monkeypatch):
    process(GNU)
    assert threads.threads_spin()
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert not threads.threads_spin()
    threads.prepare()
    assert threads.settings() == {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": None}


def test_this_process():
    """What the system lists of it, if it lists anything, is what torch came with."""
    import torch

    assert torch.get_num_threads() > 0
    loaded, shipped = (
        {Path(path).name for path in threads._loaded_runtimes()},
        threads._shipped_runtimes(),
    )
    assert not loaded or not shipped or shipped <= loaded


THREADS = """
from pathlib import Path
import torch
from hierspec.utils import threads

def work():
    torch.set_num_threads(4)
    torch.randn(512, 512) @ torch.randn(512, 512)
    return len(list(Path("/proc/self/task").iterdir()))

before = work()
threads.end_threads()
after = len(list(Path("/proc/self/task").iterdir()))
print(before, after, work())
"""


@pytest.mark.skipif(
    not threads._pause_functions(), reason="torch's OpenMP runtime is not GNU's here"
)
def test_threads_that_wait_are_given_back_and_come_again():
    command = [sys.executable, "-c", THREADS]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after, again = map(int, out.split())
    assert after <= before - 3
    assert again == before
