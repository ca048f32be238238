"""Kernels in Triton against torch's operations: interpreted where there is no GPU, compiled on one."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs triton, which is made for Linux")

from hierspec.lm.lean import triton_kernels  # noqa: E402
from hierspec.lm.lean.decoder import LeanBackend  # noqa: E402
from hierspec.lm.lean.device_copy import DeviceMatrix  # noqa: E402
from hierspec.lm.lean.fixed_shape import FixedShapeForward  # noqa: E402
from hierspec.lm.lean.fused import TorchOperations  # noqa: E402
from hierspec.lm.lean.layers import Norm  # noqa: E402
from hierspec.lm.weights import from_directory  # noqa: E402
from hierspec.utils.testing import save_tiny  # noqa: E402

no_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an accelerator: torch sees no CUDA device"
)
INTERPRETED = pytest.param(
    "cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="compiled on the GPU")
)
DEVICES = [INTERPRETED, pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda])]
ERRORS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 1e-2}
pytestmark = pytest.mark.parametrize("device", DEVICES)
each_dtype = pytest.mark.parametrize("dtype", list(ERRORS), ids=str)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors differ by the rounding of their type."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= ERRORS[b.dtype if False else a.dtype] * b.norm())
