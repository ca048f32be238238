"""Hashes of files and models: another content is another hash, wherever in a file it differs."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from tiny_zoo import FOLDER

from hierspec.errors import HierspecError
from hierspec.zoo import content, fingerprint


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hashes"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(3 << 20))
    return path


def change_inside(path: Path) -> None:
    """Write to a file's middle, keeping its size, its ends and the time of its last write."""
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(b"other")
    os.utime(path, ns=times)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("settled_after", [0.0, 2.0])
def test_a_change_anywhere_is_another_hash(monkeypatch, file, settled_after):
    monkeypatch.setattr("hierspec.utils.files._SETTLED_AFTER", settled_after)
    for _ in range(2):
        assert content.content_hash(file) == digest(file)
    before = content.content_hash(file)
    change_inside(file)
    assert content.content_hash(file) == digest(file) != before


def test_a_file_that_rests_is_read_once(monkeypatch, file, cache):
    monkeypatch.setattr("hierspec.utils.files._SETTLED_AFTER", -1.0)
    found = content.content_hash(file)
    (kept,) = cache.iterdir()
    kept.write_text("f" * 64)
    assert content.content_hash(file) == "f" * 64
    for damage in ("", "f" * 63, "no hash"):
        kept.write_text(damage)
        assert content.content_hash(file) == found
    shutil.rmtree(cache.parent)
    cache.parent.write_text("in the way")  # nothing can be kept
    assert content.content_hash(file) == found


def test_older_hashes_make_room(monkeypatch, file, cache):
    monkeypatch.setattr("hierspec.utils.files._SETTLED_AFTER", -1.0)
    monkeypatch.setattr(content, "_MOST", 150)
    for _ in range(3):
        change_inside(file)
        assert content.content_hash(file) == digest(file)
    assert len(list(cache.iterdir())) == 2


def test_a_file_just_written_is_not_trusted(file, cache):
    content.content_hash(file)
    assert not cache.exists()


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(HierspecError, match=r"cannot read .*nowhere"):
        content.content_hash(tmp_path / "nowhere")


def test_a_model_that_changed_inside_has_another_fingerprint(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(FOLDER / "tiny", folder)
    mark = fingerprint.compute(str(folder))
    change_inside(folder / "model.safetensors")
    assert fingerprint.compute(str(folder)) != mark
