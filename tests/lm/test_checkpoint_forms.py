"""Checkpoints in every form people have: sharded or not, tied or not, silent on their dtype."""

import itertools
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from hierspec import Hierarchy, HierspecError
from hierspec.lm import dtypes
from hierspec.lm.load import load
from hierspec.lm.weights import from_directory, stored_dtype
from hierspec.utils.testing import tiny_model

PROMPT = [5, 17, 3, 42, 8, 61, 30]


def saved(folder, *, tied, sharded, dtype=torch.float32, says="dtype"):
    """A tiny Llama; ``says``: the key under which its configuration has the dtype, or ``None``."""
    model = tiny_model("llama", seed=3, dtype=dtype, tie_word_embeddings=tied)
    model.save_pretrained(folder, max_shard_size="20KB" if sharded else "1GB")
    config = folder / "config.json"
    data = json.loads(config.read_text())
    kept = data.pop("dtype", None) or data.pop("torch_dtype", None)
    assert kept == str(dtype).removeprefix("torch.")
    config.write_text(json.dumps(data | ({says: kept} if says else {})))
    assert len([*folder.glob("*.safetensors")]) > 1 if sharded else True
    return folder


FORMS = [*itertools.product([True, False], [True, False], ["dtype", "torch_dtype", None])]


@pytest.mark.parametrize(("tied", "sharded", "says"), FORMS)
@pytest.mark.parametrize("backend", ["lean", "hf"])
def test_a_checkpoint_is_what_transformers_makes_of_it(tmp_path, tied, sharded, says, backend):
    folder = saved(tmp_path, tied=tied, sharded=sharded, says=says)
    assert ("lm_head.weight" in from_directory(folder).names()) is not tied
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    hierarchy = Hierarchy.from_config({"target": {"model": str(folder), "backend": backend}})
    ours = hierarchy.generate(PROMPT, max_new_tokens=24, ignore_eos=True).token_ids
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert list(ours) == out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("says", ["dtype", "torch_dtype", None])
@pytest.mark.parametrize("sharded", [True, False])
def test_the_dtype_is_the_weights_own_where_the_configuration_is_silent(
    tmp_path, monkeypatch, says, sharded
):
    folder = saved(tmp_path, tied=True, sharded=sharded, dtype=torch.bfloat16, says=says)
    assert stored_dtype(from_directory(folder)) == torch.bfloat16
    monkeypatch.setattr(dtypes, "is_native", lambda dtype: True)
    assert load(folder).weight_dtype == torch.bfloat16
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert theirs.dtype == torch.bfloat16


def test_a_shard_that_is_missing_is_named(tmp_path):
    folder = saved(tmp_path, tied=True, sharded=True)
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(HierspecError, match=shard.name):
        load(folder)
