"""The kernels for other processors and under sanitizers, a few cases of each.

benchmarks/sanitize_kernels.py tries more of them.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from kernel_cases import Case, check_products, shapes_of
from kernels_apart import PROCESSORS, SANITIZERS, Apart, build

from hierspec.lm.native import compiler

# What differs between processors: how codes of 8 and of fewer bits are multiplied, bits are spread,
# numbers are looked up and floating-point numbers are widened.
FORMATS = {
    "x86-64": ("Q5_0",),
    "AVX": ("F16",),
    "AVX2": ("BF16", "Q8_0", "Q4_0", "Q5_1", "Q6_K"),
    "AVX-512 without BW": ("F32",),
    "AVX-512": ("BF16", "Q8_0", "Q5_1", "Q6_K"),
    "AMX": ("BF16", "Q8_0", "Q5_1", "Q6_K"),
    "armv8": ("Q5_0",),
    "dot products": ("Q8_0",),
    "i8mm": ("BF16", "IQ4_NL"),
    "address": ("BF16",),
    "address, AVX2": ("BF16", "Q8_0"),
    "address, AMX": ("BF16",),
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
                for narrow in (False, True)[: 1 if form in ("F16", "F32", "BF16") else 2]:
                    check_products(kernels, form, num_out, width, narrow=narrow)
        for seed in range(6):
            case = Case(seed, formats)
            case.check(kernels, alone=seed < 3)
            case.check_drafts(kernels)


def disassembled(folder, form, *options):
    """Return the words of a format's products as gcc compiles them with some options."""
    if not shutil.which("gcc") or not shutil.which("objdump"):
        pytest.skip("gcc or objdump is not installed")
    for name, content in compiler.sources().items():
        (folder / name).write_bytes(content)
    path = folder / "products.o"
    command = ["gcc", "-c", "-O1", "-std=gnu11", "-Wno-psabi", *options, f"-DFORMAT={form}"]
    subprocess.run([*command, str(folder / "products.c"), "-o", str(path)], check=True)
    found = subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True)
    return set(found.stdout.split())


@pytest.mark.parametrize(("form", "product"), [("BF16", "tdpbf16ps"), ("Q4_K", "tdpbsud")])
def test_tiles_compile(tmp_path, form, product):
    """No processor of ours has AMX: its instructions are compiled, not run."""
    probe = ["gcc", "-c", "-x", "c", "-", "-o", str(tmp_path / "probe.o")]
    text = b'void f(void) { __asm__("tilerelease"); }'
    if shutil.which("gcc") and subprocess.run(probe, input=text).returncode:
        pytest.skip("gcc's assembler knows no AMX")
    words = disassembled(tmp_path, form, "-march=x86-64-v4", "-mavx512vnni", "-DAMX")
    names = {word for word in words if word.startswith(("td", "tile", "ldtile"))}
    loads = {"ldtilecfg", "tilezero", "tileloadd", "tilestored", "tilerelease"}
    assert names == {product, *loads}


def test_vnni_without_avx512_compiles(tmp_path):
    """Nor has any of ours that."""
    if shutil.which("gcc"):
        probe = subprocess.run(
            ["gcc", "-mavxvnni", "-E", "-x", "c", "/dev/null"], capture_output=True
        )
        if probe.returncode:
            pytest.skip("gcc knows no AVX-VNNI")
    assert "vpdpwssd" in disassembled(tmp_path, "Q4_K", "-march=x86-64-v3", "-mavxvnni")
    assert "vpdpwssd" not in disassembled(tmp_path, "Q4_K", "-march=x86-64-v3")
