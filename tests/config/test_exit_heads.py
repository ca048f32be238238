"""Files of exit heads: what does not fit or is damaged is refused in a line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from heads_cases import damaged, hierarchy, level, save_random_heads
from safetensors import safe_open
from tiny_models import save_tiny

from hierspec.config import exit_heads
from hierspec.config.exit_heads import HeadsWarning, read


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("llama"), seed=3)


@pytest.fixture(scope="module")
def heads(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads") / "llama.safetensors"
    return save_random_heads(llama, path)


def test_a_files_metadata_stays_as_it_stands_there(heads) -> None:
    file = exit_heads.read(heads)
    with safe_open(file.path, framework="pt") as opened:
        assert json.dumps(file.info.to_dict()) == opened.metadata()[exit_heads.METADATA_KEY]


def _nan(info, tensors):
    tensors["exit.2.weight"][0, 0] = float("nan")


def _shape(info, tensors):
    tensors["exit.2.weight"] = tensors["exit.2.weight"][1:].clone()


def _gone(info, tensors):
    del tensors["exit.2.weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_nan, "NaN or infinite"),
        (_shape, r"has shape \(31, 32\)"),
        (_gone, "weight of exit 2 is missing"),
        (lambda info, tensors: info.update(schema_version=9), "schema version 9"),
        (
            lambda info, tensors: info.update(kind="tree"),
            "kind must be 'transform', 'full' or 'mlp'",
        ),
        (lambda info, tensors: info.pop("hidden_size"), "its metadata: 'hidden_size' is missing"),
        (lambda info, tensors: info.update(exits=[1]), "after layers 1, none after layer 2"),
        (lambda info, tensors: info.update(vocab_size=97), "vocab_size is 97"),
        (lambda info, tensors: info.update(num_layers=4), "num_layers is 4"),
        (lambda info, tensors: info.pop("exits"), "holds no exit heads"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(llama, heads, tmp_path, change, message) -> None:
    path = damaged(heads, tmp_path / "bad.safetensors", change)
    with pytest.raises(ValueError, match=message):
        hierarchy(llama, level(2, path))


WRONG = {
    "kind": ([], None, "tree"),
    "exits": ("12", 2, [], ["1", "2"], [1.0, 2.0], [0, 1], [True, 2], [2, 1], [1, 1, 2], [1, 9]),
    "model": (None, 5, ""),
    "hidden_size": ("32", 32.0, True, 0, None, [32]),
    "vocab_size": ("96", -1),
    "num_layers": ("3", None, 2),
    "input_size": ("32", 0, None),
    "fingerprint": (5, ["x"], ""),
    "parameters": ("many", 0),
    "before": ([1], {"1": 0.5}, {"1": {"kl": "low"}}, None),
    "after": ("good",),
    "texts": ("a book", None),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values]
)
def test_a_description_of_wrong_types_is_refused(heads, tmp_path, key, value) -> None:
    def change(info: dict[str, Any], tensors: Any) -> None:
        info[key] = value

    path = damaged(heads, tmp_path / "bad.safetensors", change)
    about = "exits" if (key, value) == ("num_layers", 2) else key
    with pytest.raises(ValueError, match=rf"damaged \(its metadata\.{about}\b") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def _whole_numbers(info, tensors):
    tensors["exit.2.weight"] = tensors["exit.2.weight"].int()


def _long_bias(info, tensors):
    tensors["exit.2.bias"] = torch.zeros(len(tensors["exit.2.bias"]) + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_whole_numbers, r"weight of exit 2 is of torch\.int32"),
        (_long_bias, r"bias of exit 2 has shape \(33,\), not \(32,\)"),
    ],
)
def test_tensors_that_are_no_heads_are_refused(heads, tmp_path, change, message) -> None:
    path = damaged(heads, tmp_path / "bad.safetensors", change)
    with pytest.raises(ValueError, match=message):
        read(path).tensors(2)


@pytest.mark.parametrize("left", [0, 4, 8, 60, -4000, -1])
def test_a_file_cut_short_is_refused_in_a_line(heads, tmp_path, left) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(heads.read_bytes()[:left])
    with pytest.raises(ValueError, match="is damaged") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_none_are_refused(llama, heads, tmp_path) -> None:
    short = tmp_path / "short.safetensors"
    short.write_bytes(heads.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        hierarchy(llama, level(2, short))
    with pytest.raises(ValueError, match="no exit heads at"):
        hierarchy(llama, level(2, tmp_path))
    with pytest.raises(ValueError, match="holds no exit heads"):
        hierarchy(llama, level(2, llama / "model.safetensors"))
    with pytest.raises(ValueError, match=r"levels\[0\].head must be the path"):
        hierarchy(llama, {**level(2), "head": 3})
    with pytest.raises(ValueError, match="exit layers must lie between"):
        hierarchy(llama, level(7, heads))


def test_heads_of_other_weights_warn_and_stay_exact(heads, tmp_path) -> None:
    other = save_tiny("llama", tmp_path / "other", seed=9)
    with pytest.warns(HeadsWarning, match="trained on other weights"):
        drafting = hierarchy(other, level(2, heads))
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}
    plain = hierarchy(other).generate([5, 9], **options)
    assert drafting.generate([5, 9], seed=0, **options).token_ids == plain.token_ids


def test_hierarchy_files_keep_the_head(llama, heads) -> None:
    built = hierarchy(llama, level(2, heads))
    assert built.config.to_dict()["levels"][0]["head"] == str(heads)
    assert "head" not in hierarchy(llama, level(2)).config.to_dict()["levels"][0]
