"""The compiled kernels: compiled once for this processor, loaded, and tried.

``kernels.c`` runs layers and is compiled at the first use; ``products.c`` multiplies, and is
compiled for a format when a model first has it, in a second or two. No C compiler is required:
without one (or with ``HIERSPEC_KERNELS=0``) :func:`load` returns ``None``, and torch's operations
run instead, which is said once. What is compiled is kept in the user's cache, under a hash of the
sources, the compiler with its version, and the processor; where that cannot be written, every
process compiles.
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
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch

from hierspec.errors import HierspecError, HierspecWarning
from hierspec.utils.files import cache_folder, write_atomically

from .formats import FORMATS
from .matrices import MatrixStruct, PackedMatrix

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi", "-shared", "-fPIC"]
# The first of these that the compiler accepts is used: compilers differ in the option that names
# the processor, and some have no OpenMP (kernels then run on one thread).
_VARIANTS = (["-march=native", "-fopenmp"], ["-mcpu=native", "-fopenmp"], ["-march=native"], [])
_TIMEOUT = 120  # seconds, for the compiler
_HEADERS = ("vectors.h", "matrix.h", "attention.h")
# Formats of which one product is tried, and its largest error: bfloat16 rounds inputs.
_TRIED = {"BF16": 0.1, "Q8_0": 1e-3}
_lock = threading.Lock()


class _Compiler(NamedTuple):
    """A command, and what it says of its version."""

    command: tuple[str, ...]
    version: bytes


class Library:
    """The kernels, and the products of the formats that were asked for."""

    def __init__(
        self, compiler: _Compiler, kernels: ctypes.CDLL, products: dict[str, ctypes.CDLL]
    ) -> None:
        self._compiler, self._products = compiler, products
        self._structs = weakref.WeakKeyDictionary[PackedMatrix, MatrixStruct]()
        self.run: Callable[..., int] = kernels.hierspec_run
        self.product: Callable[..., int] = kernels.hierspec_product
        ptr = c_void_p
        kernels.hierspec_run.argtypes = [ptr, ptr, c_int]
        kernels.hierspec_product.argtypes = [ptr, ptr, c_float, ptr, c_int64, ptr, c_int]

    def struct(self, matrix: PackedMatrix) -> MatrixStruct:
        """Return a matrix as C takes it; its memory must outlive that.

        Raises:
            HierspecError: the products of its format do not compile, or compute wrongly.
        """
        found = self._structs.get(matrix)
        if found is None:
            products = self.format(matrix.format.name)
            functions = (products.hierspec_multiply, products.hierspec_rows)
            found = matrix.struct(*(ctypes.cast(each, c_void_p).value or 0 for each in functions))
            self._structs[matrix] = found
        return found

    def multiply(
        self,
        matrix: PackedMatrix,
        x: torch.Tensor,
        threads: int,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
    ) -> torch.Tensor:
        """Return x · Wᵀ + bias [N, out] of x [N, in], float32.

        Args:
            norm: [in] float32, with √in in it: x is RMS-normalised first, with ``eps`` added to its
                sum of squares.
        """
        x = x.float().contiguous()
        y = x.new_empty(len(x), matrix.num_out)
        weight = None if norm is None else norm.data_ptr()
        struct = ctypes.byref(self.struct(matrix))
        rows = (x.data_ptr(), len(x), y.data_ptr())
        if len(x) and self.product(struct, weight, eps, *rows, threads):
            raise MemoryError(f"no memory for {len(x)} rows")
        return y

    def rows(self, matrix: PackedMatrix, ids: torch.Tensor) -> torch.Tensor:
        """Return the weights of some outputs, float32 [n, in]."""
        ids = ids.contiguous()
        out = torch.empty(len(ids), matrix.width, dtype=torch.float32, device="cpu")
        struct = ctypes.byref(self.struct(matrix))
        rows = self.format(matrix.format.name).hierspec_rows
        rows(struct, ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def format(self, name: str) -> ctypes.CDLL:
        """Return the compiled products of a format."""
        found = self._products.get(name)
        if found is None:
            with _lock:
                if name not in self._products:
                    products = _load_products(self._compiler, name)
                    if products is None:
                        raise HierspecError(
                            f"the kernels for {name} do not compile here: set HIERSPEC_KERNELS=0 "
                            "to run torch's own operations"
                        )
                    self._products[name] = products
                found = self._products[name]
        return found


class NoKernelsWarning(HierspecWarning):
    """Models that would run in the compiled kernels run in torch's operations."""


@cache
def load() -> Library | None:
    """Load the compiled kernels; return None without a compiler, or where they compute wrongly.

    Warns:
        NoKernelsWarning: there are none, and nobody has turned them off.
    """
    if os.environ.get("HIERSPEC_KERNELS", "").strip() == "0":
        return None
    library = _load() if os.name == "posix" else None
    if library is None:
        text = "no working C compiler is here: models run in torch's operations, which are slower"
        warnings.warn(f"{text}; install gcc or clang", NoKernelsWarning, stacklevel=2)
    return library


def _load() -> Library | None:
    command = os.environ.get("CC") or next(filter(shutil.which, _COMPILERS), None)
    if command is None:
        return None
    compiler = _Compiler(tuple(command.split()), _version(command.split()))
    with _lock, ThreadPoolExecutor() as pool:  # each waits for a compiler
        tried = [pool.submit(_load_products, compiler, name) for name in _TRIED]
        kernels = _load_or_compile(compiler, "kernels.c", ())
    products = {
        name: found for name, one in zip(_TRIED, tried, strict=True) if (found := one.result())
    }
    if kernels is None or len(products) < len(_TRIED):
        return None
    library = Library(compiler, kernels, products)
    return library if _computes_correctly(library) else None


def _load_products(compiler: _Compiler, form: str) -> ctypes.CDLL | None:
    library = _load_or_compile(compiler, "products.c", (f"-DFORMAT={form}",))
    if library is not None:
        library.hierspec_rows.argtypes = [c_void_p, c_void_p, c_int64, c_void_p]
        library.hierspec_rows.restype = None
    return library


@cache
def _sources() -> dict[str, bytes]:
    folder = files("hierspec.lm.native")
    names = ("kernels.c", "products.c", *_HEADERS)
    return {name: folder.joinpath(name).read_bytes() for name in names}


def _load_or_compile(
    compiler: _Compiler, source: str, options: Sequence[str]
) -> ctypes.CDLL | None:
    """Load a library from the user's cache, compiled first where it is missing or damaged."""
    parts = [*_sources().values(), " ".join(compiler.command).encode(), compiler.version]
    parts += [_processor().encode(), repr((_FLAGS, _VARIANTS, source, options)).encode()]
    key = hashlib.sha256(b"|".join(parts)).hexdigest()[:16]
    name, path = f"{source.removesuffix('.c')}-{key}.so", None
    with contextlib.suppress(HierspecError, OSError):
        path = cache_folder("kernels") / name
        if path.exists():
            return ctypes.CDLL(str(path))
    # There may be no folder to compile in; one on a network may not delete a loaded library.
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
    ):
        compiled = _compile(compiler.command, source, options, Path(scratch))
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


def _compile(
    compiler: Sequence[str], source: str, options: Sequence[str], folder: Path
) -> Path | None:
    for name, content in _sources().items():
        (folder / name).write_bytes(content)
    path = folder / "compiled.so"
    for variant in _VARIANTS:
        command = [*compiler, *_FLAGS, *variant, *options, str(folder / source), "-o", str(path)]
        try:
            if not subprocess.run(
                [*command, "-lm"], capture_output=True, timeout=_TIMEOUT
            ).returncode:
                return path
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None


def _version(compiler: Sequence[str]) -> bytes:
    """Return the compiler's ``--version``: after an upgrade kernels are compiled anew."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [*compiler, "--version"]
        return subprocess.run(command, capture_output=True, timeout=_TIMEOUT).stdout
    return b""


@cache
def _processor() -> str:
    """Describe this processor, so that code compiled for another is not loaded."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        keys = ("model name", "flags", "Features", "CPU part")
        return "|".join(sorted({line for line in lines if line.startswith(keys)}))
    return f"{platform.machine()} {platform.processor()}"


def _computes_correctly(library: Library) -> bool:
    # The user may have changed torch's default type and device.
    options = {"dtype": torch.float32, "device": torch.device("cpu")}
    weight = torch.linspace(-1, 1, 21 * 40, **options).view(21, 40).sin()
    x = torch.linspace(-3, 3, 9 * 40, **options).view(9, 40).cos()
    try:
        for name, tolerance in _TRIED.items():
            matrix = PackedMatrix.of(weight, name)
            found = library.multiply(matrix, x, 1)
            if not torch.allclose(found, x @ matrix.dense().T, atol=tolerance):
                return False
    except (HierspecError, MemoryError):
        return False
    return True


assert all(form.number == i for i, form in enumerate(FORMATS.values()))
