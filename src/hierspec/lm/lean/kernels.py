"""The kernels of ``kernels.c``: compiled once for this processor, loaded, and tried.

No C compiler is required: without one (or with ``HIERSPEC_KERNELS=0``) :func:`load` returns None
and callers use torch's own operations. The compiled library is kept in the user's cache, under a
hash of the source, the compiler with its version, and the processor; where that cannot be written,
it is compiled by every process.
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
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from hierspec.errors import HierspecError
from hierspec.utils.files import cache_folder, write_atomically

from .kernel_layers import ModelStruct, SpanStruct
from .layers import Norm
from .panels import MatrixStruct, Panels, head

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi", "-shared", "-fPIC"]
# The first of these that the compiler accepts is used: compilers differ in the option that names
# the processor, and some have no OpenMP (kernels then run on one thread).
_VARIANTS = (["-march=native", "-fopenmp"], ["-mcpu=native", "-fopenmp"], ["-march=native"], [])
_TIMEOUT = 120  # seconds, for the compiler
_lock = threading.Lock()


@cache
def load() -> ctypes.CDLL | None:
    """Load the compiled kernels; return None without a compiler, or where they compute wrongly."""
    if os.environ.get("HIERSPEC_KERNELS", "").strip() == "0" or os.name != "posix":
        return None
    command = os.environ.get("CC") or next(filter(shutil.which, _COMPILERS), None)
    if command is None:
        return None
    compiler = command.split()
    source = files("hierspec.lm.lean").joinpath("kernels.c").read_bytes()
    flags = repr((_FLAGS, _VARIANTS)).encode()
    key = [source, command.encode(), _version(compiler), _processor().encode(), flags]
    name = f"kernels-{hashlib.sha256(b'|'.join(key)).hexdigest()[:16]}.so"
    with _lock:
        library = _load_or_compile(compiler, source, name)
    if library is None:
        return None
    model, matrix, spans = POINTER(ModelStruct), POINTER(MatrixStruct), POINTER(SpanStruct)
    i64, f32, ptr = c_int64, c_float, c_void_p
    library.hierspec_layers.argtypes = [model, i64, i64, ptr, i64, ptr, spans, i64, c_int]
    library.hierspec_head.argtypes = [matrix, ptr, f32, ptr, i64, ptr, c_int]
    library.hierspec_two_heads.argtypes = [matrix, matrix, f32, ptr, f32, ptr, i64, ptr, c_int]
    library.hierspec_attention.argtypes = [model, i64, ptr, i64, ptr, spans, i64, ptr, c_int]
    library.hierspec_layers.restype = library.hierspec_head.restype = c_int
    library.hierspec_attention.restype = library.hierspec_two_heads.restype = c_int
    return library if _computes_correctly(library) else None


def _load_or_compile(compiler: Sequence[str], source: bytes, name: str) -> ctypes.CDLL | None:
    """Load the library from the user's cache, compiled first where it is missing or damaged."""
    path = None
    with contextlib.suppress(HierspecError, OSError):
        path = cache_folder("kernels") / name
        if path.exists():
            return ctypes.CDLL(str(path))
    # There may be no folder to compile in; one on a network may not delete a loaded library.
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
    ):
        compiled = _compile(compiler, source, Path(scratch))
        if compiled is None:
            return None
        candidates = [compiled]
        if path is not None:
            with contextlib.suppress(HierspecError):
                write_atomically(path, compiled.read_bytes(), "the kernels")
                candidates.append(path)
        for candidate in candidates:  # some temporary folders forbid running anything in them
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(candidate))
    return None


def _compile(compiler: Sequence[str], source: bytes, folder: Path) -> Path | None:
    source_path, library_path = folder / "kernels.c", folder / "kernels.so"
    source_path.write_bytes(source)
    for variant in _VARIANTS:
        command = [*compiler, *_FLAGS, *variant, str(source_path), "-o", str(library_path), "-lm"]
        try:
            if not subprocess.run(command, capture_output=True, timeout=_TIMEOUT).returncode:
                return library_path
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None


def _version(compiler: Sequence[str]) -> bytes:
    """Return the compiler's ``--version``: after an upgrade kernels are compiled anew."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [*compiler, "--version"]
        return subprocess.run(command, capture_output=True, timeout=_TIMEOUT).stdout
    return b""


def _processor() -> str:
    """Describe this processor, so that code compiled for another is not loaded."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        keys = ("model name", "flags", "Features", "CPU part")
        return "|".join(sorted({line for line in lines if line.startswith(keys)}))
    return f"{platform.machine()} {platform.processor()}"


def _computes_correctly(library: ctypes.CDLL) -> bool:
    """Return whether a small product equals torch's."""
    # The user may have changed torch's default type and device.
    kind: Any = {"dtype": torch.float32, "device": "cpu"}
    weight = torch.linspace(-1, 1, 21 * 40, **kind).view(21, 40).sin()
    x = torch.linspace(-3, 3, 9 * 40, **kind).view(9, 40).cos()
    norm = Norm(x.new_ones(40), 40, 1e-5, torch.float32)
    tolerances = {32: 1e-4, 16: 0.1, 8: 1e-4, 4: 1e-4}  # in 16 bits inputs are rounded
    return all(
        torch.allclose(head(library, matrix, norm, x, 1), norm(x) @ matrix.dense().T, atol=atol)
        for matrix, atol in ((Panels(weight, bits=bits), atol) for bits, atol in tolerances.items())
    )


def fast_in_4_bits() -> bool:
    """Return whether there are kernels with 4-bit products faster than 8-bit ones (x86, AVX2)."""
    library = load()
    return library is not None and bool(library.hierspec_fast_in_4_bits())
