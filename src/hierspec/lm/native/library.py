"""The compiled kernels: loaded, and tried.

``kernels.c`` runs layers; ``products.c`` multiplies, and is compiled for a format when a model
first has it. No C compiler is required: without one (or with ``HIERSPEC_KERNELS=0``) :func:`load`
returns ``None``, and torch's operations run instead, which is said once.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from typing import NoReturn

import torch

from hierspec.errors import HierspecError, HierspecWarning

from . import compiler
from .compiler import Compiler
from .formats import FORMATS
from .matrices import MatrixStruct, PackedMatrix

_lock = threading.Lock()
_ROUNDING = 0.01  # at most, of weights from -1 to 1 in the formats that are tried


class Library:
    """The kernels, and the products of the formats that were asked for."""

    def __init__(
        self, found: Compiler, kernels: ctypes.CDLL, products: dict[str, ctypes.CDLL]
    ) -> None:
        self._compiler, self._products = found, products
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

    def all_rows(self, matrix: PackedMatrix) -> torch.Tensor:
        """Return the weights that products are computed with, float32 [out, in]."""
        return self.rows(matrix, torch.arange(matrix.num_out, device="cpu"))

    def prepare(self, form: str) -> None:
        """Start to compile the products of a format, which are needed soon."""
        self._compiler.begin(compiler.products(form))

    def format(self, name: str) -> ctypes.CDLL:
        """Return the compiled products of a format."""
        with _lock:
            if name not in self._products:
                products = _load_products(self._compiler, name)
                if products is None:
                    raise HierspecError(
                        f"the kernels for {name} do not compile here: set HIERSPEC_KERNELS=0 "
                        "to run torch's own operations"
                    )
                self._products[name] = products
            return self._products[name]


class NoKernelsWarning(HierspecWarning):
    """Models that would run in the compiled kernels run in torch's operations."""


@cache
def load() -> Library | None:
    """Load the compiled kernels; return None without a compiler, or where they compute wrongly.

    Warns:
        NoKernelsWarning: there are none, and nobody has turned them off; or they run on one thread
            where torch has more.
    """
    if compiler.is_off():
        return None
    found = compiler.find()
    library = None if found is None else _load(found)
    if found is None or library is None:
        text = f"{why_none()}: models run in torch's operations, which are slower"
        warnings.warn(text, NoKernelsWarning, stacklevel=2)
    elif not found.has_threads and torch.get_num_threads() > 1:
        text = "the compiled kernels run on one thread, since the C compiler has no OpenMP"
        text += ": install libomp, or set CC to a compiler that has it"
        warnings.warn(text, NoKernelsWarning, stacklevel=2)
    return library


def why_none() -> str:
    """Return why :func:`load` returned ``None``, as the beginning of a sentence."""
    if compiler.is_off():
        return "HIERSPEC_KERNELS is 0"
    if (found := compiler.find()) is None:
        return "no C compiler is here (install gcc or clang)"
    return found.failure or "the kernels that the C compiler makes here compute wrongly"


def is_expected() -> bool:
    """Return whether :func:`load` will find kernels, as far as is known without waiting for it.

    Where a compiler works, but not on them, this is known once they have been loaded.
    """
    if load.cache_info().currsize:
        return load() is not None
    return not compiler.is_off() and (found := compiler.find()) is not None and found.works


def check(command: Sequence[str]) -> NoReturn:
    """End this process, with status 0 if kernels that a command compiles compute correctly.

    With ``WRONG`` if they do not, or if the compiler refuses them, which it will again.
    """
    compiler.ask_for_tiles()
    found = Compiler(command)
    if _load(found) is not None:
        sys.exit(0)
    sys.exit(compiler.WRONG if found.refuses or not found.failure else 1)


def _load(found: Compiler) -> Library | None:
    for unit in compiler.UNITS:
        found.begin(unit)
    kernels = found.load(compiler.LAYERS)
    products = {name: one for name in compiler.TRIED if (one := _load_products(found, name))}
    if kernels is None or len(products) < len(compiler.TRIED):
        return None
    library = Library(found, kernels, products)
    return library if _computes_correctly(library) else None


def _load_products(compiler_found: Compiler, form: str) -> ctypes.CDLL | None:
    library = compiler_found.load(compiler.products(form))
    if library is not None:
        library.hierspec_rows.argtypes = [c_void_p, c_void_p, c_int64, c_void_p]
        library.hierspec_rows.restype = None
    return library


def _computes_correctly(library: Library) -> bool:
    # The user may have changed torch's default type and device.
    options = {"dtype": torch.float32, "device": torch.device("cpu")}
    weight = torch.linspace(-1, 1, 21 * 40, **options).view(21, 40).sin()
    x = torch.linspace(-3, 3, 33 * 40, **options).view(33, 40).cos()
    try:
        for name, tolerance in compiler.TRIED.items():
            matrix = PackedMatrix.of(weight, name)
            rounded, found = library.all_rows(matrix), library.multiply(matrix, x, 1)
            if not torch.allclose(rounded, weight, atol=_ROUNDING):
                return False
            if not torch.allclose(found, x @ rounded.T, atol=tolerance):
                return False
    except (HierspecError, MemoryError):
        return False
    return True


assert all(form.number == i for i, form in enumerate(FORMATS.values()))
