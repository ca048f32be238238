"""GGUF files in the kernels in their own bits: the file's weights, and no more memory than it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from gguf_files import TOKENS, save, tensors, tiny

from hierspec import Hierarchy
from hierspec.errors import HierspecError
from hierspec.lm.backend import Span
from hierspec.lm.load import load
from hierspec.lm.native import library
from hierspec.lm.native.backend import NativeBackend
from hierspec.lm.native.gguf_blocks import DECODERS
from hierspec.lm.weights import build_hf_model
from hierspec.methods.quantized import copies_that_pay, quantize
from hierspec.presets import defaults
from hierspec.zoo.gguf.source import open_gguf

gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf (extra smollm2)")
pytestmark = pytest.mark.skipif(library.load() is None, reason="no C compiler here")

IDS = torch.arange(100).remainder(len(TOKENS))
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
TYPES = [*DECODERS, "F16", "BF16", "F32"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Folders of models are the test's own; compiled kernels are everybody's."""
    monkeypatch.setattr("hierspec.zoo.gguf.folder.cache_folder", tmp_path.joinpath)


def blocks(weight: Any, kind: str) -> tuple[Any, Any]:
    """A matrix in the bits of a type: rounded, or anything, of about its size, where the package
    writes none of that type."""
    quantization = gguf.GGMLQuantizationType[kind]
    try:
        return gguf.quantize(weight, quantization), quantization
    except NotImplementedError:
        inputs, size = gguf.GGML_QUANT_SIZES[quantization]
        generator = torch.Generator().manual_seed(weight.size)
        shape = (len(weight), weight.shape[1] // inputs, size)
        raw = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        units = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
        for at in units.get(kind, (0, 2) if kind in ("Q4_K", "Q5_K") else (0,)):
            raw[..., at : at + 2] = (
                torch.tensor([0.0005 if at % 4 == 0 else 0.0003]).half().view(torch.uint8)
            )
        return raw.flatten(1).numpy(), quantization


def write(path: Any, kinds: Any, architecture: str = "llama", **options: Any) -> Any:
    """A tiny model's file; ``kinds``: (a matrix's name) → its type."""
    model = tiny(architecture, **{**SIZES, **options})
    found = tensors(model, architecture)
    stored = {n: blocks(0.3 * x, kinds(n)) for n, x in found.items() if x.ndim == 2}
    return save(path, model, architecture, stored=stored)


def scores(backend: Any) -> torch.Tensor:
    spans = [Span(backend.new_cache(128), 0, len(IDS))]
    with torch.inference_mode():
        h = backend.layers(backend.embed(IDS, spans), 0, backend.num_layers, spans)
        return backend.head(h)


def check_against_reference(path: Any, share: float = 1 / 30) -> NativeBackend:
    """Compare scores in own bits with float32's on the dequantized weights, in torch.

    The error is at most a share of that of weights and inputs in bfloat16, beside what the caches
    add.
    """
    source = open_gguf(path, "tiny")
    ours = load(source)
    assert isinstance(ours, NativeBackend)
    assert ours.new_cache(1).dtype == (torch.float32 if ours.formats == "F32" else torch.float16)
    wide = copy.copy(ours)
    wide.attention_dtype = torch.float32
    wide._set_layers(ours.layer_weights)
    exact, rounded = (
        scores(load(source, dtype, backend="lean")) for dtype in (torch.float32, torch.bfloat16)
    )
    found, error = scores(wide), (rounded - exact).abs().max()
    assert (found - exact).abs().max() <= share * error
    in_float16 = scores(ours)  # whose caches add an eighth of bfloat16's rounding
    limit = (share + 1 / 8) * (rounded - exact).abs().mean()
    assert (in_float16 - exact).abs().mean() <= limit
    for each in (found, in_float16):
        assert (each.argmax(1) == exact.argmax(1)).double().mean() >= 0.99
    return ours


@pytest.mark.parametrize("kind", TYPES)
def test_scores_are_those_of_the_files_weights(tmp_path, kind):
    """But for the rounding of inputs: to twice 8 bits of 32, or to bfloat16 where weights are."""
    path = write(tmp_path / "m.gguf", lambda name: kind)
    ours = check_against_reference(path, {"BF16": 1, "F16": 1e-3, "F32": 1e-3}.get(kind, 1 / 30))
    assert ours.formats == kind
    assert ours.num_bytes <= 1.2 * path.stat().st_size


def some(name: str) -> str:
    """Types as in files called Q4_K_M, and one that the kernels do not have."""
    if "attn_v" in name or "blk.1.ffn_down" in name or name == "token_embd.weight":
        return "Q6_K"
    return "Q8_0" if name == "output.weight" else "Q4_K"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_rows_are_in_order_in_every_architecture(tmp_path, architecture, tied):
    path = write(tmp_path / "m.gguf", some, architecture, tie_word_embeddings=tied)
    ours = check_against_reference(path)
    assert set(ours.formats.split(", ")) == {"Q4_K", "Q6_K"} | ({"Q8_0"} if not tied else set())
    assert ours.num_bytes <= 1.2 * path.stat().st_size


def test_types_that_no_kernel_has_are_dequantized_alone(tmp_path):
    path = write(tmp_path / "m.gguf", lambda n: "TQ1_0" if n == "blk.0.ffn_up.weight" else "Q5_1")
    backend = load(open_gguf(path, "tiny"))
    first, second = backend._layers.weights
    assert first.up.format.name in ("BF16", "F32")
    expected = open_gguf(path, "tiny").tensor("model.layers.0.mlp.up_proj.weight")
    found = backend.library.all_rows(first.up)
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=0)
    assert first.gate.format.name == second.up.format.name == "Q5_1"


def test_a_named_dtype_and_other_backends_dequantize(tmp_path):
    path = str(write(tmp_path / "m.gguf", some))
    for options in ({"dtype": torch.float32}, {"dtype": torch.bfloat16}, {"backend": "lean"}):
        backend = load(open_gguf(path, "m"), **options)
        assert not getattr(backend, "own_bits", False)
    exact = load(open_gguf(path, "m"), torch.float32)
    torch.testing.assert_close(
        exact.library.rows(exact._output, torch.arange(3)),
        open_gguf(path, "m").tensor("model.embed_tokens.weight")[:3],
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_K"])
def test_copies_of_a_dequantized_file_keep_its_numbers(tmp_path, kind, dtype):
    """Those that take no more bits than the copy; its own rounding of others is the file's too."""
    source = open_gguf(write(tmp_path / "m.gguf", lambda name: kind), "m")
    own, copied = load(source), quantize(load(source, dtype), 5)
    assert not copied.own_bits
    for ours, theirs in zip(copied._layers.weights, own._layers.weights, strict=True):
        for name, matrix in theirs.matrices().items():
            fewer = matrix.in_fewer_bits("Q5_1", own.library.rows)
            assert fewer is matrix
            assert torch.equal(ours.matrices()[name].panels, fewer.panels)
    assert copied._output.format.name == kind
    assert (scores(copied).argmax(1) == scores(own).argmax(1)).double().mean() >= 0.95
    rounded = quantize(load(source, dtype), 4)._layers.weights[0].up
    expected = own._layers.weights[0].up.in_fewer_bits("Q4_1", own.library.rows)
    assert torch.equal(rounded.panels, expected.panels)


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma3"])
@pytest.mark.parametrize("backend", ["auto", "hf"])
def test_what_the_kernels_do_not_run_is_dequantized(tmp_path, monkeypatch, architecture, backend):
    """For its architecture, without a compiler, or in transformers' layers; none is written."""
    monkeypatch.setattr(library, "load", lambda: None)
    sizes = {"hidden_size": 128, "intermediate_size": 128}
    path = write(tmp_path / "m.gguf", lambda name: "Q8_0", architecture, **sizes)
    source = open_gguf(path, "m")
    found = scores(load(source, torch.float32, backend=backend))
    with torch.inference_mode():
        expected = build_hf_model(source)(IDS[None]).logits[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4 * float(expected.abs().max()))
    assert not getattr(load(source, backend=backend), "own_bits", False)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_drafts_do_not_change_the_text(tmp_path):
    path = str(write(tmp_path / "m.gguf", some))
    options = {"max_new_tokens": 40, "ignore_eos": True}
    plain = Hierarchy(path, drafts=[]).generate("the the the", **options).token_ids
    for drafts in (["suffix"], ["suffix", "exit:1"], ["quantized:4"], ["quantized:8"]):
        assert Hierarchy(path, drafts=drafts).generate("the the the", **options).token_ids == plain


def test_no_copy_is_in_more_bits_than_the_target(tmp_path):
    target: Any = load(open_gguf(write(tmp_path / "m.gguf", some), "m"))
    for bits, shared in ((4, {"q", "k", "proj", "gate", "up"}), (8, None)):
        copied: Any = quantize(target, bits)
        for own, theirs in zip(target._layers.weights, copied._layers.weights, strict=True):
            same = {name for name, m in theirs.matrices().items() if m is own.matrices()[name]}
            assert same >= (shared or set(own.matrices()))
        assert copied.num_bytes <= target.num_bytes


def test_a_calibrated_copy_that_keeps_bits_of_a_file_is_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("hierspec.lm.native.kept_panels._LEAST", 1)
    of_file: Any = load(open_gguf(write(tmp_path / "m.gguf", some), "m"), torch.float32)
    plain = copy.copy(of_file)
    plain.file = None
    for backend in (of_file, plain, of_file, plain):
        assert ("Q4_K" in quantize(backend, 4, True).formats) == (backend is of_file)
    assert len(list((tmp_path / "cache" / "panels").glob("*-Q4_1"))) == 2


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("Q4_K", []), ("Q6_K", []), ("Q8_0", [4]), ("Q8_0 BF16", [5]), ("BF16", [5, 8])],
)
def test_what_drafts_by_default_depends_on_the_files_bits(tmp_path, kind, bits):
    path = str(write(tmp_path / "m.gguf", lambda name: kind.split()[-("attn" in name)]))
    assert copies_that_pay(open_gguf(path, "m").bits_per_weight) == bits
    levels = defaults.choose_default(path, device="cpu").config.levels
    assert [level.method for level in levels] == ["suffix", "quantized"][: 2 if bits else 1]
    assert levels[0].num_speculative_tokens == 3
    assert [level.bits for level in levels[1:]] == bits[-1:]
    wide = defaults.choose_default(path, dtype="bfloat16", device="cpu").config.levels
    assert [level.method for level in wide] == ["suffix", "quantized"]


def test_damage_is_a_line(tmp_path):
    path = write(tmp_path / "m.gguf", some)
    source = open_gguf(path, "m")
    content = bytearray(path.read_bytes())
    start = source._tensors["model.layers.1.mlp.up_proj.weight"].start
    content[start : start + 2] = b"\xff\xff"  # a unit that is no number
    path.write_bytes(content)
    with pytest.raises(HierspecError, match=r"up_proj\.weight holds NaN or infinity.*fetch it"):
        load(open_gguf(path, "m"))
    with pytest.raises(HierspecError, match=r"NaN or infinity in blk\.1\.ffn_up\.weight; fetch it"):
        load(open_gguf(path, "m"), torch.float32)
