"""Acceptance heads as the file of a hierarchy names them: what does not fit is told in a line."""

import json

import pytest
from acceptance_cases import SHIPPED, hierarchy, level
from safetensors import safe_open

from hierspec.config.exit_heads import METADATA_KEY, HeadsWarning
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError
from hierspec_lab.acceptance import files as acceptance_head
from hierspec_lab.acceptance.window import AcceptanceWindow

COPIES = {"method": "prompt_lookup", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([level("")], "needs a trained head"),
        ([level("/nowhere.safetensors")], "no acceptance head at"),
        ([{**level(""), "method": "early_exit"}], "model"),
        ([level("x", threshold=1.5)], "between 0 and 1"),
        (
            [{"method": "prompt_lookup", "num_speculative_tokens": 2, "window": "acceptance"}],
            "copies",
        ),
        (
            [
                COPIES,
                {**level("x"), "verify": "block"},
            ],
            "belongs to a first level",
        ),
    ],
)
def test_mistakes_are_one_line(levels, message) -> None:
    with pytest.raises(HierspecError, match=message):
        hierarchy(*levels)


def test_heads_of_other_models_are_told(tmp_path) -> None:
    other = {**level(), "model": "zoo:small"}
    with pytest.raises(HierspecError, match="hidden_size is 256"):
        hierarchy(other)
    path = tmp_path / "head.safetensors"
    info = {**acceptance_head.read(SHIPPED).info.to_dict(), "fingerprint": "0" * 16}
    acceptance_head.write(path, acceptance_head.load(acceptance_head.read(SHIPPED)), info)
    with pytest.warns(HeadsWarning, match="other weights"):
        hierarchy(level(path))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(HierspecError, match="acceptance head"):
        acceptance_head.load(acceptance_head.read(path))


def test_files_keep_the_window() -> None:
    whole = {"target": {"model": "zoo:trunk"}, "levels": [level(threshold=0.8)]}
    config = HierarchyConfig.from_dict(whole)
    assert HierarchyConfig.from_dict(config.to_dict()) == config
    assert config.levels[0].window == AcceptanceWindow(0.8, SHIPPED)


def test_a_files_metadata_stays_as_it_stands_there() -> None:
    file = acceptance_head.read(SHIPPED)
    with safe_open(file.path, framework="pt") as opened:
        assert json.dumps(file.info.to_dict()) == opened.metadata()[METADATA_KEY]
