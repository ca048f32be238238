"""GGUF files that are damaged, or hold something else, are one line that says what they are."""

from __future__ import annotations

import random
import re
import resource
import struct
from typing import Any

import gguf_files
import numpy as np
import pytest
from gguf_files import add_vocabulary, save, tiny

from hierspec.errors import HierspecError
from hierspec.zoo.gguf.folder import model_folder
from hierspec.zoo.gguf.header import read_header
from hierspec.zoo.gguf.source import open_gguf

gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")

pytestmark = pytest.mark.usefixtures("cache")


def refusal(path: Any) -> str:
    """Return the line by which a file is refused."""
    with pytest.raises(HierspecError) as caught:
        model_folder(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def adapter(writer: Any) -> None:
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")


def old_adapter(writer: Any) -> None:
    writer.add_string("adapter.type", "lora")


def of_type(kind: str) -> Any:
    return lambda writer: writer.add_string("general.type", kind)


def lists(key: str, values: list[Any]) -> Any:
    return lambda writer: writer.add_array(f"llama.{key}", values)


def number(key: str, value: int) -> Any:
    return lambda writer: writer.add_uint32(key, value)


def flag(key: str, value: bool) -> Any:
    return lambda writer: writer.add_bool(key, value)


def scale(key: str, value: float) -> Any:
    return lambda writer: writer.add_float32(key, value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"architecture": "falcon", "like": "llama"}, "architecture 'falcon'; GGUF files are read"),
        ({"architecture": "clip", "like": "llama"}, r"part of a model \(mmproj\)"),
        ({"architecture": "imatrix", "like": "llama"}, "an importance matrix"),
        ({"edit": adapter}, "a LoRA adapter: merge it"),
        ({"edit": old_adapter}, "a LoRA adapter: merge it"),
        ({"edit": of_type("mmproj")}, r"part of a model \(mmproj\)"),
        ({"edit": of_type("imatrix")}, "an importance matrix"),
        ({"edit": of_type("poem")}, "holds 'poem' instead of a model"),
        ({"drop": ["general.architecture"]}, "lacks the field general.architecture"),
        ({"drop": ["llama.context_length"]}, "lacks the field llama.context_length"),
        ({"drop": ["llama.block_count"]}, "lacks the field llama.block_count"),
        ({"drop": ["llama.attention.head_count"]}, "lacks the field llama.attention.head_count"),
        ({"drop": ["tokenizer.ggml.tokens"]}, "lacks the field tokenizer.ggml.tokens"),
        ({"drop": ["tokenizer.ggml.merges"]}, "lacks the field tokenizer.ggml.merges"),
        ({"drop": ["tokenizer.ggml.token_type"]}, "lacks the field tokenizer.ggml.token_type"),
        ({"drop": ["tokenizer.ggml.model"]}, "lacks the field tokenizer.ggml.model"),
        ({"drop": ["token_embd.weight"]}, "lacks model.embed_tokens.weight"),
        ({"drop": ["blk.1.ffn_up.weight"]}, "lacks model.layers.1.mlp.up_proj.weight"),
        ({"edit": number("llama.expert_count", 8)}, "a mixture of experts"),
        ({"edit": number("llama.attention.sliding_window", 64)}, "sliding_window 64, which no"),
        ({"edit": flag("llama.attention.causal", False)}, "causal False, which no"),
        ({"edit": scale("llama.attention.scale", 0.5)}, r"scale 0\.5, which no"),
        ({"edit": scale("llama.logit_scale", 8.0)}, r"logit_scale 8\.0, which no"),
        ({"edit": scale("llama.final_logit_softcapping", 30.0)}, "softcapping 30"),
        ({"edit": lists("attention.head_count_kv", [2, 1])}, "layers of different sizes"),
        ({"edit": lists("feed_forward_length", [96, 64])}, "layers of different sizes"),
        ({"edit": lists("attention.head_count", ["four"])}, "that is not a whole number"),
        ({"edit": number("llama.block_count", 0)}, "which must be at least 1"),
        ({"edit": number("llama.block_count", 1 << 30)}, "1073741824 layers, but"),
        ({"edit": number("llama.block_count", 3)}, "lacks model.layers.2"),
        ({"edit": number("llama.block_count", 1)}, "holds 'blk.1"),
        ({"edit": number("llama.embedding_length", 128)}, "its sizes ask for"),
        ({"edit": number("llama.attention.value_length", 8)}, "keys of 16 and values of 8"),
        ({"edit": number("llama.attention.head_count", 7)}, "tiny.gguf"),
        ({"edit": number("llama.attention.head_count_kv", 3)}, "do not divide among 3"),
        (
            {"edit": lambda writer: writer.add_array("general.type", ["model"])},
            "instead of a model",
        ),
        ({"extra": {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}}, "holds 'blk.0.attn_sinks"),
        ({"extra": {"blk.9.ffn_up.weight": np.ones(4, np.float32)}}, "holds 'blk.9.ffn_up.weight'"),
    ],
)
def test_what_is_no_model_that_is_read(tmp_path, cache, options, says):
    line = refusal(save(tmp_path / "tiny.gguf", tiny(), **options))
    assert re.search(says, line), line
    assert not [p for p in (cache / "models").glob("*") if p.is_dir()]


def test_a_list_of_equal_sizes_is_a_size(tmp_path):
    plain = model_folder(save(tmp_path / "tiny.gguf", tiny()))

    def edit(writer: Any) -> None:
        lists("attention.head_count_kv", [2, 2])(writer)
        lists("attention.head_count", [4, 4])(writer)
        lists("feed_forward_length", [96, 96])(writer)

    listed = model_folder(save(tmp_path / "lists.gguf", tiny(), edit=edit))
    assert (listed / "config.json").read_bytes() == (plain / "config.json").read_bytes()


def test_settings_that_change_nothing_are_none(tmp_path):
    def edit(writer: Any) -> None:
        flag("llama.attention.causal", True)(writer)
        number("llama.attention.sliding_window", 0)(writer)
        for key in ("logit_scale", "residual_scale", "embedding_scale"):
            scale(f"llama.{key}", 1.0)(writer)

    plain = model_folder(save(tmp_path / "tiny.gguf", tiny()))
    same = model_folder(save(tmp_path / "same.gguf", tiny(), edit=edit))
    assert (same / "config.json").read_bytes() == (plain / "config.json").read_bytes()


def test_a_vocabulary_alone(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    add_vocabulary(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "holds a vocabulary alone" in refusal(tmp_path / "vocabulary.gguf")


def test_quantizations_that_are_not_known(tmp_path):
    path = save(tmp_path / "tiny.gguf", tiny())
    content = bytearray(path.read_bytes())
    at = content.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 2 * 8
    assert content[at : at + 4] == struct.pack("<I", 0)
    content[at : at + 4] = struct.pack("<I", 999)
    path.write_bytes(content)
    line = refusal(path)
    assert "ggml's type 999" in line
    assert "pip install -U gguf" in line


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a GGUF file"),
        (b"GGUF", "damaged"),
        (b"no such thing at all", "is not a GGUF file"),
        (b"GGUF" + bytes(64), "of version 0 of the GGUF format"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "of version 1 of the GGUF format"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60) + bytes(64), "a count in it is wrong"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0) + bytes(64), "a count in it is wrong"),
    ],
)
def test_what_is_no_gguf_file(tmp_path, content, says):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    assert says in refusal(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = save(tmp_path_factory.mktemp("whole") / "tiny.gguf", tiny(), quantization="Q8_0")
    return path.read_bytes()


def test_a_file_cut_anywhere(tmp_path, whole):
    path = tmp_path / "tiny.gguf"
    for end in [*range(0, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:end])
        refusal(path)


def test_a_byte_changed_anywhere(tmp_path, whole):
    """Each gives a model that loads, or a line; never another error, nor memory without end."""
    generator = random.Random(7)
    path = tmp_path / "tiny.gguf"
    header = whole.index(b"blk.1.ffn_down.weight") + 60
    places = [*generator.sample(range(header), 150), *generator.sample(range(len(whole)), 10)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = []
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        try:
            source = open_gguf(path, "tiny")
            for name in source.names():
                source.tensor(name)
        except HierspecError as error:
            lines.append(str(error))
    assert len(lines) > 20
    assert not [line for line in lines if "\n" in line]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


def test_numbers_of_every_kind_that_the_format_has(tmp_path):
    values = {
        "add_uint8": 200,
        "add_int8": -3,
        "add_uint16": 60000,
        "add_int16": -300,
        "add_uint32": 1 << 31,
        "add_int32": -5,
        "add_float32": 0.5,
        "add_uint64": 1 << 63,
        "add_int64": -(1 << 60),
        "add_float64": 1e300,
        "add_bool": True,
        "add_string": "ä\n",
    }

    def edit(writer: Any) -> None:
        for name, value in values.items():
            getattr(writer, name)(f"test.{name}", value)
        writer.add_array("test.numbers", [1, -2, 3])
        writer.add_array("test.texts", ["a", "", "ä"])
        writer.add_array("test.flags", [True, False])

    fields = read_header(save(tmp_path / "tiny.gguf", tiny(), edit=edit)).fields
    for name, value in values.items():
        assert fields[f"test.{name}"] == value
    assert fields["test.numbers"] == [1, -2, 3]
    assert fields["test.texts"] == ["a", "", "ä"]
    assert fields["test.flags"] == [True, False]
    assert fields["tokenizer.ggml.tokens"] == gguf_files.TOKENS
