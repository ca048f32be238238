"""Files that are there as a whole or not at all, refusals before work, and bounds on threads."""

import os
import stat
from pathlib import Path

import pytest
import torch

from hierspec.utils import threads
from hierspec.utils.files import (
    cache_folder,
    read_text,
    validate_folder_writable,
    validate_writable,
    write_atomically,
)


def test_a_text_is_read_without_its_byte_order_mark(tmp_path):
    (tmp_path / "windows.json").write_text("{}", encoding="utf-8-sig")
    assert read_text(tmp_path / "windows.json", "the file") == "{}"


def test_what_writes_itself_is_there_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file"
    write_atomically(path, lambda target: target.write_text("first"), "text")
    assert path.read_text() == "first"

    def half(target: Path) -> None:
        target.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, half, "text")
    assert path.read_text() == "first"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_what_cannot_be_written_says_why(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=r"^cannot write text to .*file/x: (Not a dir|File exists)"
    ):
        write_atomically(tmp_path / "file" / "x", "text", "text")

    def fails(target: Path) -> None:
        raise OSError("no number")

    with pytest.raises(ValueError, match=r"no number$"):
        write_atomically(tmp_path / "x", fails, "text")


def test_links_stay_links_and_pipes_pipes(tmp_path):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, "new", "text")
    assert link.is_symlink()
    assert real.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, b"through", "text")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "real"]


@pytest.mark.parametrize("inside", ["x", "new/deep/x"])
def test_what_can_be_written_leaves_no_trace_of_the_trial(tmp_path, inside):
    validate_writable(tmp_path / inside, "text")
    validate_folder_writable(tmp_path / inside, tmp_path / inside, "text")
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_can_be_written_to():
    validate_writable(Path(os.devnull), "text")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "it is a folder; name a file in it$"),
        ("file/x", "file is not a folder; name another file$"),
        ("/proc/x", r"no file can be made in /proc \(.*\); name another file$"),
        ("long" * 100 + "/x", r"no file can be made in .*\(File name too long\); name another"),
    ],
)
def test_what_could_not_be_written_is_refused(tmp_path, path, says):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="^cannot write text to .*" + says):
        validate_writable(tmp_path / path, "text")


@pytest.mark.parametrize("path", ["file", "file/x", "/proc/x"])
def test_folders_that_could_not_be_written_into_are_refused(tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^cannot write text to .*; name another folder$"):
        validate_folder_writable(tmp_path / path, tmp_path / path, "text")


def test_the_cache_is_where_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for said in ("~/kept", str(tmp_path / "kept")):  # no shell expands what a Dockerfile sets
        monkeypatch.setenv("HIERSPEC_CACHE", said)
        assert cache_folder("part") == tmp_path / "kept" / "part"


def test_threads_have_a_bound(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    for count in (None, 1, 3 * threads.PER_CPU):
        threads.use_threads(count)
    assert asked == [1, 3 * threads.PER_CPU]
    for count in (0, -1, 3 * threads.PER_CPU + 1, 100_000):
        with pytest.raises(ValueError, match="--threads must lie between 1 and 24 here"):
            threads.use_threads(count)
    assert len(asked) == 2
