"""What the panels of a matrix hold, read apart from the kernels."""

from __future__ import annotations

import torch

from hierspec.lm.native.formats import GROUP, SUPER, Format
from hierspec.lm.native.gguf_blocks import Codes
from hierspec.lm.native.matrices import PANEL, PackedMatrix

_QUADS = GROUP // 4


def dense(matrix: PackedMatrix) -> torch.Tensor:
    """The weights that products are computed with, float32 [out, in]."""
    form, panels = matrix.format, matrix.panels
    if form.is_float:
        numbers = panels.view(form.dtype).view(len(panels), -1, PANEL)
        if form.name == "BF16":  # pairs of inputs lie side by side
            numbers = numbers.reshape(len(numbers), -1, PANEL, 2).transpose(2, 3).flatten(1, 2)
        found = numbers.transpose(1, 2).flatten(0, 1)
    else:
        found = values(form, unpack_codes(panels, form, matrix.width))
    return found[: matrix.num_out, : matrix.width].float()


def values(form: Format, parts: Codes) -> torch.Tensor:
    """Return the weights that codes stand for, float32 [out, in]."""
    codes, steps = parts.codes, parts.steps.float()
    size, lowest = GROUP // form.num_steps, parts.lowest
    if parts.units is not None:
        each = SUPER // size
        steps = steps * parts.units.float().repeat_interleave(each, 1)
        if lowest is not None and parts.lowest_units is not None:
            lowest = -lowest.float() * parts.lowest_units.float().repeat_interleave(each, 1)
    numbers = codes.float()
    if form.table:
        numbers = torch.tensor(form.table, dtype=torch.float32, device="cpu")[codes.long()]
    width = codes.size(1)
    spread = steps.repeat_interleave(size, 1)[:, :width]
    if lowest is None:
        return (numbers - form.zero) * spread
    return numbers * spread + lowest.float().repeat_interleave(size, 1)[:, :width]


def unpack_codes(panels: torch.Tensor, form: Format, width: int) -> Codes:
    """Undo ``pack_codes``, but for the padding of outputs."""
    num, groups = len(panels), -(-width // GROUP)
    units: list[torch.Tensor | None] = [None, None]
    if form.units:
        heads = (4 if form.lowest else 2) * PANEL
        supers = panels.view(num, width // SUPER, -1)
        halves = supers[:, :, :heads].contiguous().view(torch.float16).unflatten(2, (-1, PANEL))
        for i in range(halves.size(2)):
            units[i] = _from_panels(halves[:, :, i])
        panels = supers[:, :, heads:].contiguous()
    blocks = panels.view(num, groups, -1)
    num_scales = 2 * PANEL if form.units or not form.lowest else 4 * PANEL
    scales, codes = blocks.split([num_scales, blocks.size(2) - num_scales], 2)
    num_low = form.low * GROUP * PANEL // 8
    low = codes[:, :, :num_low].unflatten(2, (-1, 4 * PANEL))
    found = _split_bits(low, form.low) if form.low < 8 else low
    if form.high:
        high = codes[:, :, num_low:].unflatten(2, (_QUADS if form.high == 1 else 2, -1))
        found = found | _split_bits(high, form.high) << form.low
    found = found.unflatten(3, (PANEL, 4)).permute(0, 3, 1, 2, 4).reshape(num * PANEL, -1)
    lowest = None
    if not form.units:
        kind = torch.bfloat16 if form.name == "MXFP4" else torch.float16
        numbers = scales.contiguous().view(kind).unflatten(2, (-1, PANEL))
        steps = _from_panels(numbers[:, :, 0])
        if form.lowest:
            lowest = _from_panels(numbers[:, :, 1])
    else:
        numbers = scales.unflatten(2, (2, PANEL))
        if form.num_steps == 1:  # a step and a lowest value
            steps, lowest = (_from_panels(numbers[:, :, i]) for i in (0, 1))
        else:
            steps = _from_panels(numbers.flatten(1, 2))
            if form.lowest:
                steps, lowest = steps & 15, steps >> 4
            else:
                steps = steps.contiguous().view(torch.int8)
    return Codes(found[:, : groups * GROUP], steps, lowest, *units)


def _split_bits(merged: torch.Tensor, bits: int) -> torch.Tensor:
    if bits == 1:
        return (merged[..., None] >> torch.arange(8, dtype=torch.uint8, device="cpu") & 1).flatten(
            -2
        )
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device="cpu")[:, None]
    return (merged[:, :, :, None] >> shifts & (1 << bits) - 1).flatten(2, 3)


def _from_panels(scales: torch.Tensor) -> torch.Tensor:
    return scales.transpose(1, 2).flatten(0, 1)
