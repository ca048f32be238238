"""Variants of the five papers' systems: what differs, and nothing else."""

from __future__ import annotations

import pytest
from preset_cases import flat, made, shape

from hierspec.core.windows import EntropyWindow, FixedWindow


@pytest.mark.parametrize(
    ("name", "levels", "verify"),
    [
        ("multi-draft-tokenwise", [("mid", 8, None)], "rrs"),
        ("self-verify", [("mid", 10, None)], "tokenwise"),
        ("pre-verify", [("small", 10, None), ("mid", 10, "tokenwise")], "tokenwise"),
        ("pre-self-verify", [("small", 10, None), ("mid", 10, "tokenwise")], "tokenwise"),
    ],
)
def test_builds(name, levels, verify):
    config = made(name)
    assert [shape(level) for level in config.levels] == levels
    assert config.verify == verify


def test_the_ablation_of_dynamic_windows_differs_in_windows_only():
    """P5 Table 2: pre-verify; with self-verify; HSDDW."""
    adaptive, fixed = EntropyWindow(), FixedWindow()
    windows = {
        name: [level.window for level in flat(made(name).levels)]
        for name in ("speculative", "self-verify", "pre-verify", "pre-self-verify",
                     "dynamic-windows")
    }  # fmt: skip
    assert windows == {
        "speculative": [fixed],
        "self-verify": [adaptive],
        "pre-verify": [fixed, fixed],
        "pre-self-verify": [adaptive, fixed],
        "dynamic-windows": [adaptive, adaptive],
    }


def test_every_level_but_the_smallest_has_a_tail():
    """P1 Appendix D: ten tokens of the smallest model after every level."""
    tail = ("small", 10, None)
    (two,) = made("horizontal-tail").levels
    assert shape(two) == ([[("small", 3, None), ("mid", 12, "block")], [tail]], 1)
    (three,) = made("horizontal-tail", drafts=("small", "mid", "big")).levels
    assert shape(three) == ([[shape(two), ("big", 12, "block")], [tail]], 1)


def test_tempered_is_the_hierarchy_at_another_temperature():
    plain, tempered = made("hierarchy"), made("tempered")
    assert [shape(one) for one in tempered.levels] == [shape(one) for one in plain.levels]
    assert [one.temperature for one in flat(tempered.levels)] == [0.5, 0.5]


@pytest.mark.parametrize("name", ["pre-verify", "pre-self-verify"])
def test_two_drafts_are_asked_for(name):
    with pytest.raises(ValueError, match=f"{name} needs two draft models"):
        made(name, drafts=("small",))
