"""Blocks of a GGUF file's matrices as codes and scales: bytes are moved, nothing is rounded.

The layouts are those of ``ggml-quants`` (block_q4_0, block_q4_K, …): facts of the file format.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from .formats import FORMATS


class Codes(NamedTuple):
    """A matrix [out, in] of whole numbers, with G = in / 32 groups of inputs.

    ``codes`` uint8 [out, in]. Without units ``steps`` and ``lowest`` are float16 (bfloat16 for
    MXFP4) [out, G]. With units they are uint8 or int8 [out, G · num_steps], multiples of
    ``units`` and of ``lowest_units``, float16 [out, in / 256].
    """

    codes: torch.Tensor
    steps: torch.Tensor
    lowest: torch.Tensor | None = None
    units: torch.Tensor | None = None
    lowest_units: torch.Tensor | None = None


def decode(name: str, raw: torch.Tensor) -> Codes:
    """Take a matrix in few bits apart.

    Args:
        name: of its type, as GGUF names it.
        raw: its bytes, uint8 [out, bytes of a row].

    Raises:
        KeyError: the type is not among :data:`DECODERS`.
    """
    size, decoder = DECODERS[name]
    return decoder(raw.view(len(raw), -1, size))


def _halves(block: torch.Tensor, start: int) -> torch.Tensor:
    """Return the float16 numbers at a byte of every block, [out, blocks]."""
    return block[..., start : start + 2].contiguous().view(torch.float16).squeeze(-1)


def _flat(codes: torch.Tensor) -> torch.Tensor:
    return codes.reshape(len(codes), -1)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return codes of [..., 16] bytes: first all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """Return the 32 bits of [..., 4] bytes, as 16 or 0."""
    shifts = torch.arange(8, dtype=torch.uint8, device="cpu")
    return ((packed[..., None] >> shifts & 1) << 4).flatten(-2)


def _simple(block: torch.Tensor, lowest: bool = False, fifth: bool = False) -> Codes:
    """Q4_0; ``lowest``: Q4_1; ``fifth``: with a bit more, Q5_0 and Q5_1."""
    scales = block[..., : 4 if lowest else 2]
    rest = block[..., scales.size(-1) :]
    codes = _nibbles(rest[..., 4:]) | _fifth_bits(rest[..., :4]) if fifth else _nibbles(rest)
    return Codes(_flat(codes), _halves(scales, 0), _halves(scales, 2) if lowest else None)


def _q8_0(block: torch.Tensor) -> Codes:
    return Codes(_flat(block[..., 2:] ^ 128), _halves(block, 0))


def _mxfp4(block: torch.Tensor) -> Codes:
    exponent = block[..., 0].to(torch.int32)  # of 2^(exponent − 128); the smallest are subnormal
    bits = torch.where(exponent >= 2, (exponent - 1) << 7, 0x20 << exponent.clamp_max(1))
    steps = bits.to(torch.int16).view(torch.bfloat16)
    return Codes(_flat(_nibbles(block[..., 1:])), steps)


def _two_bits(packed: torch.Tensor) -> torch.Tensor:
    """Return 256 codes of [..., 64] bytes: of 32 bytes all lowest two bits, then the next, …"""
    halves = packed.unflatten(-1, (2, 1, 32))
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device="cpu")[:, None]
    return (halves >> shifts & 3).flatten(-3)


def _q2_k(block: torch.Tensor) -> Codes:
    scales = _flat(block[..., :16])
    return Codes(
        _flat(_two_bits(block[..., 16:80])),
        scales & 15,
        scales >> 4,
        _halves(block, 80),
        _halves(block, 82),
    )


def _q3_k(block: torch.Tensor) -> Codes:
    shifts = torch.arange(8, dtype=torch.uint8, device="cpu")[:, None]
    high = (block[..., None, :32] >> shifts & 1).flatten(-2)
    codes = _two_bits(block[..., 32:96]) | high << 2
    low, top = block[..., 96:104], block[..., 104:108]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device="cpu")[:, None]
    steps = _nibbles(low) | (top[..., None, :] >> shifts & 3).flatten(-2) << 4
    signed = (steps.to(torch.int16) - 32).to(torch.int8)
    return Codes(_flat(codes), _flat(signed), None, _halves(block, 108))


def _six_bits(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the eight steps and eight lowest values of [..., 12] bytes."""
    first, second, third = packed.split(4, -1)
    steps = torch.cat((first & 63, third & 15 | (first >> 6) << 4), -1)
    lowest = torch.cat((second & 63, third >> 4 | (second >> 6) << 4), -1)
    return steps, lowest


def _pairs_of_groups(packed: torch.Tensor) -> torch.Tensor:
    """Return 256 codes of [..., 128] bytes: of 32 bytes all low halves, then all high ones."""
    return _nibbles(packed.unflatten(-1, (4, 32))).flatten(-2)


def _q4_k(block: torch.Tensor, fifth: bool = False) -> Codes:
    steps, lowest = map(_flat, _six_bits(block[..., 4:16]))
    codes = _pairs_of_groups(block[..., -128:])
    if fifth:  # Q5_K
        shifts = torch.arange(8, dtype=torch.uint8, device="cpu")[:, None]
        codes = codes | (block[..., None, 16:48] >> shifts & 1).flatten(-2) << 4
    return Codes(_flat(codes), steps, lowest, _halves(block, 0), _halves(block, 2))


def _q6_k(block: torch.Tensor) -> Codes:
    low = block[..., :128].unflatten(-1, (2, 64))
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device="cpu")[:, None]
    high = (block[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-2)
    codes = torch.cat((low & 15, low >> 4), -1) | high << 4
    return Codes(
        _flat(codes.flatten(-2)),
        _flat(block[..., 192:208].contiguous().view(torch.int8)),
        None,
        _halves(block, 208),
    )


# Type → bytes of a block, and what takes it apart
DECODERS: dict[str, tuple[int, Callable[[torch.Tensor], Codes]]] = {
    "Q4_0": (18, _simple),
    "Q4_1": (20, partial(_simple, lowest=True)),
    "Q5_0": (22, partial(_simple, fifth=True)),
    "Q5_1": (24, partial(_simple, lowest=True, fifth=True)),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, partial(_q4_k, fifth=True)),
    "Q6_K": (210, _q6_k),
    "IQ4_NL": (18, _simple),
    "MXFP4": (17, _mxfp4),
}


assert set(DECODERS) <= set(FORMATS)
