"""The kernels for other processors and under sanitizers, a few cases of each.

benchmarks/sanitize_kernels.py tries more of them.
"""

from __future__ import annotations

import pytest
from kernel_cases import Case, check_products, shapes_of
from kernels_apart import PROCESSORS, SANITIZERS, Apart, build

# What differs between processors: how codes of 8 and of fewer bits are multiplied, bits are spread,
# numbers are looked up and floating-point numbers are widened.
FORMATS = {
    "x86-64": ("Q5_0",),
    "AVX": ("F16",),
    "AVX2": ("Q5_1",),
    "AVX-512 without BW": ("F32",),
    "AVX-512": ("Q5_1",),
    "armv8": ("Q5_0",),
    "dot products": ("Q8_0",),
    "i8mm": ("BF16", "IQ4_NL"),
    "address": ("BF16",),
    "thread": ("F32",),
}


@pytest.mark.parametrize("name", FORMATS)
def test_products_and_layers(tmp_path, name):
    how = (PROCESSORS | SANITIZERS)[name]
    if reason := how.missing():
        pytest.skip(reason)
    formats = FORMATS[name]
    with Apart(build(how, tmp_path, formats, jobs=2, most_rows=2), formats) as kernels:
        for form in formats:
            for num_out, width in shapes_of(form)[:2]:
                check_products(kernels, form, num_out, width)
        for seed in range(6):
            case = Case(seed, formats)
            case.check(kernels, alone=seed < 3)
            case.check_drafts(kernels)
