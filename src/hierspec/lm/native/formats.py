"""The formats of matrices: how many bits a weight has, and what scales them.

Those of whole numbers are GGUF's: a weight is ``step · code + lowest``, with a step and a lowest
value of each output for 32 or 16 inputs. ``Q6_1``, 6 bits as in Q5_1, is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP, SUPER = 32, 256  # inputs of a block; inputs that share a unit


@dataclass(frozen=True, slots=True)
class Format:
    """How weights of a matrix are stored.

    Attributes:
        number: in the kernels, as ``matrix.h`` counts them.
        low, high: bits of a code; 0 for floating point.
        zero: the code of weight 0, where there are no lowest values.
        lowest: whether there are.
        units: whether steps (and lowest values) are whole numbers times a unit of 256 inputs.
        num_steps: of an output in a block of 32 inputs.
        table: what a code stands for, plus 128; empty: itself.
    """

    name: str
    number: int
    low: int = 0
    high: int = 0
    zero: int = 0
    lowest: bool = False
    units: bool = False
    num_steps: int = 1
    table: tuple[int, ...] = ()

    @property
    def is_float(self) -> bool:
        return self.low == 0

    @property
    def dtype(self) -> torch.dtype:
        """Return the data type of its numbers; float32 for codes."""
        return {"F16": torch.float16, "BF16": torch.bfloat16}.get(self.name, torch.float32)

    @property
    def bits(self) -> int:
        """Bits of a code, or of a number."""
        return {"F32": 32, "F16": 16, "BF16": 16}.get(self.name, self.low + self.high)

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def bits_per_weight(self) -> float:
        """Bits of memory that a weight takes in the kernels' layout, scales included."""
        if self.is_float:
            return float(self.bits)
        scales = 16 if self.units else 32 if self.lowest else 16
        unit = (32 if self.lowest else 16) / SUPER if self.units else 0.0
        return self.bits + scales / GROUP + unit


_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the numbers

_ALL = (
    Format("F32", 0),
    Format("F16", 1),
    Format("BF16", 2),
    Format("Q8_0", 3, 8, zero=128),
    Format("Q4_0", 4, 4, zero=8),
    Format("Q5_0", 5, 4, 1, zero=16),
    Format("Q4_1", 6, 4, lowest=True),
    Format("Q5_1", 7, 4, 1, lowest=True),
    Format("Q6_1", 8, 4, 2, lowest=True),
    Format("Q2_K", 9, 2, lowest=True, units=True, num_steps=2),
    Format("Q3_K", 10, 2, 1, zero=4, units=True, num_steps=2),
    Format("Q4_K", 11, 4, lowest=True, units=True),
    Format("Q5_K", 12, 4, 1, lowest=True, units=True),
    Format("Q6_K", 13, 4, 2, zero=32, units=True, num_steps=2),
    Format("IQ4_NL", 14, 4, zero=128, table=tuple(x + 128 for x in _IQ4_NL)),
    Format("MXFP4", 15, 4, zero=128, table=tuple(x + 128 for x in _MXFP4)),
)
FORMATS = {one.name: one for one in _ALL}
