"""The kernels in another process (driver.c): under a sanitizer, or for another processor."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from hierspec.lm.native import compiler
from hierspec.lm.native.library import Library
from hierspec.lm.native.matrices import MatrixStruct, PackedMatrix
from hierspec.lm.native.model import _SpanStruct

_DRIVER = Path(__file__).with_name("driver.c")
_FUNCTIONS = 0x7FF << 48  # where functions pretend to be: two of each format, by its number


class StoppedError(Exception):
    """The process ended, with what it said."""


class Build(NamedTuple):
    """How the driver is compiled and run.

    Attributes:
        needs: what /proc/cpuinfo must name.
        runner: the command that runs it.
    """

    options: tuple[str, ...]
    needs: tuple[str, ...] = ()
    compiler: str = "gcc"
    runner: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Return why it cannot run here, if so."""
        if sys.platform != "linux":
            return "only on Linux"
        for command in (self.compiler, *self.runner[:1]):
            if not shutil.which(command):
                return f"{command} is not installed"
        flags = set(Path("/proc/cpuinfo").read_text().split())
        if absent := [name for name in self.needs if name not in flags]:
            return f"this processor has no {absent[0]}"
        probe = [self.compiler, *self.options, "-x", "c", "-", "-o", "/dev/null"]
        if subprocess.run(
            probe, input=b"int main(void) { return 0; }", stderr=subprocess.DEVNULL
        ).returncode:
            return f"{self.compiler} does not compile with {' '.join(self.options)}"
        return None


_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = ("avx512bw", "avx512vl", "avx512dq")
_VNNI = (*_AVX512, "avx512_vnni")  # every processor with AMX has it
EMULATED_AMX = ("-DAMX", "-DEMULATED_AMX", f"-I{_DRIVER.parent}")
_ADDRESS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_AARCH64 = {
    "compiler": "aarch64-linux-gnu-gcc",
    "runner": ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
}
SANITIZERS = {
    "address": Build(("-march=native", *_ADDRESS)),
    "thread": Build(("-march=native", "-g", "-fsanitize=thread")),
    "address, AVX2": Build(("-march=x86-64-v3", *_ADDRESS), _AVX2),
    "address, AMX": Build(("-march=x86-64-v4", "-mavx512vnni", *EMULATED_AMX, *_ADDRESS), _VNNI),
    # valgrind knows no AVX-512
    "memcheck": Build(
        ("-march=x86-64-v3", "-g"), _AVX2, runner=("valgrind", "-q", "--error-exitcode=9")
    ),
}
PROCESSORS = {
    "native": Build(("-march=native",)),
    "x86-64": Build(("-march=x86-64",), ("sse2",)),
    "AVX": Build(("-march=ivybridge",), ("avx", "f16c")),
    "AVX2": Build(("-march=x86-64-v3",), _AVX2),
    "AVX2 without FMA": Build(("-march=x86-64-v3", "-mno-fma"), _AVX2),
    "AVX-512 without BW": Build(("-march=x86-64-v3", "-mavx512f"), (*_AVX2, "avx512f")),
    "AVX-512": Build(("-march=x86-64-v4",), _AVX512),
    "AMX": Build(("-march=x86-64-v4", "-mavx512vnni", *EMULATED_AMX), _VNNI),
    "armv8": Build(("-march=armv8-a",), **_AARCH64),
    "dot products": Build(("-march=armv8.2-a+dotprod",), **_AARCH64),
    "i8mm": Build(("-march=armv8.2-a+dotprod+i8mm",), **_AARCH64),
}


def build(
    how: Build, folder: Path, formats: Sequence[str], jobs: int = 1, most_rows: int = 24
) -> list[str]:
    """Compile the driver with the products of some formats; return the command that runs it.

    Args:
        most_rows: of a tile; where they are few it compiles sooner.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in compiler.sources().items():
        (folder / name).write_bytes(content)
    names = " ".join(f"X({name})" for name in formats)
    common = [how.compiler, "-O1", "-std=gnu11", "-ffp-contract=fast", "-Wno-psabi", *how.options]
    common.append(f"-DMOST_ROWS={most_rows}")
    sources = {
        "kernels": [str(folder / "kernels.c"), "-fopenmp"],
        "driver": [str(_DRIVER), f"-DDRIVER_FORMATS={names}"],
    }
    for name in formats:
        defines = [f"-Dhierspec_{what}={what}_{name}" for what in ("multiply", "rows")]
        sources[name] = [str(folder / "products.c"), f"-DFORMAT={name}", *defines]

    def compile_one(name: str) -> str:
        path = str(folder / f"{name}.o")
        subprocess.run([*common, "-c", *sources[name], "-o", path], check=True)
        return path

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, sources))
    path = folder / "driver"
    subprocess.run([*common, *objects, "-o", str(path), "-lm", "-lpthread"], check=True)
    return [*how.runner, str(path)]


class Apart(Library):
    """The library's functions, each call in the process of a driver.

    Args:
        command: the driver, and what runs it.
        formats: those it was built with.
    """

    def __init__(self, command: Sequence[str], formats: Sequence[str]) -> None:
        self._formats = tuple(formats)
        pipe, self._said = subprocess.PIPE, tempfile.TemporaryFile()  # noqa: SIM115 (a pipe would fill)
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._said)
        self._memory = dict[int, int]()  # address → size of what structures point to

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> str:
        """End the process; return what it said.

        Raises:
            StoppedError: it had failed.
        """
        self._process.communicate()
        if self._process.returncode:
            self._fail()
        return self._read_said()

    def owns(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Copy this memory whenever a call points into it, back too."""
        for tensor in tensors:
            if tensor is not None:
                self._memory[tensor.data_ptr()] = tensor.nbytes

    # --- as Library

    def struct(self, matrix: PackedMatrix) -> MatrixStruct:
        self.owns((matrix.panels, matrix.bias))
        first = _FUNCTIONS | 2 * self._formats.index(matrix.format.name)
        return matrix.struct(first, first + 1)

    def run(self, model, call, threads) -> int:
        shape, own = model._obj, call._obj
        spans = (_SpanStruct * own.num_spans).from_address(own.spans or 0)
        structs, size = _memory_of(shape, own), 4 * shape.hidden
        if own.num_spans:
            structs |= _memory_of(spans)
        if own.hi:
            layer = shape.layers.contents
            structs[ctypes.addressof(layer)] = own.hi * ctypes.sizeof(layer)
        for matrix in (shape.embedding, shape.output, shape.refined):
            if matrix:
                structs |= _memory_of(matrix.contents)
        scored = (ctypes.c_int64 * own.num_scored).from_address(own.scored)
        data = dict.fromkeys(scored, size)
        structs[own.scored] = ctypes.sizeof(scored)
        outputs = shape.output.contents.out if shape.output else 0
        data |= {own.scores: -4 * outputs * own.num_scored}
        if own.choice_ids:
            data[own.choice_ids] = 8 * outputs
        if own.parts:
            data[own.parts] = own.hi - own.lo
        for span in spans:
            drafted = max(span.num_drafted - 1, 0)
            data[span.output] = -(span.count + drafted) * size
            if span.num_drafted:
                data[span.draft] = -8 * span.num_drafted
            if span.probs:
                data[span.uniforms] = 8 * span.num_drafted
                data[span.probs] = -4 * own.num_choices * span.num_drafted
            if span.input:
                data[span.input] = span.count * size
            if span.tree:
                numbers = 3 * span.count + sum(span.tree[3 * i + 2] for i in range(span.count))
                data[ctypes.addressof(span.tree.contents)] = 8 * numbers
        if not all(span.input for span in spans):
            data[own.ids] = 8 * own.rows
        words = [0, ctypes.addressof(shape), ctypes.addressof(own), threads]
        return self._call(words, structs, data)

    def product(self, matrix, norm, eps, x, rows, y, threads) -> int:
        one = matrix._obj
        data = {x: rows * one.width * 4, y: -rows * one.out * 4}
        words = [1, ctypes.addressof(one), norm or 0, eps, x, rows, y, threads]
        return self._call(words, _memory_of(one), data)

    def rows(self, matrix: PackedMatrix, ids: torch.Tensor) -> torch.Tensor:
        one, out = self.struct(matrix), torch.empty(len(ids), matrix.width)
        number = 2 + self._formats.index(matrix.format.name)
        words = [number, ctypes.addressof(one), ids.data_ptr(), len(ids), out.data_ptr()]
        self._call(
            words, _memory_of(one), {ids.data_ptr(): ids.nbytes, out.data_ptr(): -out.nbytes}
        )
        return out

    def _call(self, words: Sequence[float], structs: dict[int, int], data: dict[int, int]) -> int:
        """Call C with these words, numbers or addresses.

        Args:
            structs: address → size of memory that has addresses in it.
            data: of other memory; a negative size where C only writes to it.
        """
        regions = sorted((at, abs(size)) for at, size in data.items() if at not in structs)
        # Rows to score may be among others that the call is given.
        inside = {at: first for at in data for first, size in regions if first < at < first + size}
        data = {at: size for at, size in data.items() if at not in inside}
        data = {**self._memory, **data}  # some of it freed, where there are structures now
        for address in structs:
            data.pop(address, None)
        first = b"".join(struct.pack("<d" if isinstance(x, float) else "<q", x) for x in words)
        contents, sizes, known = [first], [len(first)], dict[int, int]()
        links, at = list[int](), 0
        while at < len(contents):
            is_data = at and list(known)[at - 1] in data
            for offset in range(0, 0 if is_data else len(contents[at]) - 7, 8):
                word = int.from_bytes(contents[at][offset : offset + 8], "little")
                within = word - inside.get(word, word)
                word -= within
                if word in structs or word in data:
                    if word not in known:
                        size = structs.get(word) or data[word]
                        known[word] = len(contents)
                        contents.append(ctypes.string_at(word, size) if size > 0 else b"")
                        sizes.append(size)
                    links += [at, offset, known[word], within]
                elif word & ~0xFF == _FUNCTIONS:
                    links += [at, offset, -1 - (word & 0xFF) // 2, word & 1]
            at += 1
        numbers = [len(contents), len(links) // 4, *sizes, *links]
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(struct.pack(f"<{len(numbers)}q", *numbers))
            self._process.stdin.writelines(contents)
            self._process.stdin.flush()
            (result,) = struct.unpack("<q", self._read(8))
            for address, size in zip(known, sizes[1:], strict=True):
                answer = self._read(abs(size))
                if address in data:
                    ctypes.memmove(address, answer, len(answer))
        except BrokenPipeError:
            self._fail()
        return result

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(size)
        if len(found) < size:
            self._fail()
        return found

    def _fail(self) -> NoReturn:
        status = self._process.wait()
        raise StoppedError(f"{self._read_said()}\nstatus {status}")

    def _read_said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode()


def _memory_of(*structs: ctypes.Structure | ctypes.Array[Any]) -> dict[int, int]:
    return {ctypes.addressof(one): ctypes.sizeof(one) for one in structs}
