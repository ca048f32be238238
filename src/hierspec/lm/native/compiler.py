"""The kernels' sources, compiled once for this processor, beside what their caller does meanwhile.

Nothing here imports torch, so that a command starts compilers before that: :func:`begin`. What is
compiled is kept in the user's cache, under a hash of the sources, the compiler with its version,
and the processor; where that cannot be written, every process compiles.

Where the processor has AMX and Linux grants its tiles, kernels use them, once another process has
found that they compute correctly: :meth:`Compiler.with_tiles`, which :func:`find` asks once.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from hierspec.errors import HierspecError, HierspecWarning
from hierspec.utils.files import cache_folder, make_room, write_atomically
from hierspec.utils.machine import processor_features

Unit = tuple[str, ...]  # a source and its own options

LAYERS: Unit = ("kernels.c",)
# Formats of which one product is tried, and its largest error: bfloat16 rounds inputs.
TRIED = {"BF16": 0.1, "Q8_0": 1e-3}
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi", "-shared", "-fPIC"]
_FLAGS += ["-fno-gcse-after-reload"]  # a sixth of the time that bfloat16 takes, for nothing
# The first of these that the compiler accepts is used: compilers differ in the option that names
# the processor, and some have no OpenMP (kernels then run on one thread).
_OPENMP = "-fopenmp"
_VARIANTS = (
    *(["-march=native", _OPENMP], ["-mcpu=native", _OPENMP]),
    *(["-march=native"], ["-mcpu=native"], []),
)
_EMPTY = b"#ifdef _OPENMP\n#include <omp.h>\n#endif\n"
_MOST = 64 << 20  # bytes of all kernels in the cache
_TIMEOUT = 120  # seconds, for the compiler
_DIGEST = hashlib.sha256().digest_size  # bytes, at the end of a kept library
_AMX, _WITH_AMX = {"amx_tile", "amx_bf16", "amx_int8", "avx512_vnni"}, ["-DAMX"]
WRONG, _CRASHES = 3, (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS)  # how trying them may end
# What gcc, clang, their assemblers and linkers say when they are killed or have no room.
_STOPPED = (
    *("signal terminated program", "terminated with signal", "due to signal", "killed"),
    *("unable to execute command", "out of memory", "memory exhausted", "cannot allocate memory"),
    *("bad_alloc", "resource temporarily unavailable", "no space left"),
)
_HEADERS = ("vectors.h", "amx.h", "matrix.h", "attention.h")


def products(form: str) -> Unit:
    """Return the unit with the products of matrices in a format."""
    return ("products.c", f"-DFORMAT={form}")


UNITS = (*map(products, TRIED), LAYERS)  # what every model needs
Failed = subprocess.CompletedProcess[bytes] | subprocess.CalledProcessError


class NoTilesWarning(HierspecWarning):
    """The processor has AMX, whose tiles are not used."""


class _Job(threading.Thread):
    def __init__(self, work: Callable[[Unit], bytes | None], unit: Unit) -> None:
        super().__init__(name=" ".join(unit))
        self._work, self._unit, self._made = work, unit, None
        self.start()

    def run(self) -> None:
        self._made = self._work(self._unit)

    def wait(self) -> bytes | None:
        """Return the library: empty where it is kept, ``None`` where it does not compile."""
        self.join()
        return self._made


class Compiler:
    """A C compiler, in a process for each unit.

    Attributes:
        failure: why something did not compile: the end of a sentence; empty where all did.
        refuses: whether the compiler itself refused a source, as it will again.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._jobs: dict[Unit, _Job] = {}
        self._lock = threading.Lock()
        self.failure, self.refuses = "", False

    @property
    def works(self) -> bool:
        """Whether it compiles anything: an empty library, in a small part of a second."""
        return self._variant is not None

    @property
    def has_threads(self) -> bool:
        """Whether it has OpenMP; without, kernels run on one thread."""
        return _OPENMP in (self._variant or ())

    @cached_property
    def _variant(self) -> list[str] | None:
        """The first of the variants that compiles nothing at all, for every unit.

        Not the first that compiles a unit, which also fails when it is interrupted; and libraries
        that were compiled with different ones do not fit together.
        """
        path = self._path(("options",), ())
        kept = path and path.with_suffix(".txt")
        if kept:
            with contextlib.suppress(OSError):
                known = kept.read_bytes()
                for variant in _VARIANTS:
                    if known == repr(variant).encode():
                        return variant
        try:
            found = self._first_accepted()
        except (OSError, subprocess.TimeoutExpired) as error:
            self.failure = f"nothing can be compiled with {' '.join(self._command)} ({error})"
            return None
        if found is not None and _OPENMP in found and kept:  # which may be installed later
            with contextlib.suppress(HierspecError):
                write_atomically(kept, repr(found).encode(), "the compiler's options")
        return found

    def _first_accepted(self) -> list[str] | None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            into = ["-shared", "-fPIC", "-x", "c", "-", "-o", f"{scratch}/a.so"]
            for variant in _VARIANTS:
                done = subprocess.run(
                    [*self._command, *variant, *into],
                    input=_EMPTY,
                    capture_output=True,
                    timeout=_TIMEOUT,
                )
                if not done.returncode:
                    return variant
                if _was_stopped(done):  # which says nothing of the options
                    break
        self._note_failure(done)
        return None

    def _note_failure(self, done: Failed) -> None:
        lines = done.stderr.decode(errors="replace").splitlines()
        told = next((line for line in lines if "error" in line), lines[0] if lines else "")
        self.refuses = self.refuses or not _was_stopped(done)
        self.failure = f"{' '.join(self._command)} does not compile the kernels"
        if told := told.strip()[:200]:
            self.failure += f" ({told})"

    @property
    def has_tiles(self) -> bool:
        """Whether it compiles for AMX's tiles."""
        return _WITH_AMX[0] in self._command

    def with_tiles(self) -> Compiler | None:
        """Return one that compiles for AMX's tiles, where they can be used and compute correctly.

        The first time another process, which may crash, tries that for some seconds; what came of
        it is kept beside the kernels, if that can be.

        Warns:
            NoTilesWarning: they do not, which has just been found.
        """
        if not processor_features() >= _AMX or not ask_for_tiles():
            return None
        tiled = Compiler([*self._command, *_WITH_AMX])
        path = tiled._path(("tiles",), ())
        verdict = path and path.with_suffix(".txt")
        if verdict:
            with contextlib.suppress(OSError):
                if (known := verdict.read_bytes()) in (b"right", b"wrong"):
                    return tiled if known == b"right" else None
        check = "import sys; from hierspec.lm.native.library import check; check(sys.argv[1:])"
        command = [sys.executable or "", "-P", "-c", check, *tiled._command]
        try:
            done = subprocess.run(command, capture_output=True, timeout=3 * _TIMEOUT)
        except (OSError, subprocess.TimeoutExpired):
            return None
        # Other ends, as without memory, say nothing of the tiles.
        if verdict and done.returncode in (0, WRONG, *(-one for one in _CRASHES)):
            with contextlib.suppress(HierspecError):
                content = b"wrong" if done.returncode else b"right"
                write_atomically(verdict, content, "what AMX's tiles compute")
        if not done.returncode:
            return tiled
        text = "AMX's tiles are not used: kernels for them do not compile here, or compute wrongly"
        warnings.warn(text, NoTilesWarning, stacklevel=2)
        return None

    def begin(self, unit: Unit) -> _Job:
        """Start to compile a unit, if that is not begun."""
        with self._lock:
            if unit not in self._jobs:
                self._jobs[unit] = _Job(self._find_or_make, unit)
            return self._jobs[unit]

    def load(self, unit: Unit) -> ctypes.CDLL | None:
        """Load a unit, once it is compiled; ``None`` where it does not compile, or load."""
        content = self.begin(unit).wait()
        if content is not None and (path := self._path_of(unit)) is not None:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(path))
        if content == b"":  # what is kept has gone, or may not be run
            content = self._make(unit)
        if not content:
            return None
        # The cache cannot be written, or nothing in it may be run.
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
                copied = Path(scratch) / "compiled.so"
                copied.write_bytes(content)
                return ctypes.CDLL(str(copied))
        except OSError as error:
            self.failure = f"compiled kernels cannot be loaded here ({error})"
            return None

    def _find_or_make(self, unit: Unit) -> bytes | None:
        path = self._path_of(unit)
        return b"" if path is not None and _is_whole(path) else self._make(unit)

    def _make(self, unit: Unit) -> bytes | None:
        if self._variant is None:
            return None
        command = [*self._command, *_FLAGS, *self._variant]
        # There may be no folder to compile in; one on a network may not delete a loaded library.
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
                content = compile_unit(command, unit, Path(scratch))
        except subprocess.CalledProcessError as error:
            self._note_failure(error)
            return None
        except (OSError, subprocess.TimeoutExpired) as error:
            self.failure = f"the kernels cannot be compiled here ({error})"
            return None
        if (path := self._path_of(unit)) is not None:
            with contextlib.suppress(HierspecError, OSError):
                make_room(path.parent, len(content), _MOST)
                write_atomically(path, content + _digest(content), "the kernels")
        return content

    def _path_of(self, unit: Unit) -> Path | None:
        return None if self._variant is None else self._path(unit, self._variant)

    def _path(self, unit: Unit, variant: Sequence[str]) -> Path | None:
        parts = [*sources().values(), " ".join(self._command).encode(), self._version]
        parts += [_processor().encode(), repr((_FLAGS, _VARIANTS, variant, unit)).encode()]
        key = hashlib.sha256(b"|".join(parts)).hexdigest()[:16]
        with contextlib.suppress(HierspecError):
            return cache_folder("kernels") / f"{unit[0].removesuffix('.c')}-{key}.so"
        return None

    @cached_property
    def _version(self) -> bytes:
        """What the compiler says of itself: after an upgrade kernels are compiled anew."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [*self._command, "--version"]
            return subprocess.run(command, capture_output=True, timeout=_TIMEOUT).stdout
        return b""


def is_off() -> bool:
    """Return whether the user wants no compiled kernels."""
    return os.environ.get("HIERSPEC_KERNELS", "").strip() == "0"


@cache
def find() -> Compiler | None:
    """Return ``CC``, or the first compiler there is, with AMX's tiles or without; or ``None``."""
    command = os.environ.get("CC") or next(filter(shutil.which, _COMPILERS), None)
    if not command or os.name != "posix":
        return None
    plain = Compiler(command.split())
    return plain.with_tiles() or plain


def ask_for_tiles() -> bool:
    """Ask Linux for room for AMX's tiles in this process; return whether it is granted."""
    arch_prctl, request, tile_data = 158, 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    with contextlib.suppress(OSError, AttributeError):
        numbers = map(ctypes.c_long, (arch_prctl, request, tile_data))
        return ctypes.CDLL(None).syscall(*numbers) == 0
    return False


def begin() -> None:
    """Start to compile what every model needs that runs in the kernels."""
    if not is_off() and (compiler := find()) is not None:
        for unit in UNITS:
            compiler.begin(unit)


@cache
def sources() -> dict[str, bytes]:
    folder = files("hierspec.lm.native")
    names = (*LAYERS, "products.c", *_HEADERS)
    return {name: folder.joinpath(name).read_bytes() for name in names}


@cache
def version() -> str:
    """Return what tells these kernels from others, as of another release."""
    return hashlib.sha256(b"|".join(sources().values())).hexdigest()[:16]


def compile_unit(command: Sequence[str], unit: Unit, folder: Path) -> bytes:
    """Return the library that a compiler makes of a unit in a folder.

    Raises:
        OSError, subprocess.SubprocessError: it does not.
    """
    for name, content in sources().items():
        (folder / name).write_bytes(content)
    path, (source, *options) = folder / "compiled.so", unit
    own = [*options, str(folder / source), "-o", str(path), "-lm"]
    subprocess.run([*command, *own], capture_output=True, timeout=_TIMEOUT, check=True)
    return path.read_bytes()


def _was_stopped(done: Failed) -> bool:
    """Return whether a compiler, or a part of it, was killed or had no room: it refused nothing."""
    told = done.stderr.decode(errors="replace").lower()
    return not 0 < done.returncode <= 128 or any(reason in told for reason in _STOPPED)


def _digest(library: bytes) -> bytes:
    """Return what stands behind a library in its file; the system reads what its header names."""
    return hashlib.sha256(library).digest()


def _is_whole(path: Path) -> bool:
    """Return whether a kept library is as it was written: a damaged one may crash its process."""
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        return content[-_DIGEST:] == _digest(content[:-_DIGEST])
    return False


@cache
def _processor() -> str:
    """Describe this processor, so that code compiled for another is not loaded."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        keys = ("model name", "flags", "Features", "CPU part")
        return "|".join(sorted({line for line in lines if line.startswith(keys)}))
    return f"{platform.machine()} {platform.processor()}"
