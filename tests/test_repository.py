"""What the repository holds travels: few bytes, none of them twice."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_BYTES = 60_000_000  # machines that a checkout is sent to take 64 MiB, wheels and all

sys.path.append(str(ROOT / "benchmarks"))
import pack  # noqa: E402


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def test_it_is_small(tracked):
    sizes = {path.relative_to(ROOT): path.stat().st_size for path in tracked}
    largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:10]
    assert sum(sizes.values()) <= MOST_BYTES, f"too much; the largest: {[*map(str, largest)]}"


def test_no_file_is_there_twice(tracked):
    seen: dict[bytes, Path] = {}
    for path in tracked:
        content = path.read_bytes()
        if content:
            other = seen.setdefault(hashlib.sha256(content).digest(), path)
            assert other is path, f"{path} is {other}"


def test_no_file_is_left_empty(tracked):
    """As a redirection of a shell makes one."""
    empty = {path.name for path in tracked if not path.stat().st_size}
    assert empty <= {"__init__.py", "py.typed"}


def test_results_are_packed(tracked):
    for path in tracked:
        if path.parent == pack.RESULTS and path.suffix == ".json":
            content = path.read_text(encoding="utf-8")
            packed = pack.text(pack.pack(path.stem, json.loads(content)))
            assert content == packed, f"python benchmarks/pack.py {path.relative_to(ROOT)}"
