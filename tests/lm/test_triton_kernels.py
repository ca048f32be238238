"""Kernels in Triton against torch: interpreted, or compiled where there is a GPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="needs triton, which is made for Linux")

from tiny_models import save_tiny

from hierspec.lm.lean import triton_kernels
from hierspec.lm.lean.decoder import LeanBackend
from hierspec.lm.lean.device_copy import DeviceMatrix
from hierspec.lm.lean.fixed_shape import FixedShapeForward
from hierspec.lm.lean.fused import Operations
from hierspec.lm.lean.layers import Norm
from hierspec.lm.weights import from_directory

no_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an accelerator: torch sees no CUDA device"
)
compiled = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton compiles where there is a GPU"
)
pytestmark = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=compiled), pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda])],
)
ERRORS = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 8e-3}
each_dtype = pytest.mark.parametrize("dtype", list(ERRORS), ids=str)
OURS, THEIRS = triton_kernels.TritonOperations(), Operations()


def close(ours: torch.Tensor, theirs: torch.Tensor, slack: float = 1.0) -> bool:
    """Return whether two tensors differ by no more than their type's rounding."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
    return float(error) <= slack * ERRORS[ours.dtype]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@each_dtype
@pytest.mark.parametrize("width", [1, 100, 128])
def test_a_norm_after_an_addition(device, dtype, width):
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    norm = Norm(torch.randn(width, dtype=exact, device=device), width, 1e-5, dtype)
    for update in (None, torch.randn(3, width, device=device).to(dtype)):
        h = torch.randn(3, width, dtype=exact, device=device)
        h[1] = 0.0
        own, other = h.clone(), h.clone()
        assert close(OURS.add_norm(own, update, norm), THEIRS.add_norm(other, update, norm))
        assert torch.equal(own, other)


@each_dtype
@pytest.mark.parametrize("width", [1, 96, 1500])
def test_a_gate(device, dtype, width):
    gate_up = (4.0 * torch.randn(3, 2 * width, device=device)).to(dtype)
    assert close(OURS.gate(gate_up), THEIRS.gate(gate_up))


@each_dtype
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_rotation_writes_the_cache(device, dtype, kind, tmp_path):
    backend = LeanBackend(from_directory(save_tiny(kind, tmp_path / "m")), dtype, device)
    forward = FixedShapeForward(backend)
    caches = [forward.new_arena(3, 17) for _ in range(2)]
    positions = torch.tensor([[4, 5, 6], [0, 16, 16]], device=device)
    places = forward.places(positions, 16)
    layer = forward.stack[1]
    qkv = torch.randn(6, len(layer.qkv.dense()), device=device).to(dtype)
    ours = OURS.rotate(layer, qkv.clone(), places, caches[0][1])
    theirs = THEIRS.rotate(layer, qkv.clone(), places, caches[1][1])
    assert close(ours, theirs)
    read = slice(16)  # the last column is scratch, written to by several
    assert close(caches[0][..., read, :], caches[1][..., read, :])


@each_dtype
@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_layers_are_the_same_in_both(device, dtype, kind, tmp_path):
    folder = save_tiny(kind, tmp_path / "m", layers=2)
    forward = FixedShapeForward(LeanBackend(from_directory(folder), dtype, device))
    ids = torch.tensor([[3, 9, 4, 4, 8], [60, 5, 0, 0, 0]], device=device)
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 16, 16, 16]], device=device)
    found = []
    for operations in (OURS, THEIRS):
        forward.operations = operations
        arena = forward.new_arena(2, 17)
        places = forward.places(positions, 16)
        h = forward.layers(forward.embed(ids), 0, 2, arena, places).view(2, 5, -1)
        found.append(torch.cat([h[0], h[1, :2]]))
    slack = 3.0 if dtype != torch.bfloat16 else 3.0 * ERRORS[dtype] / ERRORS[torch.float32]
    assert close(*found, slack=slack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("num", "width", "num_out"), [(1, 100, 50), (17, 160, 33)])
def test_a_product_with_quantized_weights(device, dtype, bits, num, width, num_out):
    weight, bias = torch.randn(num_out, width, device=device), torch.randn(num_out, device=device)
    for own_bias in (None, bias):
        matrix = DeviceMatrix(weight.to(dtype), own_bias, bits)
        x = torch.randn(num, width, device=device).to(dtype)
        exact = None if own_bias is None else own_bias.double()
        want = F.linear(x.double(), matrix.dense().double(), exact)
        assert close(
            triton_kernels.product(x, matrix.codes, matrix.grid, matrix.bias), want.to(dtype)
        )
