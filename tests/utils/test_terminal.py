"""Output on terminals: its width, and numbers of things."""

from __future__ import annotations

from hierspec.utils.terminal import console, counted


def test_files_and_pipes_get_lines_of_any_length_unless_columns_is_set(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width > 1000
    monkeypatch.setenv("COLUMNS", "60")
    assert console().width == 60
    assert console(stderr=True).width == 60
    monkeypatch.setenv("COLUMNS", "1")
    assert console().width == 40  # a letter a line helps nobody


def test_one_is_counted_in_the_singular():
    assert [counted(n, "prompt") for n in (0, 1, 2)] == ["0 prompts", "1 prompt", "2 prompts"]
