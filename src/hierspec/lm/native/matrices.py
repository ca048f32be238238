"""A matrix in the order in which the kernels of ``products.c`` read it."""

from __future__ import annotations

import mmap
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from ctypes import Structure, c_int64, c_void_p

import torch
import torch.nn.functional as F

from hierspec.lm.weights import Stored

from .formats import FORMATS, GROUP, SUPER, Format
from .gguf_blocks import DECODERS, Codes, decode
from .rounding import round_to

PANEL = 16  # outputs side by side, as in matrix.h
_QUADS = GROUP // 4
_AT_ONCE = 1 << 18  # weights that are packed at a time: what is between fits into the caches
_CHUNK, _LINE = 64 << 20, 64  # bytes of memory taken at once; of a line of the cache


class _PanelMemory:
    """Memory for panels: those of a model's matrices one behind the other, on huge pages.

    So they are read in one stretch, and a page is found once for 2 MiB, not for 4 KiB. A chunk is
    given back when no matrix is left in it.
    """

    def __init__(self) -> None:
        self._chunk: Callable[[], mmap.mmap | None] = lambda: None
        self._used = 0
        self._lock = threading.Lock()

    def empty(self, rows: int, width: int) -> torch.Tensor:
        """Return uint8 [rows, width]."""
        size = rows * width
        with self._lock:
            chunk = self._chunk()
            if chunk is None or self._used + size > len(chunk):
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                chunk, self._used = mmap.mmap(-1, max(size, _CHUNK), flags=flags), 0
                if sys.platform == "linux":
                    with suppress(OSError):  # some kernels have none
                        chunk.madvise(mmap.MADV_HUGEPAGE)
                self._chunk = weakref.ref(chunk)
            start, self._used = self._used, self._used + size + -size % _LINE
        return torch.frombuffer(chunk, dtype=torch.uint8, count=size, offset=start).view(
            rows, width
        )


empty_panels = _PanelMemory().empty


class MatrixStruct(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("panels", "bias")),
        *((name, c_int64) for name in ("out", "width", "format", "narrow", "panel_bytes")),
        *((name, c_void_p) for name in ("multiply", "rows")),
    ]


class PackedMatrix:
    """A matrix [out, in] with its bias, in panels of 16 outputs.

    Args:
        num_out, width: its shape.
        panels: uint8 [panels, bytes], as :func:`pack_floats` and :func:`pack_codes` return them.
    """

    def __init__(
        self,
        form: Format,
        num_out: int,
        width: int,
        panels: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        self.format, self.num_out, self.width, self.panels = form, num_out, width, panels
        self.bias = None
        if bias is not None:
            self.bias = F.pad(bias.detach().float(), (0, -num_out % PANEL)).contiguous()

    @classmethod
    def of(
        cls, weight: torch.Tensor, form: str | None = None, bias: torch.Tensor | None = None
    ) -> PackedMatrix:
        """Pack a matrix of floating-point numbers, rounded to ``form`` (default: its own type)."""
        form = form or {torch.bfloat16: "BF16", torch.float16: "F16"}.get(weight.dtype, "F32")
        own, weight = FORMATS[form], weight.detach()
        num_out, width = weight.shape
        return cls._packed(own, num_out, width, lambda lo, hi: _pack(weight[lo:hi], own), bias)

    @classmethod
    def of_stored(cls, stored: Stored, bias: torch.Tensor | None = None) -> PackedMatrix:
        """Pack a matrix of a file in its own bits, some rows at a time.

        Raises:
            ValueError: it holds NaN or infinity.
        """
        form, (_, width, rows) = FORMATS[stored.form], stored
        return cls._packed(
            *(form, len(rows), width), lambda lo, hi: _pack_stored(rows[lo:hi], width, form), bias
        )

    @classmethod
    def _packed(
        cls,
        form: Format,
        num_out: int,
        width: int,
        pack: Callable[[int, int], torch.Tensor],
        bias: torch.Tensor | None,
    ) -> PackedMatrix:
        """Pack some outputs at a time; ``pack(lo, hi)`` returns the panels of those lo … hi − 1."""
        step = max(_AT_ONCE // width // PANEL, 1) * PANEL
        panels = None
        for start in range(0, num_out, step):
            part = pack(start, min(start + step, num_out))
            if panels is None:
                panels = empty_panels(-(-num_out // PANEL), part.size(1))
            panels[start // PANEL :][: len(part)] = part
        assert panels is not None
        return cls(form, num_out, width, panels, bias)

    def in_fewer_bits(
        self, form: str, read: Callable[[PackedMatrix, torch.Tensor], torch.Tensor]
    ) -> PackedMatrix:
        """Return the matrix rounded to ``form``; itself if it takes no more bits as it is.

        Args:
            read: :meth:`.library.Library.rows`.
        """
        fewer = FORMATS[form]
        if self.format.bits_per_weight <= fewer.bits_per_weight:
            return self

        def pack(lo: int, hi: int) -> torch.Tensor:
            return _pack(read(self, torch.arange(lo, hi, device="cpu")), fewer)

        return self._packed(fewer, self.num_out, self.width, pack, self.bias_of_outputs)

    def with_panels(self, form: Format, panels: torch.Tensor) -> PackedMatrix:
        """Return a matrix of other numbers, uint8 [panels, bytes], with this one's bias."""
        panels = empty_panels(*panels.shape).copy_(panels)
        return PackedMatrix(form, self.num_out, self.width, panels, self.bias_of_outputs)

    @property
    def num_bytes(self) -> int:
        """Bytes read from memory for a product."""
        return self.panels.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def bias_of_outputs(self) -> torch.Tensor | None:
        """The bias [out] without padding."""
        return None if self.bias is None else self.bias[: self.num_out]

    @property
    def num_weights(self) -> int:
        return self.num_out * self.width

    def struct(self, multiply: int, rows: int) -> MatrixStruct:
        """Return the matrix as C takes it, pointing to this object's memory.

        Args:
            multiply, rows: addresses of the format's functions.
        """
        bias = None if self.bias is None else self.bias.data_ptr()
        shape = (self.num_out, self.width, self.format.number, False, self.panels.size(1))
        return MatrixStruct(self.panels.data_ptr(), bias, *shape, multiply, rows)


def is_packable(stored: Stored) -> bool:
    """Return whether the kernels have the type of a file's matrix, for rows of its length."""
    form = FORMATS.get(stored.form)
    if form is None or not (form.is_float or stored.form in DECODERS):
        return False
    return stored.width % SUPER == 0 or not form.units


def _pack(weight: torch.Tensor, form: Format) -> torch.Tensor:
    """Return numbers [out, in] rounded to a format, in panels."""
    return pack_floats(weight, form) if form.is_float else pack_codes(round_to(weight, form), form)


def _pack_stored(rows: torch.Tensor, width: int, form: Format) -> torch.Tensor:
    """Return rows of a file's matrix, uint8 [out, bytes of a row], in panels."""
    if form.is_float:
        numbers = rows.view(form.dtype).view(len(rows), width)
        _validate_numbers(numbers)
        return pack_floats(numbers, form)
    parts = decode(form.name, rows)
    scales = (parts.units, parts.lowest_units) if form.units else (parts.steps, parts.lowest)
    for numbers in scales:
        if numbers is not None:
            _validate_numbers(numbers)
    return pack_codes(parts, form)


def _validate_numbers(numbers: torch.Tensor) -> None:
    if not numbers.isfinite().all():
        raise ValueError("holds NaN or infinity")


def pack_floats(weight: torch.Tensor, form: Format) -> torch.Tensor:
    """Return a matrix [out, in] in panels, uint8 [panels, bytes]."""
    padding = (0, weight.size(1) % 2 if form.name == "BF16" else 0, 0, -len(weight) % PANEL)
    rows = weight.to(form.dtype)
    if any(padding) or rows.storage_offset() % 2:
        rows = F.pad(rows, padding)  # a copy in any case
    if form.name == "BF16":
        rows = rows.view(torch.int32)  # a pair moves as one number, twice as fast
    panels = rows.view(-1, PANEL, rows.size(1)).transpose(1, 2).contiguous()
    return panels.view(len(panels), -1).view(torch.uint8)


def _in_panels(rows: torch.Tensor) -> torch.Tensor:
    """Return scales [out, n] as [panels, n, PANEL]."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % PANEL))
    return padded.view(-1, PANEL, padded.size(1)).transpose(1, 2).contiguous()


def _merge_bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes [panels, groups, quads, 64] of so many bits, 8 / bits quads in a byte."""
    if bits == 1:  # all of a quad side by side
        weights = 1 << torch.arange(8, dtype=torch.uint8, device="cpu")
        return (codes.unflatten(-1, (-1, 8)) * weights).sum(-1, dtype=torch.uint8)
    each = 8 // bits
    merged = codes[:, :, ::each].clone()
    for i in range(1, each):
        merged |= codes[:, :, i::each] << i * bits
    return merged


def pack_codes(parts: Codes, form: Format) -> torch.Tensor:
    """Return a matrix of whole numbers in panels, uint8 [panels, bytes]."""
    num_out, width = parts.codes.shape
    codes = F.pad(parts.codes, (0, -width % GROUP, 0, -num_out % PANEL))
    codes = codes.view(-1, PANEL, codes.size(1) // GROUP, _QUADS, 4)
    codes = codes.permute(0, 2, 3, 1, 4).reshape(len(codes), codes.size(2), _QUADS, 4 * PANEL)
    low = _merge_bits(codes & (1 << form.low) - 1, form.low) if form.low < 8 else codes
    sections = [low]
    if form.high:
        sections.append(_merge_bits(codes >> form.low, form.high))
    num_groups = codes.size(1)
    steps = _in_panels(parts.steps)
    if form.units:
        lowest = parts.lowest
        if form.name == "Q2_K":
            assert lowest is not None
            steps, lowest = _in_panels(parts.steps | lowest << 4), None
        scales = [steps.view(torch.uint8)]
        if lowest is not None:
            scales.append(_in_panels(lowest))
    else:
        scales = [steps, *([] if parts.lowest is None else [_in_panels(parts.lowest)])]
    sections = [
        x.view(torch.uint8).reshape(len(codes), num_groups, -1) for x in (*scales, *sections)
    ]
    blocks = torch.cat(sections, 2)
    if not form.units:
        return blocks.flatten(1)
    assert width % SUPER == 0
    assert parts.units is not None
    units = [parts.units, *([] if parts.lowest_units is None else [parts.lowest_units])]
    heads = torch.cat([_in_panels(x).view(torch.uint8) for x in units], 2)
    return torch.cat((heads, blocks.view(*heads.shape[:2], -1)), 2).flatten(1)
