"""Hierarchy files: what is read, and what each mistake says."""

import json

import pytest
import torch

from hierspec.config.chains import ConcatenateConfig
from hierspec.config.checkpoints import Loaded, key_of
from hierspec.config.schema import HierarchyConfig, TargetConfig
from hierspec.core.windows import ConfidenceWindow, EntropyWindow
from hierspec.errors import HierspecError
from hierspec.methods.draft_model import DraftModelConfig
from hierspec.methods.early_exit import EarlyExitConfig
from hierspec.methods.ngram_table import NgramTableConfig
from hierspec.presets.registry import PRESETS, preset
from hierspec.utils import machine

EXAMPLE = {
    "target": {"model": "some/model", "dtype": "bfloat16"},
    "levels": [
        {"method": "ngram_table", "max_order": 3, "num_speculative_tokens": 2},
        {
            "method": "draft_model",
            "model": "some/draft",
            "num_speculative_tokens": 9,
            "verify": "tokenwise",
            "temperature": 0.9,
            "window": {"kind": "entropy"},
        },
        {
            "method": "early_exit",
            "exit_layer": 8,
            "num_speculative_tokens": 4,
            "verify": "block",
            "bonus": True,
        },
    ],
    "verify": "block",
    "allow_lossy": False,
}


def test_reads_the_documented_example():
    config = HierarchyConfig.load(EXAMPLE)
    ngram, draft, exit_ = config.levels
    assert isinstance(ngram, NgramTableConfig)
    assert ngram.max_order == 3
    assert isinstance(draft, DraftModelConfig)
    assert draft.window == EntropyWindow()
    assert draft.temperature == 0.9
    assert isinstance(exit_, EarlyExitConfig)
    assert exit_.exit_layer == 8
    assert config.verify == "block"


def test_dtypes_and_devices_of_torch_have_their_names():
    target = {"model": "m", "dtype": torch.bfloat16, "device": torch.device("cuda", 1)}
    read = HierarchyConfig.from_dict({"target": target}).target
    assert (read.dtype, read.device) == ("bfloat16", "cuda:1")


def test_json_toml_inline_and_round_trip(tmp_path):
    config = HierarchyConfig.load(EXAMPLE)
    (tmp_path / "h.json").write_text(json.dumps(EXAMPLE))
    (tmp_path / "h.toml").write_text(
        'verify = "block"\n[target]\nmodel = "some/model"\ndtype = "bfloat16"\n'
        '[[levels]]\nmethod = "ngram_table"\nmax_order = 3\nnum_speculative_tokens = 2\n'
    )
    assert HierarchyConfig.load(tmp_path / "h.json") == config
    assert HierarchyConfig.load(json.dumps(EXAMPLE)) == config
    assert HierarchyConfig.load(tmp_path / "h.toml").levels == config.levels[:1]
    assert HierarchyConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_its_own_file_form(name):
    config = preset(name)
    again = HierarchyConfig.load(json.dumps(config.to_dict()))
    assert again == config


def test_branch_is_an_alias_of_block():
    assert HierarchyConfig.from_dict({"target": "m", "verify": "branch"}).verify == "block"


def test_concatenations_nest():
    part = {"method": "draft_model", "model": "s", "num_speculative_tokens": 2}
    chain = [part, {**part, "model": "m", "verify": "block"}]
    config = HierarchyConfig.from_dict(
        {
            "target": "t",
            "levels": [{"method": "concatenate", "parts": [chain, part], "repeat": 2}],
        }
    )
    (level,) = config.levels
    assert isinstance(level, ConcatenateConfig)
    assert [len(p) for p in level.parts] == [2, 1]
    assert HierarchyConfig.from_dict(config.to_dict()) == config


def test_confidence_window():
    level = {
        "method": "draft_model",
        "model": "d",
        "num_speculative_tokens": 3,
        "window": {"kind": "confidence", "floor": 0.2},
    }
    (read,) = HierarchyConfig.from_dict({"target": "t", "levels": [level]}).levels
    assert read.window == ConfidenceWindow(0.2)


LOOK = {"method": "prompt_lookup", "num_speculative_tokens": 2}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 2}
DRAFT = {"method": "draft_model", "model": "d", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "hierarchy: 'target' is missing"),
        ({"target": "t", "levles": []}, "did you mean 'levels'"),
        ({"target": {"modle": "t"}}, "did you mean 'model'"),
        ({"target": {}}, "'model' is missing"),
        ({"target": "t", "levels": [{**DRAFT, "num_speculative_token": 3}]}, "num_speculative"),
        ({"target": "t", "levels": [{**DRAFT, "num_speculative_tokens": 0}]}, "at least 1"),
        ({"target": "t", "levels": [{**DRAFT, "num_speculative_tokens": True}]}, "at least 1"),
        ({"target": "t", "levels": [{**DRAFT, "num_speculative_tokens": 2.5}]}, "at least 1"),
        ({"target": "t", "levels": [{**DRAFT, "temperature": -1}]}, "temperature"),
        ({"target": "t", "levels": [{**DRAFT, "temperature": float("nan")}]}, "temperature"),
        ({"target": "t", "levels": [{**DRAFT, "method": "medusa"}]}, "eagle3, early_exit"),
        ({"target": "t", "levels": [{**DRAFT, "verify": "block"}]}, "nothing below it"),
        ({"target": "t", "levels": [{**DRAFT, "bonus": False}]},
         r"levels\[0\].bonus: the first level has nothing below it .* remove it"),
        ({"target": "t", "levels": [{**DRAFT, "top_m": 2}, {**DRAFT, "verify": "leading"}]},
         r"levels\[0\].top_m: the first level has nothing below it .* remove it"),
        ({"target": "t", "levels": [{"method": "concatenate",
          "parts": [DRAFT, {**DRAFT, "bonus": False}]}]},
         r"levels\[0\].parts\[1\].bonus: the first level"),
        ({"target": "t", "levels": [DRAFT, {**DRAFT, "verify": "hope"}]}, "no verifier called"),
        ({"target": "t", "levels": [{**DRAFT, "window": {"kind": "moon"}}]}, "fixed, entropy"),
        ({"target": "t", "levels": [{**DRAFT, "window": {"kind": "entropy", "x": 1}}]}, "unknown"),
        ({"target": "t", "levels": DRAFT}, "must be a list"),
        ({"target": "t", "verify": "hope"}, "no verifier called 'hope'"),
        ({"target": "t", "verify": "blok"}, r"called 'blok'; did you mean 'block'\? There are: "),
        ({"target": "t", "levels": [DRAFT, {"method": "prompt_lookup",
          "num_speculative_tokens": 2}]}, "put it first"),
        ({"target": "t", "levels": [{"method": "early_exit", "exit_layer": 0,
          "num_speculative_tokens": 2}]}, "exit_layer"),
        ({"target": 3}, "must be an object"),
        ({"target": {"model": None}}, r"target.model must be a non-empty string \(a model's name"),
        ({"target": {"model": ""}}, r"target.model must be a non-empty string \(a model's name"),
        ({"target": {"model": "t", "dtype": None}}, "target.dtype must be a non-empty string"),
        ({"target": {"model": "t", "dtype": torch.int8}}, "unsupported dtype 'int8'"),
        ({"target": "t", "top_m": 0}, "top_m must be an integer of at least 1"),
        ({"target": "t", "verify": "leading", "top_m": "x"}, "top_m must be an integer of"),
        ({"target": "t", "allow_lossy": "yes"}, "allow_lossy must be true or false"),
        ({"target": {"model": "t", "cuda_graphs": 1}}, "target.cuda_graphs must be true or false"),
        ({"target": "t", "levels": [{**LOOK, "prompt_lookup_max": "a"}]}, "prompt_lookup_max"),
        ({"target": "t", "levels": [{**LOOK, "prompt_lookup_max": None}]}, "prompt_lookup_max"),
        ({"target": "t", "levels": [{**LOOK, "prompt_lookup_max": 4.5}]}, "prompt_lookup_max"),
        ({"target": "t", "levels": [{**DRAFT, "method": []}]}, "there are: .*draft_model"),
        ({"target": "t", "levels": [{**DRAFT, "method": "mine"}]}, "; --plugin FILE.py adds"),
        ({"target": "t", "levels": [{**DRAFT, "method": "ngram"}]}, "did you mean 'prompt_lookup'"),
        ({"target": {"model": "t", "verify": "match"}}, "target: 'verify' stands at the top level"),
        ({"target": "t", "levels": [{**DRAFT, "window": {"kind": ["a"]}}]}, "fixed, entropy"),
        ({"target": "t", "levels": [{**DRAFT, "window": {"kind": "confidence", "floor": None}}]},
         "floor must be a number"),
        ({"target": "t", "levels": [{**DRAFT, "temperature": float("inf")}]}, "temperature"),
        ({"target": "t", "levels": [{**DRAFT, "temperature": 1e-300}]}, "at least 1e-05"),
        ({"target": "t", "levels": [{"method": "concatenate", "parts": [[]]}]}, "them empty"),
        ({"target": "t", "levels": [{**LOOK, "temperature": 0.7}]},
         r"levels\[0\].temperature: prompt_lookup copies tokens .* remove it"),
        ({"target": "t", "levels": [{**LOOK, "window": "entropy"}]},
         r"levels\[0\].window: prompt_lookup copies tokens .* remove it"),
        ({"target": "t", "levels": [{**SUFFIX, "temperature": 0}]}, "temperature: suffix copies"),
        ({"target": "t", "levels": [{**SUFFIX, "window": {"kind": "confidence"}}]},
         "window: suffix copies"),
        ({"target": "t", "levels": [{"method": "concatenate",
          "parts": [DRAFT, {**LOOK, "window": "entropy"}]}]},
         r"levels\[0\].parts\[1\].window: prompt_lookup"),
    ],
)  # fmt: skip
def test_mistakes_name_the_place_and_the_fix(data, says):
    with pytest.raises(ValueError, match=says) as caught:
        HierarchyConfig.from_dict(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("level", [LOOK, SUFFIX])
def test_a_look_up_may_say_what_it_does_anyway(level):
    said = {**level, "window": {"kind": "fixed"}, "temperature": None}
    read = [HierarchyConfig.from_dict({"target": "t", "levels": [one]}) for one in (level, said)]
    assert read[0] == read[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{not json", "not valid JSON"),
        ("no/such/file.json", "cannot read"),
        ("[1]", "a hierarchy is a JSON object, not list"),
        ('{"target": "a", "levels": [], "target": "b"}', "the key 'target' appears twice"),
    ],
)
def test_unreadable_files(text, says):
    with pytest.raises(ValueError, match=says):
        HierarchyConfig.load(text)


def test_unknown_preset_lists_those_there_are():
    with pytest.raises(ValueError, match="autoregressive, speculative"):
        preset("turbo")


@pytest.mark.parametrize("source", [None, 5, ["levels"]])
def test_what_is_no_hierarchy_at_all_is_said(source):
    with pytest.raises(ValueError, match="a hierarchy is a mapping"):
        HierarchyConfig.load(source)


def test_a_preset_takes_paths_as_they_are():
    a = preset("speculative", "some/model", "some/draft")
    assert a.target == TargetConfig(model="some/model")
    assert a.levels == (DraftModelConfig(model="some/draft", num_speculative_tokens=8),)
    with pytest.raises(ValueError, match="target must be a directory"):
        preset("speculative", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["h.json", "h.toml"])
def test_a_file_that_says_something_wrong_is_named_and_its_syntax_is_not_blamed(tmp_path, name):
    level = {"method": "prompt_lookup", "num_speculative_tokens": 3, "verify": "block"}
    if name.endswith("toml"):
        lines = [f"{key} = {json.dumps(value)}" for key, value in level.items()]
        text = "\n".join(['[target]\nmodel = "t"', "[[levels]]", *lines])
    else:
        text = json.dumps({"target": {"model": "t"}, "levels": [level]})
    (tmp_path / name).write_text(text)
    with pytest.raises(HierspecError, match="the first level only drafts") as caught:
        HierarchyConfig.load(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "not valid" not in str(caught.value)


def test_a_short_name_of_a_data_type_is_answered_with_the_long_one():
    with pytest.raises(HierspecError, match="did you mean float16"):
        Loaded().backend(TargetConfig(model="zoo:tiny-draft", dtype="f16"))


def test_auto_and_the_device_it_stands_for_share_a_checkpoint():
    device = str(machine.device("auto"))
    named, left_out = (key_of(TargetConfig(model="m", device=one)) for one in (device, "auto"))
    assert named == left_out != key_of(TargetConfig(model="m", dtype="float64"))
