"""Loading by name: what is chosen, and what is said when it cannot be."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as tf
from fakes.models import InMemory
from huggingface_hub.utils import filter_repo_objects

from hierspec.config.checkpoints import load_tokenizer
from hierspec.config.target import model_config
from hierspec.core.context import Context
from hierspec.errors import HierspecError
from hierspec.lm.base import Query
from hierspec.lm.hf.decoder import HFBackend
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.load import load
from hierspec.lm.trunk.trunk import Trunk

_SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def llama(tmp_path):
    torch.manual_seed(0)
    tf.LlamaForCausalLM(tf.LlamaConfig(**_SIZES)).save_pretrained(tmp_path)
    return tmp_path


def _scores(backend):
    view = Trunk(backend).view()
    return view.score([Query(view.open(), Context([3, 1, 4, 1, 5]), 1)])


def test_auto_takes_lean_for_llama_and_hf_for_the_rest(llama, tmp_path_factory):
    lean, hf = load(llama), load(str(llama), backend="hf")
    assert isinstance(lean, LeanBackend)
    assert isinstance(hf, HFBackend)
    assert lean.name == hf.name == llama.name
    assert (_scores(lean) - _scores(hf)).abs().max() < 1e-5
    other = tmp_path_factory.mktemp("gpt2")
    tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ).save_pretrained(other)
    assert isinstance(load(other, torch.bfloat16), HFBackend)
    with pytest.raises(ValueError, match=r"gpt2.*backend='hf'"):
        load(other, backend="lean")


def test_lean_looks_for_no_kernels(llama, monkeypatch):
    monkeypatch.setattr("hierspec.lm.native.backend.load_kernels", lambda: pytest.fail("compiled"))
    assert type(load(llama, backend="lean")) is LeanBackend


def test_a_weight_source_that_is_no_directory_runs_on_both(llama):
    source = InMemory(tf.LlamaForCausalLM.from_pretrained(llama))
    lean, hf = load(source), load(source, backend="hf")
    assert (_scores(lean) - _scores(hf)).abs().max() < 1e-5


def test_missing_things_are_named(llama, tmp_path):
    with pytest.raises(ValueError, match="no directory '/nowhere/at/all'"):
        load("/nowhere/at/all")
    with pytest.raises(ValueError, match=r"neither a directory nor.*Offline"):
        load("someone/some-model")
    with pytest.raises(ValueError, match="backend must be one of"):
        load(llama, backend="fast")
    with pytest.raises(ValueError, match="floating-point"):
        load(llama, torch.int8)
    with pytest.raises(ValueError, match="not available"):
        load(llama, device="abacus")
    (llama / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json"):
        load(llama)


@pytest.fixture
def with_code(tmp_path, monkeypatch):
    """Write a folder whose files name classes in a Python file beside them; it must not run."""
    ran, folder = tmp_path / "ran", tmp_path / "model"
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))

    def write(**files):
        folder.mkdir()
        (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return str(folder)

    yield write
    assert not ran.exists()


OWN_MODEL = {
    "model_type": "of_its_own",
    "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
}
OWN_TOKENIZER = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}


def _line_about_code(read, folder):
    with pytest.raises(HierspecError) as error:
        read(folder)
    line = str(error.value)
    assert "it needs code that comes with it, and hierspec runs none" in line
    assert folder in line
    assert "trust_remote_code" not in line
    assert "\n" not in line


@pytest.mark.parametrize("read", [load, model_config])
def test_code_that_comes_with_a_model_does_not_run(with_code, read):
    _line_about_code(read, with_code(config=OWN_MODEL))


def test_code_that_comes_with_a_tokenizer_does_not_run(with_code):
    config = {"model_type": "of_its_own"}
    folder = with_code(config=config, tokenizer_config=OWN_TOKENIZER, tokenizer={})
    _line_about_code(load_tokenizer, folder)


def test_code_that_comes_with_an_adapters_base_does_not_run(with_code, tmp_path):
    pytest.importorskip("peft")
    base = with_code(config=OWN_MODEL)
    (tmp_path / "adapter").mkdir()
    named = {"base_model_name_or_path": base, "peft_type": "LORA"}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(named))
    _line_about_code(lambda base: load(tmp_path / "adapter"), base)


def test_what_is_fetched_of_a_model_on_the_hub(llama, monkeypatch):
    """The weights once, in the one form that is read; a model in other forms is told so."""
    read = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.model"]
    others = ["pytorch_model.bin", "consolidated.safetensors", "onnx/model.safetensors", "own.py"]

    def fetch(ref, local_files_only, **patterns):
        assert [*filter_repo_objects(read + others, **patterns)] == read
        return str(llama)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert load("someone/some-model").name == "someone/some-model"
    (llama / "model.safetensors").unlink()
    with pytest.raises(HierspecError, match=r"^'someone/some-model' has no .*save_pretrained it"):
        load("someone/some-model")


@pytest.mark.parametrize("backend", ["auto", "hf"])
def test_damaged_weights_are_named(llama, backend):
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load(llama, backend=backend)


def test_a_damaged_index_of_weights_is_named(llama):
    (llama / "model.safetensors").unlink()
    index = llama / "model.safetensors.index.json"
    for content, reason in [
        ('{"weight_map": {"a": 3}}', "weight_map.a must be a string, not 3: fetch or write it"),
        ('{"weight_map": []}', "weight_map must be an object"),
        ("{}", "'weight_map' is missing"),
    ]:
        index.write_text(content)
        with pytest.raises(HierspecError, match=rf"index\.json: {reason}"):
            load(llama, backend="lean")


def test_recurrent_models_are_refused_by_name(tmp_path):
    config = tf.MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1)
    tf.MambaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"mamba.*recurrent state"):
        load(tmp_path)
