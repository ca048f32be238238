"""A copy of a model in fewer bits, which drafts on a fraction of the memory traffic.

One token at a time, a CPU spends its time reading weights. Norms, rotations, attention and the
residual stream of a copy are the model's own, so that it can read and write the model's caches. A
row's scores depend on that row alone, however many are computed together.

A model in the compiled kernels is copied there
(:meth:`hierspec.lm.native.backend.NativeBackend.copy_in`), one on an accelerator by
:mod:`.device_copy`. Elsewhere there are only 8 bits, and FBGEMM's integer product multiplies each
matrix, int8 with one scale for each of its output rows. Each row of the input is scaled by its own
largest entry and written as two rows of 7 bits, the second holding the first's rounding error: 7
bits alone cost a tenth of the agreement, and a second row costs next to nothing. (Sums of two
products of 7 and 8 bits fit into the 16 bits that processors without VNNI have.) That product is
not torch's public interface: it is tried once, and a message says if it is missing.
"""

# No `from __future__ import annotations`: TorchScript reads them as objects.
import copy
import threading
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hierspec.errors import HierspecError
from hierspec.lm.native import library
from hierspec.lm.native.backend import COPY_FORMS, NativeBackend
from hierspec.lm.native.formats import FORMATS
from hierspec.utils.quiet import no_warnings

from .decoder import LeanBackend
from .layers import Layer, Matrix, Norm, Stack, compile_stack
from .shape import unsupported_reason

_WEIGHT_RANGE = 127
_PAYS = 0.7  # at most so much of the target's bytes
_engine_lock = threading.Lock()  # torch packs for the quantized engine that is set globally


class QuantizedMatrix(nn.Module):
    """``x [n, in] → x @ weight.T + bias [n, out]``, float32, in 8-bit integers.

    Args:
        with_errors: multiply also the rounding errors of the input, as further rows of 7 bits.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None, with_errors: bool = True):
        super().__init__()
        self.is_packed = False
        self.with_errors = with_errors
        self.packed = _pack(weight)
        self.bias = None if bias is None else bias.float()
        self.num_out, self.num_weights = weight.size(0), weight.numel()

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.linalg.vector_norm(x, float("inf"), [-1], True).clamp_min_(1e-20).mul_(1 / 63)
        x = x / scale
        if self.with_errors:
            rounded = x.round()
            x = torch.cat([rounded, (x - rounded).mul_(126.0)])
        y = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x, 1.0, 64, self.packed
        )
        if self.with_errors:
            y, errors = y.chunk(2)
            y = torch.add(y, errors, alpha=1.0 / 126.0)
        y.mul_(scale)
        bias = self.bias  # TorchScript learns what a local name holds, not an attribute
        return y if bias is None else y.add_(bias)


def _pack(weight: Tensor) -> Any:
    """Return ``weight`` [out, in] as int8 with a scale for each row, in FBGEMM's layout."""
    weight = weight.detach().float()
    scales = (weight.abs().amax(1).double() / _WEIGHT_RANGE).clamp_min(1e-20)
    zeros = torch.zeros_like(scales, dtype=torch.int64)
    with no_warnings(), _engine_lock:
        rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        previous_engine = torch.backends.quantized.engine
        try:
            torch.backends.quantized.engine = "fbgemm"
            return torch.ops.quantized.linear_prepack(rounded, None)
        finally:
            torch.backends.quantized.engine = previous_engine


def quantization_works() -> bool:
    """Return whether a model can have an int8 copy here, by the compiled kernels or by FBGEMM."""
    return library.load() is not None or fbgemm_works()


@cache
def fbgemm_works() -> bool:
    """Return whether the integer product works on this CPU, with the same bits for a row alone."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    try:
        # The user may have changed torch's default type and device.
        kind: Any = {"dtype": torch.float32, "device": "cpu"}
        weight = torch.linspace(-1, 1, 96 * 64, **kind).view(96, 64).sin()
        x = torch.linspace(-3, 3, 5 * 64, **kind).view(5, 64).cos()
        matrix = QuantizedMatrix(weight)
        y = matrix(x)
        rows_equal = all(torch.equal(matrix(x[i : i + 1]), y[i : i + 1]) for i in range(len(x)))
        return rows_equal and bool(torch.allclose(y, F.linear(x, weight), atol=0.5))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def can_quantize(config: Any, device: str = "cpu") -> bool:
    """Return whether a model with this configuration can have such a copy on a type of device."""
    return unsupported_reason(config) is None and (device != "cpu" or quantization_works())


def copies_that_pay(own_bits: float | None = None) -> list[int]:
    """Return the bits, fewest first, of copies that a CPU reads in clearly less time than a target.

    Args:
        own_bits: of a weight of a target in a file's own; ``None``: 16 or more.
    """
    if library.load() is None:
        return [8]
    sizes = {bits: FORMATS[COPY_FORMS[bits]].bits_per_weight for bits in (4, 8)}
    return [bits for bits, size in sizes.items() if size <= _PAYS * (own_bits or 16)]


def quantize(backend: Any, bits: int = 8) -> LeanBackend:
    """Return a copy of a lean model in 8 or 4 bits; embedding, norms and caches are shared.

    Raises:
        HierspecError: the model runs on another backend; or on a CPU, where neither a C compiler
            nor FBGEMM is here; for 4 bits, no compiler.
    """
    if isinstance(backend, NativeBackend):
        return backend.copy_in(bits)
    if not isinstance(backend, LeanBackend):
        raise HierspecError(
            f"a quantized draft needs the lean backend (Llama-shaped models, by their files), and "
            f"{backend.name} runs on transformers' own modules here: give a loaded model by its "
            "path, merge an adapter into its model first (peft's merge_and_unload, then "
            "save_pretrained), or draft with the model's own layers (early_exit and layer_skip; "
            "the presets layerskip and swift)"
        )
    if backend.device.type != "cpu":
        from .device_copy import DeviceCopy

        return DeviceCopy(backend, bits)
    if bits != 8:
        raise HierspecError(
            f"a quantized draft in {bits} bits needs a C compiler, and a target that is not in "
            'float64: install gcc or clang, or leave "bits" out'
        )
    if not fbgemm_works():
        raise HierspecError(
            "a quantized draft on a CPU needs a C compiler (for models that are not in float64) or "
            "torch's FBGEMM products (x86 with AVX2): install gcc or clang, or use early_exit or "
            "layer_skip instead"
        )
    return fbgemm_copy(backend)


def fbgemm_copy(backend: LeanBackend) -> LeanBackend:
    """Return the copy whose matrices FBGEMM multiplies, layer by layer in torch."""
    copied = copy.copy(backend)
    layers: list[Any] = list(backend.stack.layers)
    copied.stack = Stack([_quantized_layer(layer) for layer in layers])
    scripted = compile_stack(copied.stack)
    copied._run = scripted or copied.stack
    copied._norm = _with_float32_rows(backend._norm)
    copied._lm_head = _matrix(backend._lm_head)
    copied.weight_dtype = torch.int8
    copied.name = f"{backend.name}:int8"
    copied.fast_path = f"lean, int8 weights{', scripted' if scripted else ''}"
    return copied


def _quantized_layer(layer: Layer) -> Layer:
    return Layer(
        norm=_with_float32_rows(layer.norm),
        qkv=_matrix(layer.qkv),
        qk_norm=layer.qk_norm,
        out=_matrix(layer.out, with_errors=False),  # its rows lose nothing by 7 bits
        mlp_norm=_with_float32_rows(layer.mlp_norm),
        gate_up=_matrix(layer.gate_up),
        down=_matrix(layer.down),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        attention_dtype=layer.attention_dtype,
        mask_index=layer.mask_index,
    )


def _matrix(matrix: Matrix, with_errors: bool = True) -> Any:
    return QuantizedMatrix(matrix.dense(), matrix.bias, with_errors)


def _with_float32_rows(norm: Norm) -> Norm:
    """Return the same norm with output in float32, whatever its weight's type; that is shared."""
    copied = copy.copy(norm)
    copied.dtype = torch.float32
    return copied
