"""Presets: every one runs, says whose it is, and builds what its paper describes.

That each is greedy-exact is tested in test_generate.py (float64, ragged batches) and
test_equality.py (the shipped family); here is what they build.
"""

import re
from pathlib import Path

import pytest
from acceptance_cases import with_acceptance_head
from eagle3_cases import save_drafter
from preset_cases import flat, made, shape
from transformers import AutoConfig

from hierspec import Hierarchy, TargetConfig, preset
from hierspec.cli import run
from hierspec.config.levels import LevelConfig
from hierspec.presets.registry import AUTO, PRESETS
from hierspec.presets.systems import PAPERS, layer_per_share, layers_at_shares
from hierspec.verifiers.registry import get

PAGE = Path(__file__).resolve().parents[2] / "docs" / "presets.md"
PROMPTS = [[5, 9, 7], [11, 4, 4, 30, 8], list(range(3, 40))]


@pytest.mark.parametrize("name", PRESETS)
def test_samples_from_tiny_models_the_same_in_any_company(tiny_family, name, tmp_path):
    target = TargetConfig(model=tiny_family["target"], dtype="float64")
    drafts = [tiny_family["small"], tiny_family["draft"]]
    if name == "eagle3":
        drafts = [save_drafter(tmp_path, AutoConfig.from_pretrained(tiny_family["target"]))]
    if name == "specdec++":
        drafts = [with_acceptance_head(tiny_family["small"], tmp_path / "draft")]
    config = preset(name, target, drafts)
    hierarchy = Hierarchy.from_config(config)
    options = {"max_new_tokens": 10, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    together = hierarchy.generate_batch(PROMPTS, **options)
    assert [r.num_tokens for r in together] == [10] * 3
    alone = hierarchy.generate_batch(PROMPTS[:1], **options)
    assert alone[0].token_ids == together[0].token_ids


@pytest.mark.parametrize("name", PRESETS)
def test_is_exact_and_names_its_source(name):
    config = made(name)
    assert get(config.verify).exact
    assert not config.allow_lossy
    one = PRESETS[name]
    assert one.source == "" or one.source in PAPERS
    assert one.summary
    assert "\n" not in one.summary


@pytest.mark.parametrize(
    ("name", "levels", "verify"),
    [
        ("self-speculative", [(2, 2, None), (4, 6, "block")], "block"),
        ("hispec", [(2, 2, None), (4, 4, "leading")], "block"),
        ("layerskip", [(4, 4, None)], "tokenwise"),
        ("branch", [("mid", 8, None)], "block"),
        ("multi-draft", [("mid", 8, None)], "block-rrs"),
        ("dynamic-windows", [("small", 10, None), ("mid", 15, "tokenwise")], "tokenwise"),
        ("suffix", [("suffix", 16, None)], "tokenwise"),
        ("quantized", [("quantized", 10, None)], "tokenwise"),
        ("eagle3", [("mid", 4, None)], "block"),
    ],
)
def test_builds(name, levels, verify):
    config = made(name)
    assert [shape(level) for level in config.levels] == levels
    assert config.verify == verify
    # HiSpec's check without a bonus spares the layers that its exits share.
    assert [level.bonus for level in config.levels] == [
        not (name == "hispec" and level.verify) for level in config.levels
    ]


def test_several_drafts_and_exits():
    assert [one.num_drafts for one in flat(made("multi-draft").levels)] == [4]
    assert made("self-speculative", num_layers=32).levels[1].exit_layer == 8


@pytest.mark.parametrize(
    ("name", "num_layers", "says"),
    [
        ("hispec", 2, "at least 3 layers, this one has 2"),
        ("self-speculative", 2, "at least 3 layers"),
        ("layerskip", 1, "at least 2 layers"),
    ],
)
def test_shallow_targets_are_refused(name, num_layers, says):
    with pytest.raises(ValueError, match=f"{name} needs a target of {says}"):
        made(name, num_layers)


@pytest.mark.parametrize("name", ["interleaved", "horizontal"])
def test_two_drafts_are_asked_for(name):
    with pytest.raises(ValueError, match=f"{name} needs two draft models"):
        made(name, drafts=("small",))


@pytest.mark.parametrize("name", PRESETS)
def test_takes_no_more_drafts_than_it_says(name):
    most = PRESETS[name].max_drafts
    levels = list(flat(made(name, drafts=("a", "b", "c")).levels))
    used = {one.model for one in levels if isinstance(one, LevelConfig) and hasattr(one, "model")}
    assert len(used) == (3 if most is None else most)


def test_tokenwise_speculation_is_of_those_who_found_it():
    cited = PAPERS[PRESETS["speculative"].source]
    assert re.findall(r"(Leviathan|Chen) et al\., (\d+), arXiv ([\d.]+\d)", cited) == [
        ("Leviathan", "2023", "2211.17192"),
        ("Chen", "2023", "2302.01318"),
    ]


def test_exits_at_shares_of_the_depth():
    shares = (1 / 8, 1 / 4, 1 / 2)
    assert [layers_at_shares(depth, shares) for depth in (1, 2, 3, 4, 8, 32)] == [
        (),
        (1,),
        (1, 2),
        (1, 2),
        (1, 2, 4),
        (4, 8, 16),
    ]
    assert layers_at_shares(4, (0.0, 1.0)) == (1, 3)
    assert layer_per_share(32, shares) == (4, 8, 16)
    assert layer_per_share(4, shares) == (1, 2, 3)
    assert layer_per_share(2, shares) == (1, 2, 3), "whoever asks refuses what is too deep"


def test_the_page_and_the_help_list_them_all(capsys):
    rows = re.findall(r"^\| `([\w+-]+)` \| ([^|]*) \|", PAGE.read_text(), re.M)
    cited = {name: source.strip() for name, source in rows}
    known = {name: one.source or "–" for name, one in PRESETS.items()} | {AUTO: "–"}
    assert known.items() <= cited.items()
    assert run(["generate", "--help"]) == 0
    text = re.sub(r"-\n +", "-", capsys.readouterr().out)
    assert {*PRESETS, AUTO} <= set(re.findall(r"[\w+-]+", text))
