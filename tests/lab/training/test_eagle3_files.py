"""A network is written as published ones are, in parts where it is large."""

from __future__ import annotations

import json

import pytest
import torch
from eagle3_cases import save_drafter
from safetensors.torch import load_file
from tiny_models import tiny_config

from hierspec.lm.eagle3.checkpoint import read_network
from hierspec.lm.eagle3.config import read_config
from hierspec_lab.training.eagle3 import files
from hierspec_lab.training.eagle3.network import Eagle3Network


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    return save_drafter(tmp_path_factory.mktemp("drafter"), tiny_config("llama", layers=4))


def test_a_checkpoint_survives_reading_and_writing(drafter, tmp_path):
    network = Eagle3Network.of(read_network(drafter))
    files.write_network(tmp_path / "again", network, torch.float32)
    first, second = (load_file(p / "model.safetensors") for p in (drafter, tmp_path / "again"))
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read_config(tmp_path / "again" / "config.json") == network.config


OLD_ROPE = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
NEW_ROPE = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
OTHER_LAYERS = {
    "eagle_aux_hidden_state_layer_ids": None,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
}


@pytest.mark.parametrize("changes", [OLD_ROPE, NEW_ROPE, OTHER_LAYERS])
def test_other_spellings_are_written_so_that_all_readers_find_them(tmp_path, changes):
    before = save_drafter(tmp_path / "before", tiny_config("llama", layers=4), **changes)
    network = Eagle3Network.of(read_network(before))
    files.write_network(tmp_path / "after", network, torch.float32)
    written = json.loads((tmp_path / "after" / "config.json").read_text())
    assert None not in written.values()
    assert written["rope_theta"] == (1e4 if changes is OTHER_LAYERS else 5e5)
    assert written["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    config = read_config(tmp_path / "after" / "config.json")
    assert config.llama.to_dict() == network.config.llama.to_dict()
    assert config.feature_layers == network.config.feature_layers == (1, 2, 3)


def test_a_large_checkpoint_is_written_in_parts(drafter, tmp_path, monkeypatch):
    network = Eagle3Network.of(read_network(drafter))
    files.write_network(tmp_path, network, torch.float32)
    monkeypatch.setattr(files, "_MAX_FILE_BYTES", 100)
    files.write_network(tmp_path, network, torch.float32)
    assert sorted(file.name for file in tmp_path.glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    again = Eagle3Network.of(read_network(tmp_path))
    for name, tensor in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    monkeypatch.undo()
    files.write_network(tmp_path, network, torch.float32)
    assert [file.name for file in tmp_path.glob("model*")] == ["model.safetensors"]
