"""The kernels of ``kernels.c``: compiled once for this processor, called on tensors' addresses.

A C compiler need not be there: without one (or with ``HIERSPEC_KERNELS=0``) :func:`load` returns
None and callers use torch's own operations. What is compiled is kept in the user's cache, under a
name that holds the source, the compiler with its version, and the processor; where that cannot be
written, it lives as long as the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from hierspec.errors import HierspecError
from hierspec.lm.backend import Span
from hierspec.lm.trees import Branches
from hierspec.utils.files import cache_folder, write_whole

from .layers import Layer, Matrix, Norm

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi", "-shared", "-fPIC"]
# Of these, the first that the compiler takes: some know one name of the processor, some have no
# OpenMP (kernels then run on one thread).
_VARIANTS = (["-march=native", "-fopenmp"], ["-mcpu=native", "-fopenmp"], ["-march=native"], [])
_SECONDS = 120  # for the compiler
_WEIGHT_RANGE, _MOST_CODE = 127, 15
NEAR = 8.0  # nats below the best score, in 4 bits, up to which a token's is made in 8
_PANEL, _GROUP = 16, 32  # outputs side by side, inputs of one grid: as in kernels.c
_lock = threading.Lock()


class _Matrix(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("weight", "grid", "scale", "bias")),
        *((name, c_int64) for name in ("out", "width", "bits")),
    ]


class _LayerStruct(Structure):
    _fields_ = [
        *((name, _Matrix) for name in ("qkv", "proj", "gate", "up", "down")),
        *((name, c_void_p) for name in ("norm", "mlp_norm", "head_norm")),
        ("window", c_int64),
    ]


class _Model(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("hidden", "inner", "heads", "kv_heads", "dim")),
        ("eps", c_float),
        ("head_eps", c_float),
        ("layers", POINTER(_LayerStruct)),
    ]


class _Span(Structure):
    _fields_ = [
        ("cache", c_void_p),
        *((name, c_int64) for name in ("layer_stride", "head_stride", "start", "count")),
        ("tree", POINTER(c_int64)),
    ]


@cache
def load() -> ctypes.CDLL | None:
    """The compiled kernels; None where there is no compiler, or where what it made is not right."""
    if os.environ.get("HIERSPEC_KERNELS", "").strip() == "0" or os.name != "posix":
        return None
    found = os.environ.get("CC") or next(filter(shutil.which, _COMPILERS), None)
    if found is None:
        return None
    source = files("hierspec.lm.lean").joinpath("kernels.c").read_bytes()
    flags = repr((_FLAGS, _VARIANTS)).encode()
    mark = [source, found.encode(), _version(found.split()), _processor().encode(), flags]
    name = f"kernels-{hashlib.sha256(b'|'.join(mark)).hexdigest()[:16]}.so"
    with _lock:
        library = _kept(found.split(), source, name)
    if library is None:
        return None
    library.hierspec_layers.argtypes = [
        *(POINTER(_Model), c_int64, c_int64, c_void_p, c_int64, c_void_p),
        *(POINTER(_Span), c_int64, c_int),
    ]
    library.hierspec_head.argtypes = [
        *(POINTER(_Matrix), c_void_p, c_float, c_void_p, c_int64, c_void_p, c_int),
    ]
    library.hierspec_two_heads.argtypes = [
        *(POINTER(_Matrix), POINTER(_Matrix), c_float, c_void_p, c_float, c_void_p, c_int64),
        *(c_void_p, c_int),
    ]
    library.hierspec_attention.argtypes = [
        *(POINTER(_Model), c_int64, c_void_p, c_int64, c_void_p),
        *(POINTER(_Span), c_int64, c_void_p, c_int),
    ]
    library.hierspec_layers.restype = library.hierspec_head.restype = c_int
    library.hierspec_attention.restype = c_int
    library.hierspec_two_heads.restype = c_int
    return library if _right(library) else None


def _kept(compiler: Sequence[str], source: bytes, name: str) -> ctypes.CDLL | None:
    """The library from the user's cache, compiled first where it is not there or is damaged."""
    path = None
    with contextlib.suppress(HierspecError, OSError):
        path = cache_folder("kernels") / name
        if path.exists():
            return ctypes.CDLL(str(path))
    # There may be no folder to compile in; one on a network may keep what is loaded from it.
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
    ):
        made = _compiled(compiler, source, Path(scratch))
        if made is None:
            return None
        places = [made]
        if path is not None:
            with contextlib.suppress(HierspecError):
                write_whole(path, made.read_bytes(), "the kernels")
                places.append(path)
        for place in places:  # nothing may be run from some temporary folders
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(place))
    return None


def _compiled(compiler: Sequence[str], source: bytes, folder: Path) -> Path | None:
    written, made = folder / "kernels.c", folder / "kernels.so"
    written.write_bytes(source)
    for variant in _VARIANTS:
        command = [*compiler, *_FLAGS, *variant, str(written), "-o", str(made), "-lm"]
        try:
            if not subprocess.run(command, capture_output=True, timeout=_SECONDS).returncode:
                return made
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None


def _version(compiler: Sequence[str]) -> bytes:
    """What the compiler says of itself: after an upgrade kernels are compiled anew."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        asked = [*compiler, "--version"]
        return subprocess.run(asked, capture_output=True, timeout=_SECONDS).stdout
    return b""


def _processor() -> str:
    """What tells this processor from one that code made here might not run on."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        telling = ("model name", "flags", "Features", "CPU part")
        return "|".join(sorted({line for line in lines if line.startswith(telling)}))
    return f"{platform.machine()} {platform.processor()}"


def _right(library: ctypes.CDLL) -> bool:
    """Whether a small product comes out as torch's."""
    # Not of the type and on the device that the user may have made torch's own choice.
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    weight = torch.linspace(-1, 1, 21 * 40, **kind).view(21, 40).sin()
    x = torch.linspace(-3, 3, 9 * 40, **kind).view(9, 40).cos()
    norm = Norm(x.new_ones(40), 40, 1e-5, torch.float32)
    near = {32: 1e-4, 16: 0.1, 8: 1e-4, 4: 1e-4}  # in 16 bits inputs are rounded
    return all(
        torch.allclose(head(library, matrix, norm, x, 1), norm(x) @ matrix.plain().T, atol=atol)
        for matrix, atol in ((Panels(weight, bits=bits), atol) for bits, atol in near.items())
    )


def fast_in_4_bits() -> bool:
    """Whether the kernels are here, and products in 4 bits faster than in 8 (x86 with AVX2)."""
    library = load()
    return library is not None and bool(library.hierspec_fast_in_4_bits())


class Panels:
    """A matrix [out, in] in 32, 16, 8 or 4 bits, in the order in which the kernels read it.

    In 32 bits it is float32 and in 16 bfloat16. In 8 bits an output has a scale. In 4 bits 32
    inputs of an output share a step and a lowest value in float16, as in GGUF's Q4_1.

    Args:
        weight: [out, in], of any floating dtype.
        bias: [out].
        bits: of a weight, 32, 16, 8 or 4.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, bits: int = 8
    ) -> None:
        weight = weight.detach().float()
        self.num_out, self.width = weight.shape
        self.num_weights = weight.numel()
        self.bits = bits
        padded = -(-self.num_out // _PANEL) * _PANEL
        self.scale, self.bias = weight.new_ones(padded), weight.new_zeros(padded)
        if bias is not None:
            self.bias[: self.num_out] = bias.detach().float()
        self.grid: torch.Tensor | None = None
        weight = F.pad(weight, (0, 0, 0, padded - self.num_out))
        if self.bits == 32:
            codes = weight
        elif self.bits == 16:
            codes = F.pad(weight, (0, self.width % 2)).bfloat16().view(padded, -1, 2)
        elif self.bits == 8:
            self.scale = (weight.abs().amax(1) / _WEIGHT_RANGE).clamp_min(1e-20)
            codes = (weight / self.scale[:, None]).round_().to(torch.int8)
        else:
            codes, grid = _coded(weight)
            self.grid = grid.view(-1, _PANEL, *grid.shape[1:]).permute(0, 2, 3, 1).contiguous()
            codes = codes.view(padded, -1, 2, 4)
            codes = codes[:, :, 0] | codes[:, :, 1] << 4  # [out, in / 8, 4]
        rows = codes.view(-1, _PANEL, *codes.shape[1:])
        self.weight = rows.transpose(1, 2).contiguous()

    @property
    def num_bytes(self) -> int:
        """What is read from memory for a product."""
        grid = 0 if self.grid is None else self.grid.nbytes
        return self.weight.nbytes + grid

    def plain(self) -> torch.Tensor:
        """The weights that products are made with, float32 [out, in]."""
        rows = self.weight.transpose(1, 2).flatten(0, 1)
        if self.bits == 16:
            return rows.flatten(1)[: self.num_out, : self.width].float()
        if self.grid is None:
            return (rows * self.scale[:, None])[: self.num_out]
        codes = torch.stack([rows & 15, rows >> 4], 2).flatten(1)[:, : self.width]
        step, lowest = self.grid.float().permute(2, 0, 3, 1).reshape(2, len(rows), -1)
        step, lowest = (x.repeat_interleave(_GROUP, 1)[:, : self.width] for x in (step, lowest))
        return (codes * step + lowest)[: self.num_out]

    def c(self) -> _Matrix:
        """The same for C; it borrows this object's memory."""
        grid = None if self.grid is None else self.grid.data_ptr()
        addresses = self.weight.data_ptr(), grid, self.scale.data_ptr(), self.bias.data_ptr()
        return _Matrix(*addresses, self.num_out, self.width, self.bits)


def _coded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [out, in] → codes 0 … 15, uint8 [out, groups · 32], and a group's step and lowest
    value, float16 [out, groups, 2].
    """
    missing = -weight.size(1) % _GROUP
    # The last group's gaps are filled with its own last weight, which widens no range.
    filled = torch.cat([weight, weight[:, -1:].expand(-1, missing)], 1)
    groups = filled.view(len(weight), -1, _GROUP)
    lowest, highest = groups.aminmax(dim=2)
    grid = torch.stack([(highest - lowest) / _MOST_CODE, lowest], 2).half()
    step, start = grid.float().unsqueeze(2).unbind(3)
    codes = ((groups - start) / step.clamp_min(1e-20)).round_().clamp_(0, _MOST_CODE)
    return codes.to(torch.uint8).flatten(1), grid


class KernelLayers:
    """A lean model's layers, their matrices in 32, 16, 8 or 4 bits, run by the kernels.

    Args:
        layers: the lean model's, in any dtype; they are copied.
        dim: D, of a head.
        windows: by kind of layer, how many positions one sees back; None for all.
        bits: of a weight.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[Layer],
        dim: int,
        windows: Sequence[int | None],
        bits: int = 8,
    ) -> None:
        self._library, self._bits = library, bits
        self._kept: list[object] = []  # what C holds addresses of
        first = layers[0]
        array = (_LayerStruct * len(layers))()
        for place, layer in zip(array, layers, strict=True):
            place.qkv, place.proj = self._matrix(layer.qkv), self._matrix(layer.out)
            place.gate, place.up = self._matrix(layer.gate_up, 0), self._matrix(layer.gate_up, 1)
            place.down = self._matrix(layer.down)
            place.norm, place.mlp_norm = self._weight(layer.norm), self._weight(layer.mlp_norm)
            place.head_norm = self._weight(layer.head_norm)
            place.window = windows[layer.kind] or 0
        self._model = _Model(
            hidden=first.down.num_out,
            inner=first.gate_up.num_out // 2,
            heads=first.heads,
            kv_heads=first.kv_heads,
            dim=dim,
            eps=float(first.norm.eps) ** 2,
            head_eps=0.0 if first.head_norm is None else float(first.head_norm.eps) ** 2,
            layers=array,
        )

    def __call__(
        self,
        h: torch.Tensor,
        lo: int,
        hi: int,
        rotations: torch.Tensor,
        spans: Sequence[Span],
        threads: int,
    ) -> torch.Tensor:
        """Layers lo … hi − 1 on h [N, d] (kept) → [N, d]; keys and values go into the caches.

        Args:
            rotations: complex64 [positions, 1, D / 2], contiguous.
            spans: whose caches are float32 [layers, 1, 2 K, capacity, D].
        """
        h = h.contiguous().clone()
        array = _spans(spans)
        failed = self._library.hierspec_layers(
            *(self._model, lo, hi, h.data_ptr(), len(h), rotations.data_ptr()),
            *(array, len(spans), threads),
        )
        if failed:
            raise MemoryError(f"no memory for {len(h)} rows")
        return h

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices."""
        return sum(kept.num_bytes for kept in self._kept if isinstance(kept, Panels))

    def _matrix(self, matrix: Matrix, half: int | None = None) -> _Matrix:
        weight, bias = matrix.plain(), matrix.bias
        if half is not None:
            weight = weight.chunk(2)[half]
            bias = None if bias is None else bias.chunk(2)[half]
        copied = Panels(weight, bias, self._bits)
        self._kept.append(copied)
        return copied.c()

    def _weight(self, norm: Norm | None) -> int | None:
        if norm is None:
            return None
        weight = norm.weight.detach().float().contiguous()
        self._kept.append(weight)
        return weight.data_ptr()


class KernelAttention:
    """Attention of several sequences in one call, where torch takes one for each.

    Args:
        layers: a lean model's; of them it keeps the norms of heads.
        dim: D, of a head.
        windows: by kind of layer, how many positions one sees back; None for all.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[Layer],
        dim: int,
        windows: Sequence[int | None],
    ) -> None:
        self._library, first = library, layers[0]
        self._norms = [
            None if layer.head_norm is None else layer.head_norm.weight.detach().contiguous()
            for layer in layers
        ]
        array = (_LayerStruct * len(layers))()
        for place, layer, norm in zip(array, layers, self._norms, strict=True):
            place.head_norm = None if norm is None else norm.data_ptr()
            place.window = windows[layer.kind] or 0
        self._model = _Model(
            heads=first.heads,
            kv_heads=first.kv_heads,
            dim=dim,
            head_eps=0.0 if first.head_norm is None else float(first.head_norm.eps) ** 2,
            layers=array,
        )

    def of(
        self, spans: Sequence[Span], rotations: torch.Tensor, threads: int
    ) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """Those sequences' attention: layer, [N, (H + 2 K) D] float32 → [N, H D].

        Keys and values go into the caches, float32 [layers, 1, 2 K, capacity, D].

        Args:
            rotations: complex64 [positions, 1, D / 2], contiguous.
        """
        array, model = _spans(spans), self._model

        def attend(layer: int, qkv: torch.Tensor) -> torch.Tensor:
            attended = qkv.new_empty(len(qkv), model.heads * model.dim)
            failed = self._library.hierspec_attention(
                *(model, layer, qkv.data_ptr(), len(qkv), rotations.data_ptr()),
                *(array, len(array), attended.data_ptr(), threads),
            )
            if failed:
                raise MemoryError(f"no memory for {len(qkv)} rows")
            return attended

        return attend


def _spans(spans: Sequence[Span]) -> Any:
    array = (_Span * len(spans))()
    for place, span in zip(array, spans, strict=True):
        held = span.cache
        place.cache = held.data_ptr()
        place.layer_stride, place.head_stride = held.stride(0), held.stride(2)
        place.start, place.count = span.start, span.n
        if span.branches is not None:
            place.tree = _tree(span, span.branches)
    return array


def _tree(span: Span, branches: Branches) -> ctypes.Array[c_int64]:
    """Where a span's rows stand and what each attends to, as C reads it."""
    paths = [branches.path_to(span.start + i) for i in range(span.n)]
    numbers: list[int] = []
    for position, (text, path) in zip(span.positions, paths, strict=True):
        numbers += [position, text, len(path)]
    for _, path in paths:
        numbers += path
    return (c_int64 * len(numbers))(*numbers)


def head(
    library: ctypes.CDLL,
    matrix: Panels,
    norm: Norm,
    h: torch.Tensor,
    threads: int,
    coarse: Panels | None = None,
) -> torch.Tensor:
    """Norm and output matrix: h [N, d] float32 → scores [N, V] float32.

    Args:
        coarse: the matrix in 4 bits, of which a row's scores are where none nearby comes within
            ``NEAR`` of the best: then less is read.
    """
    h = h.contiguous()
    scores = h.new_empty(len(h), matrix.num_out)
    weight = norm.weight.detach().float().contiguous()
    rest: Any = (weight.data_ptr(), float(norm.eps) ** 2, h.data_ptr(), len(h))
    rest = (*rest, scores.data_ptr(), threads)
    if coarse is None:
        failed = library.hierspec_head(matrix.c(), *rest)
    else:
        failed = library.hierspec_two_heads(coarse.c(), matrix.c(), NEAR, *rest)
    if failed:
        raise MemoryError(f"no memory for {len(h)} rows")
    return scores
