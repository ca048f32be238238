"""The level method ``eagle3``: in files, over tiny targets, alone and below other levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3_cases import LAYERS, save_drafter
from tiny_models import save_tiny
from transformers import AutoConfig
from work import Work

from hierspec import Hierarchy
from hierspec.config.schema import HierarchyConfig
from hierspec.errors import HierspecError

PROMPTS = [[5, 9, 7], [11], list(range(3, 20))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 target of four layers, and a drafter that knows half of its tokens."""
    folder = tmp_path_factory.mktemp("models")
    target = save_tiny("llama", folder / "target", layers=4, dtype=torch.float32)
    save_drafter(folder / "eagle3", AutoConfig.from_pretrained(target), known=48)
    return folder


def hierarchy(folder: Path, levels: list[dict[str, Any]], **target: Any) -> Hierarchy:
    top = {"model": str(folder / "target"), "dtype": "float32", **target}
    return Hierarchy.from_config({"target": top, "levels": levels, "verify": "block"})


def eagle3(folder: Path, tokens: int = 3, **more: Any) -> dict[str, Any]:
    level = {"method": "eagle3", "model": str(folder / "eagle3")}
    return {**level, "num_speculative_tokens": tokens, **more}


STACKS = {
    "alone": [],
    "below an exit": [
        {"method": "early_exit", "exit_layer": 3, "num_speculative_tokens": 4, "verify": "block"}
    ],
}


@pytest.mark.parametrize("backend", ["lean", "hf"])
@pytest.mark.parametrize("above", STACKS)
def test_greedy_text_is_the_targets(folder, backend, above):
    plain = hierarchy(folder, [], backend=backend)
    built = hierarchy(folder, [eagle3(folder), *STACKS[above]], backend=backend)
    options = {"max_new_tokens": 12, "ignore_eos": True}
    wanted = [r.token_ids for r in plain.generate_batch(PROMPTS, **options)]
    assert [r.token_ids for r in built.generate_batch(PROMPTS, **options)] == wanted


@pytest.mark.parametrize("more", [{}, {"window": "entropy"}, {"temperature": 0.6}])
def test_samples_are_the_same_in_any_company(folder, more):
    built = hierarchy(folder, [eagle3(folder, **more)])
    options = {"max_new_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    together = built.generate_batch(PROMPTS, **options)
    for prompt, result in zip(PROMPTS[:1], together, strict=False):
        assert built.generate_batch([prompt], **options)[0].token_ids == result.token_ids


def test_as_part_of_a_concatenation(folder):
    look_up = {"method": "prompt_lookup", "num_speculative_tokens": 2}
    parts = {"method": "concatenate", "parts": [eagle3(folder, 2), look_up]}
    options = {"max_new_tokens": 16, "ignore_eos": True}
    wanted = hierarchy(folder, []).generate_batch(PROMPTS, **options)
    found = hierarchy(folder, [parts]).generate_batch(PROMPTS, **options)
    assert [r.token_ids for r in found] == [r.token_ids for r in wanted]


def test_no_target_layer_runs_twice_for_a_token(folder):
    built = hierarchy(folder, [eagle3(folder)])
    done = Work(built.root.model.trunk)
    result = built.generate([7, 3, 9, 1, 4], max_new_tokens=30, ignore_eos=True)
    (level,) = result.levels
    # The prompt's five tokens, the last of them in the first check, which is no counted call; in
    # each other check the latest token; and every draft token, in the one check it was in.
    assert done.tokens == [5 + result.target_calls + level["num_draft_tokens"]] * 4


def test_it_cannot_verify(folder):
    low = {"method": "prompt_lookup", "num_speculative_tokens": 2}
    with pytest.raises(HierspecError, match="eagle3 cannot verify") as error:
        HierarchyConfig.from_dict(
            {"target": "t", "levels": [low, {**eagle3(folder), "verify": "block"}]}
        )
    assert "\n" not in str(error.value)


def test_another_target_is_refused_in_one_line(folder, tmp_path):
    save_tiny("llama", tmp_path / "target", layers=4, hidden_size=48)
    with pytest.raises(HierspecError, match=r"32 numbers and .* has 48") as error:
        hierarchy(tmp_path, [eagle3(folder)])
    assert "\n" not in str(error.value)


def test_a_name_that_is_not_there(folder):
    with pytest.raises(HierspecError, match="no directory"):
        hierarchy(folder, [{**eagle3(folder), "model": str(folder / "none")}])
    with pytest.raises(HierspecError, match="zoo:smollm2-eagle3"):
        hierarchy(folder, [{**eagle3(folder), "model": "zoo:large"}])


def test_layers_read_are_exits_of_the_trunk(folder):
    built = hierarchy(folder, [eagle3(folder)])
    assert built.root.model.trunk.exits == (*LAYERS, 4)
