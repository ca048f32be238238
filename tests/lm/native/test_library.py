"""Compiling and loading the kernels: once, for this compiler and processor, or not at all."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings

import pytest
import torch
from kernels_apart import EMULATED_AMX
from tiny_models import save_tiny
from unpacking import dense

from hierspec.cli.doctor import examine
from hierspec.lm.load import load
from hierspec.lm.native import compiler, library
from hierspec.lm.native.matrices import PackedMatrix
from hierspec.methods.quantized import quantize
from hierspec.utils.machine import processor_features

needs_compiler = pytest.mark.skipif(library.load() is None, reason="no C compiler here")
TRIED = 3  # compiled by `load`: the layers, and the products of two formats


def forget():
    """Let kernels be looked for anew, as in another process."""
    library.load.cache_clear()
    compiler.find.cache_clear()


def libraries(folder):
    return sorted(folder.glob("*.so"))


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache of its own, and nothing loaded yet; compiled in a moment, not for speed."""
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_FLAGS", ["-O1", "-DMOST_ROWS=2", *compiler._FLAGS[1:]])
    monkeypatch.setattr(compiler, "processor_features", frozenset)
    forget()
    yield tmp_path / "cache" / "kernels"
    forget()


@pytest.fixture
def anew():
    """Nothing loaded yet; what is compiled already is found."""
    forget()
    yield
    forget()


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@needs_compiler
def test_they_are_compiled_once(fresh, monkeypatch):
    assert library.load() is not None
    kept = sorted(fresh.iterdir())
    assert len(libraries(fresh)) == TRIED
    forget()
    monkeypatch.setattr(compiler, "compile_unit", lambda *_: pytest.fail("compiled again"))
    assert library.load() is not None
    assert sorted(fresh.iterdir()) == kept


def test_older_kernels_make_room(fresh, monkeypatch):
    monkeypatch.setattr(compiler, "compile_unit", lambda *_: bytes(600))
    monkeypatch.setattr(compiler, "_MOST", 1500)
    monkeypatch.setattr(compiler.Compiler, "_variant", [])
    own = compiler.Compiler(["cc"])
    for form in ("BF16", "Q8_0", "Q4_0"):
        own._make(compiler.products(form))
    assert len(libraries(fresh)) == 2
    assert (fresh / own._path_of(compiler.products("Q4_0")).name).exists()


@needs_compiler
def test_compilers_run_beside_their_caller(fresh, monkeypatch):
    may_compile, really = threading.Event(), compiler.compile_unit
    compiled = []

    def compile_unit(command, unit, folder):
        assert may_compile.wait(60)
        compiled.append(unit)
        return really(command, unit, folder)

    monkeypatch.setattr(compiler, "compile_unit", compile_unit)
    compiler.begin()
    assert not compiled
    may_compile.set()
    assert library.load() is not None
    assert len(compiled) == len(set(compiled)) == TRIED


@needs_compiler
def test_another_version_of_the_compiler_compiles_anew(fresh, monkeypatch, tmp_path):
    real, other = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"), tmp_path / "c"
    names = []
    for version in ("1.0", "1.1", "1.1"):
        script = f'[ "$1" = --version ] && echo {version} || exec {real} "$@"'
        other.write_text(f"#!/bin/sh\n{script}\n")
        other.chmod(0o755)
        monkeypatch.setenv("CC", str(other))
        forget()
        assert library.load() is not None
        names.append(libraries(fresh))
    assert [len(found) for found in names] == [TRIED, 2 * TRIED, 2 * TRIED]


def wrapper(path, script):
    """A compiler that is a shell script, in front of the one there is."""
    real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    path.write_text(f'#!/bin/sh\n{script}\nexec {real} "$@"\n')
    path.chmod(0o755)
    return str(path)


@needs_compiler
@pytest.mark.parametrize(
    ("end", "says"),
    [("kill -INT $$", "compile"), ("echo x.c:1: error: too old >&2; exit 1", "too old")],
)
def test_a_compiler_that_fails_is_not_asked_with_other_options(
    fresh, monkeypatch, tmp_path, end, says
):
    """What those make may not fit what was made before, and would be kept."""
    script = f'case "$*" in *-march=native*kernels.c*) {end};; esac'
    monkeypatch.setenv("CC", wrapper(tmp_path / "c", script))
    with pytest.warns(library.NoKernelsWarning, match=says):
        assert library.load() is None
    assert says in library.why_none()
    assert not list(fresh.glob("kernels-*"))
    assert says in examine()["fast_paths"]["int8 copies"]
    assert compiler.find().refuses == (says == "too old")


@pytest.mark.parametrize(
    ("says", "stopped"),
    [
        ("gcc: fatal error: Killed signal terminated program cc1", True),
        ("clang: error: clang frontend command failed due to signal (use -v)", True),
        ("clang: error: unable to execute command: Killed", True),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", True),
        ("virtual memory exhausted: Cannot allocate memory", True),
        ("cc1: out of memory allocating 65536 bytes after a total of 1 bytes", True),
        ("/tmp/x.s: Fatal error: can't close /tmp/x.o: No space left on device", True),
        ("kernels.c:567: error: 'memory' undeclared (first use in this function)", False),
        ("error: operand of inline assembly has an impossible memory constraint", False),
        ("signal.h:1: error: unknown type name 'sigset_t'", False),
    ],
)
def test_a_compiler_that_had_no_room_refused_nothing(says, stopped):
    done = subprocess.CompletedProcess((), 1, b"", f"In file x.c:\n{says}\n".encode())
    assert compiler._was_stopped(done) == stopped


@needs_compiler
def test_a_compiler_without_openmp_is_told_of(fresh, monkeypatch, tmp_path):
    script = 'case "$*" in *-fopenmp*) exit 1;; esac'
    monkeypatch.setenv("CC", wrapper(tmp_path / "c", script))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.warns(library.NoKernelsWarning, match="on one thread"):
        assert library.load() is not None
    assert not compiler.find().has_threads


@pytest.fixture
def amx(fresh, monkeypatch):
    """A processor with AMX, as far as is known before its instructions are tried."""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    monkeypatch.setenv("CC", f"{cc} -DMOST_ROWS=2")
    monkeypatch.setattr(compiler, "processor_features", lambda: frozenset(compiler._AMX))
    monkeypatch.setattr(compiler, "ask_for_tiles", lambda: True)
    return fresh


@needs_compiler
def test_tiles_are_used_where_another_process_finds_them_right(amx, monkeypatch):
    monkeypatch.setattr(compiler, "_WITH_AMX", list(EMULATED_AMX))
    assert compiler.find().has_tiles
    assert [file.read_bytes() for file in amx.glob("tiles-*")] == [b"right"]
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere")  # what was found is kept
        assert compiler.find().has_tiles
    for file in amx.glob("tiles-*"):
        file.write_bytes(b"")
    forget()
    assert compiler.find().has_tiles  # found again


@needs_compiler
def test_a_compiler_that_is_killed_says_nothing_of_the_tiles(amx, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_WITH_AMX", list(EMULATED_AMX))
    script = 'case "$*" in *AMX*kernels.c*) kill -KILL $$;; esac'
    monkeypatch.setenv("CC", f"{wrapper(tmp_path / 'c', script)} -DMOST_ROWS=2")
    with pytest.warns(compiler.NoTilesWarning):
        assert not compiler.find().has_tiles
    assert not list(amx.glob("tiles-*"))


@needs_compiler
@pytest.mark.skipif("amx_tile" in processor_features(), reason="this processor has tiles")
@pytest.mark.skipif("avx512_vnni" not in processor_features(), reason="no VNNI: no tiles are tried")
def test_kernels_without_tiles_run_where_theirs_crash(amx):
    with pytest.warns(compiler.NoTilesWarning):
        assert not compiler.find().has_tiles
    assert [file.read_bytes() for file in amx.glob("tiles-*")] == [b"wrong"]
    forget()
    assert library.load() is not None


@needs_compiler
@pytest.mark.parametrize("damage", ["no library", "a bit", "cut short", "empty"])
def test_a_damaged_library_is_made_anew(fresh, damage):
    """One that is cut short would end the process that loads it, one with another bit may compute
    other numbers."""
    for unit in (compiler.LAYERS, *map(compiler.products, compiler.TRIED)):
        assert compiler.find().begin(unit).wait()
    kept = {file: file.read_bytes() for file in fresh.iterdir()}
    assert len(libraries(fresh)) == TRIED
    for file, content in kept.items():
        half = len(content) // 2
        other_bit = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        damaged = {"no library": b"damaged", "a bit": other_bit, "cut short": content[:half]}
        file.write_bytes(damaged.get(damage, b""))
    forget()
    assert library.load() is not None
    assert {file: file.read_bytes() for file in fresh.iterdir()} == kept


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_torch_makes_by_default_is_not_what_c_reads(anew, default_dtype, dtype):
    matrix, x = PackedMatrix.of(torch.eye(20), "Q4_1", torch.ones(20)), torch.ones(1, 20)
    expected = library.load().multiply(matrix, x, 1)
    default_dtype(dtype)
    with torch.device("meta"):
        forget()
        kernels = library.load()
        assert kernels is not None
        again = PackedMatrix.of(
            torch.eye(20, dtype=torch.float32, device="cpu"), "Q4_1", matrix.bias_of_outputs
        )
        found = kernels.multiply(again, x, 1)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)
        assert torch.equal(kernels.rows(again, torch.arange(3, device="cpu")), dense(matrix)[:3])


@needs_compiler
@pytest.mark.parametrize("folder", ["a file", "refused by the system"])
def test_a_cache_that_cannot_be_written_is_done_without(fresh, monkeypatch, folder):
    if folder == "a file":
        fresh.parent.write_text("a file where the folder should be")
    else:  # as one is whose folder may not be entered, which nothing keeps an administrator from
        monkeypatch.setenv("HIERSPEC_CACHE", str(fresh.parent.with_name("long" * 100)))
    assert library.load() is not None


@needs_compiler
def test_a_temporary_folder_that_nothing_may_be_run_from_is_done_without(fresh, monkeypatch):
    real = ctypes.CDLL

    def refusing(name):
        if not name.startswith(str(fresh)):
            raise OSError("failed to map segment from shared object")
        return real(name)

    monkeypatch.setattr(ctypes, "CDLL", refusing)
    assert library.load() is not None


@needs_compiler
def test_no_folder_to_compile_in(fresh, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert library.load() is None


@pytest.mark.parametrize(
    "environment", [{"HIERSPEC_KERNELS": "0"}, {"CC": "/nowhere/cc"}, {"CC": "false"}]
)
def test_without_a_compiler_torch_runs(fresh, monkeypatch, tmp_path, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert library.load() is None
        assert library.load() is None
    assert all(environment.get("CC", "") in str(each.message) for each in caught)
    turned_off = "HIERSPEC_KERNELS" in environment
    assert [each.category for each in caught] == [library.NoKernelsWarning] * (not turned_off)
    backend = load(save_tiny("llama", tmp_path / "m"), dtype=torch.float32)
    for bits in (8, 4):
        assert quantize(backend, bits).name == f"{backend.name}:int{bits}"
    assert not library.is_expected()


def test_no_compiler_on_the_path(fresh, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert library.load() is None
