"""Presets of other papers: they build what their papers describe."""

import re
from pathlib import Path

import pytest
from preset_cases import made, shape

from hierspec import Hierarchy, HierspecError, TargetConfig, preset
from hierspec.presets.registry import AUTO, PRESETS
from hierspec.presets.systems import PresetModels

PAGE = Path(__file__).resolve().parents[3] / "docs" / "presets.md"


@pytest.mark.parametrize(
    ("name", "levels", "verify"),
    [
        ("naive", [("mid", 8, None)], "naive"),
        ("swift", [("layer_skip", 25, None)], "tokenwise"),
        ("adadecode", [("adaptive_exit", 16, None)], "tokenwise"),
        ("lookahead", [("lookahead", 4, None)], "rrs"),
        ("triforce", [("mid", 3, None), ("retrieval", 8, "tokenwise")], "tokenwise"),
        ("specdec++", [("mid", 20, None)], "tokenwise"),
        ("pearl", [("mid", 4, None)], "tokenwise"),
    ],
)
def test_builds(name, levels, verify):
    config = made(name)
    assert [shape(level) for level in config.levels] == levels
    assert config.verify == verify


def test_every_drafter_of_a_cascade_has_one_below_it_and_the_look_up_comes_last():
    """CS-Drafting: the largest drafter first, smaller ones after, and within each the same."""
    copies = ("prompt_lookup", 3, None)
    small = [copies, ("small", 3, "lenient")]
    mid = [([small, [copies]], 1), ("mid", 3, "lenient")]
    config = made("cs-drafting")
    assert [shape(level) for level in config.levels] == [([mid, small, [copies]], 1)]
    assert config.verify == "tokenwise"


def test_adadecode_has_three_exits_where_there_are_layers():
    assert made("adadecode").levels[0].exit_layers == (4, 8, 12)
    assert made("adadecode", num_layers=3).levels[0].exit_layers == (1, 2)
    with pytest.raises(ValueError, match="adadecode needs a target of at least 3 layers"):
        made("adadecode", 2)


def test_adadecode_takes_trained_heads_where_there_are_some():
    target = TargetConfig(model="t")
    models = PresetModels(target, (), lambda: 30, "heads", (5, 10, 15, 20))
    (level,) = PRESETS["adadecode"].make(models).levels
    assert (level.exit_layers, level.head, level.unsure) == ((10, 15, 20), "heads", "target")
    models = PresetModels(target, (), lambda: 30, "heads", (5, 10))
    (level,) = PRESETS["adadecode"].make(models).levels
    assert (level.exit_layers, level.head, level.unsure) == ((8, 15, 22), None, "target")


def test_a_draft_model_with_a_head_is_asked_for():
    with pytest.raises(HierspecError, match="an acceptance head in its folder"):
        preset("specdec++", "zoo:smollm2")


def test_the_page_lists_no_other_presets():
    assert set(re.findall(r"^\| `([\w+-]+)` \|", PAGE.read_text(), re.M)) == {*PRESETS, AUTO}


def test_follow_up_calls_of_a_rule_count(tiny_family):
    """Naive branch resampling asks the target again after a rejection; the record says so."""
    naive = Hierarchy.from_preset(
        "naive", target=tiny_family["target"], drafts=[tiny_family["small"]]
    )
    result = naive.generate([1, 2, 3], max_new_tokens=40, temperature=1.0, seed=3)
    level = result.levels[0]
    assert level["num_accepted_tokens"] < level["num_draft_tokens"]
    assert result.target_calls == result.target["calls"] > level["num_drafts"]
    assert result.mean_acceptance_length == (result.num_tokens - 1) / result.target_calls
