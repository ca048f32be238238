"""Matrices in every format: what GGUF's blocks say, and products of any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import ROUNDED, check_products, shapes_of
from unpacking import dense, values

from hierspec.lm.native import library, matrices
from hierspec.lm.native.formats import FORMATS, SUPER
from hierspec.lm.native.gguf_blocks import DECODERS, decode
from hierspec.lm.native.matrices import PackedMatrix, pack_codes
from hierspec.lm.native.rounding import round_to

needs_compiler = pytest.mark.skipif(library.load() is None, reason="no C compiler here")


def blocks(name: str, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Random blocks of a GGUF file: any bytes, but scales that are small numbers."""
    gguf = pytest.importorskip("gguf", reason="the extra `smollm2` is not installed")
    kind = gguf.GGMLQuantizationType[name]
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, width // size, num_bytes), dtype=np.uint8)
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}
    both = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    for start in scales.get(name, (0, 2) if name in both else (0,)):
        halves = (rng.standard_normal((rows, width // size, 1)) / 64).astype(np.float16)
        raw[:, :, start : start + 2] = halves.view(np.uint8)
    if name == "MXFP4":
        raw[:, :, 0] = rng.integers(118, 128, raw.shape[:2])
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("name", DECODERS)
def test_blocks_mean_what_the_reference_reads(name):
    raw = blocks(name, 21, 2 * SUPER)
    import gguf

    expected = torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType[name]))
    parts = decode(name, torch.from_numpy(raw))
    assert torch.equal(values(FORMATS[name], parts), expected)
    form = FORMATS[name]
    packed = PackedMatrix(form, 21, 2 * SUPER, pack_codes(parts, form))
    assert torch.equal(dense(packed), expected)
    # What a weight takes: of a file's bits at most a twentieth more, for whole bytes of scales.
    bits = 8 * packed.num_bytes / (32 * 2 * SUPER)  # 32 outputs with the padded ones
    assert bits == form.bits_per_weight <= 1.06 * 8 * raw.size / expected.numel()


def test_exponents_of_mxfp4_to_the_smallest():
    gguf = pytest.importorskip("gguf", reason="the extra `smollm2` is not installed")
    raw = np.zeros((256, 17), dtype=np.uint8)
    raw[:, 0], raw[:, 1:] = np.arange(256), 0x71
    raw = raw[:255]  # 255 is no number
    expected = torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType.MXFP4))
    found = values(FORMATS["MXFP4"], decode("MXFP4", torch.from_numpy(raw)))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("width", [1, 31, 64, 97])
def test_rounding_errs_by_half_a_step(name, width):
    form = FORMATS[name]
    weight = torch.linspace(-1, 2, 5 * width).view(5, width).mul(7).sin()
    weight[1], weight[2] = 0.0, 0.25  # no range
    found = dense(PackedMatrix.of(weight, name))
    if form.is_float:
        assert torch.equal(found, weight.to(form.dtype).float())
        return
    parts = round_to(weight, form)
    half = parts.steps.float().repeat_interleave(32, 1)[:, :width] / 2
    # Steps and lowest values are rounded to float16, which moves the ends of a group's range.
    assert ((found - weight).abs() <= half + 2e-3).all()


@needs_compiler
@pytest.mark.parametrize("name", FORMATS)
def test_products_are_those_of_the_weights(name):
    """Against float64; and every row has the same bits alone, whatever the number of threads."""
    kernels = library.load()
    assert kernels is not None
    shapes = [*shapes_of(name), *[(37, 577)] * (name in ROUNDED)]
    for number, (num_out, width) in enumerate(shapes):
        check_products(kernels, name, num_out, width, number)
        if not FORMATS[name].is_float:
            check_products(kernels, name, num_out, width, number, narrow=True)


def test_matrices_lie_behind_one_another_as_long_as_one_is_left(monkeypatch):
    memory = matrices._PanelMemory()
    monkeypatch.setattr(matrices, "empty_panels", memory.empty)
    weights = [torch.randn(48, 64), torch.randn(53, 70)]
    kept = [PackedMatrix.of(weight, "F32") for weight in weights]
    chunk = memory._chunk
    assert kept[1].panels.data_ptr() == kept[0].panels.data_ptr() + kept[0].panels.nbytes
    while kept:
        assert chunk() is not None
        assert torch.equal(dense(kept.pop(0)), weights.pop(0))
    assert chunk() is None
