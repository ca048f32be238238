"""The compiled kernels against the same layers run by torch on the same 8- or 4-bit weights."""

from __future__ import annotations

import copy
import ctypes
import shutil
import tempfile
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hierspec.errors import HierspecError
from hierspec.lm.backend import Span
from hierspec.lm.lean import kernels
from hierspec.lm.lean import quantized as lean
from hierspec.lm.lean.layers import Matrix, Norm, Stack
from hierspec.lm.lean.panels import NEAR, Panels, head
from hierspec.lm.load import load
from hierspec.utils.testing import save_tiny

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # plain, windows, biases, norms of heads

# In 4 bits inputs are rounded, which makes much of what differs in the last digits before.
CLOSE = {8: {"atol": 2e-5, "rtol": 1e-4}, 4: {"atol": 5e-3, "rtol": 1e-3}}

needs_compiler = pytest.mark.skipif(
    kernels.load() is None, reason="no C compiler here: torch's own operations run instead"
)


class Coded(torch.nn.Module):
    """A matrix whose inputs are rounded as the kernels round them for weights in 4 bits."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.num_out, self.num_weights = weight.size(0), weight.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = F.pad(x, (0, -x.size(-1) % 32)).unflatten(-1, (-1, 32))
        scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        coarse = (groups / scale).round()
        fine = ((groups / scale - coarse) * 254).round() / 254
        rounded = ((coarse + fine) * scale).flatten(-2)[..., : x.size(-1)]
        return F.linear(rounded, self.weight, self.bias)


def pair(path, bits, **sizes):
    """A copy on the kernels; and the lean backend by torch with the very weights of that copy."""
    backend: Any = load(save_tiny(path.name, path / "m", seed=1, **sizes), dtype=torch.float32)
    copied = lean.quantize(backend, bits)
    assert isinstance(copied, lean.KernelBackend)

    def rounded(matrix, bits=bits):
        panels = Panels(matrix.dense(), matrix.bias, bits)
        return (Matrix if bits == 8 else Coded)(panels.dense(), matrix.bias)

    layers = []
    for layer in backend.stack.layers:
        own = copy.copy(layer)
        own._modules = dict(layer._modules)
        for name in ("qkv", "out", "gate_up", "down"):
            setattr(own, name, rounded(getattr(layer, name)))
        layers.append(own)
    reference = copy.copy(backend)
    reference.stack = reference._run = Stack(layers)
    reference._lm_head = rounded(backend._lm_head, 8)
    return copied, reference


@pytest.fixture(scope="module", params=[(name, bits) for name in FAMILIES for bits in (8, 4)])
def both(request, tmp_path_factory):
    name, bits = request.param
    return pair(tmp_path_factory.mktemp("kernels") / name, bits)


def bits(copied) -> int:
    return int(copied.name[-1])


def run(backend, ids, spans):
    with torch.inference_mode():
        h = backend.layers(backend.embed(ids, spans), 0, backend.num_layers, spans)
        return backend.head(h)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 13])
def test_layers_and_head_are_torchs(both, rows):
    copied, _ = both
    ids = torch.arange(3, 43)
    found = []
    for backend in both:
        cache = backend.new_cache(64)
        run(backend, ids[:-rows], [Span(cache, 0, 40 - rows)])
        found.append(
            (run(backend, ids[-rows:], [Span(cache, 40 - rows, rows)]), cache[..., :40, :])
        )
    (ours, kept), (theirs, expected) = found
    assert ours.shape == (rows, copied.vocab_size)
    torch.testing.assert_close(ours, theirs, **CLOSE[bits(copied)])
    torch.testing.assert_close(kept, expected, **CLOSE[bits(copied)])


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 13, 16])
@pytest.mark.parametrize("width", [1, 31, 64, 577])
def test_a_product_in_four_bits(rows, width):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(53, width, generator=generator)
    x = torch.randn(rows, width, generator=generator) * 100
    x[0, :32] = 0.0
    norm = Norm(torch.ones(width), width, 1e-5, torch.float32)
    panels = Panels(weight, bits=4)
    expected = Coded(panels.dense().double(), None)(norm(x).double())
    for threads in (1, 3):
        found = head(kernels.load(), panels, norm, x, threads).double()
        # A rounding that falls the other way is a step of an input's fine code.
        torch.testing.assert_close(found, expected, atol=2e-5 * width**0.5, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_head_reads_eight_bits_only_near_the_best_score(rows):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(3413, 96, generator=generator) / 8
    weight[::100] *= 4
    x = torch.randn(rows, 96, generator=generator)
    norm, library = Norm(torch.ones(96), 96, 1e-5, torch.float32), kernels.load()
    fine, coarse = Panels(weight), Panels(weight, bits=4)
    in_8, in_4 = (head(library, one, norm, x, 1) for one in (fine, coarse))
    tops = F.pad(in_4, (0, -3413 % 16), value=-torch.inf).view(rows, -1, 16).amax(2)
    near = torch.full((rows, 1), NEAR)
    for _ in range(100):  # where more than one panel of sixteen is near, only the nearest count
        chosen = tops >= tops.amax(1, keepdim=True) - near
        many = (chosen.sum(1, keepdim=True) * 16 > tops.size(1)) & (chosen.sum(1, keepdim=True) > 1)
        near = torch.where(many, near * 0.8, near)
    assert 1 <= int(chosen.sum()) <= rows * tops.size(1) / 16
    expected = torch.where(chosen.repeat_interleave(16, 1)[:, :3413], in_8, in_4)
    for threads in (1, 3):
        assert torch.equal(head(library, fine, norm, x, threads, coarse), expected)
    assert torch.equal(expected.argmax(1), in_8.argmax(1))


@needs_compiler
def test_a_row_has_the_same_bits_alone_and_among_others(both):
    copied, _ = both
    sequences = [list(range(5, 5 + n)) for n in (1, 4, 11, 25)]
    together = [copied.new_cache(32) for _ in sequences]
    ids = torch.tensor([token for tokens in sequences for token in tokens])
    spans = [Span(cache, 0, len(s)) for cache, s in zip(together, sequences, strict=True)]
    scores = run(copied, ids, spans).split([len(s) for s in sequences])
    for tokens, rows in zip(sequences, scores, strict=True):
        cache = copied.new_cache(32)
        for at, token in enumerate(tokens):
            alone = run(copied, torch.tensor([token]), [Span(cache, at, 1)])
            assert torch.equal(alone[0], rows[at]), at


@needs_compiler
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("inner", [50, 51])
def test_sizes_that_fill_no_register(tmp_path, bits, inner):
    """Widths, heads and vocabularies that are no multiple of a vector or of a panel."""
    sizes = {
        "hidden_size": 36,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 6,
        "intermediate_size": inner,
        "vocab_size": 101,
    }
    ids = torch.arange(3, 20)
    ours, theirs = (
        run(backend, ids, [Span(backend.new_cache(32), 0, len(ids))])
        for backend in pair(tmp_path / "llama", bits, **sizes)
    )
    torch.testing.assert_close(ours, theirs, **CLOSE[bits])


@needs_compiler
@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize(("dim", "heads", "kv"), [(64, 6, 2), (24, 15, 1), (32, 2, 2)])
def test_heads_that_fill_registers(tmp_path, family, dim, heads, kv):
    """Queries that attend together, more than one stretch of values, any share of the heads."""
    sizes = {"hidden_size": 60, "num_attention_heads": heads, "head_dim": dim}
    changes = {"num_key_value_heads": kv, "max_position_embeddings": 256}
    copied, reference = pair(tmp_path / family, 8, **sizes, **changes)
    text = torch.randint(3, 90, (150,), generator=torch.Generator().manual_seed(0))
    cache, expected = copied.new_cache(256), reference.new_cache(256)
    theirs = run(reference, text, [Span(expected, 0, 150)])
    alone = torch.cat([run(copied, text[i : i + 1], [Span(cache, i, 1)]) for i in range(150)])
    torch.testing.assert_close(alone, theirs, atol=1e-4, rtol=1e-3)
    for rows in (2, 3, 4, 5, 7, 8, 13):
        again, at = copied.new_cache(256), 150 - rows
        again.copy_(cache)
        again[..., at:, :] = 0.0
        other = copied.new_cache(64)
        spans = [Span(other, 0, 3), Span(again, at, rows)]
        found = run(copied, torch.cat([text[:3], text[at:]]), spans)
        assert torch.equal(found[3:], alone[at:]), rows
        assert torch.equal(found[:3], alone[:3]), rows


@needs_compiler
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_a_product_has_the_same_bits_for_a_row_alone(bits, rows):
    generator = torch.Generator().manual_seed(rows)
    panels = Panels(torch.randn(131, 97, generator=generator), bits=bits)
    x = torch.randn(rows, 97, generator=generator)
    norm, library = Norm(torch.ones(97), 97, 1e-5, torch.float32), kernels.load()
    together = head(library, panels, norm, x, 2)
    for row in range(rows):
        assert torch.equal(head(library, panels, norm, x[row : row + 1], 1)[0], together[row])


@needs_compiler
def test_any_number_of_threads_gives_the_same_bits(both, monkeypatch):
    copied, _ = both
    ids, found = torch.arange(3, 30), []
    for threads in (1, 2, 3, 5):
        monkeypatch.setattr(copied, "_num_threads", lambda *_, threads=threads: threads)
        found.append(run(copied, ids, [Span(copied.new_cache(32), 0, len(ids))]))
    assert all(torch.equal(found[0], other) for other in found[1:])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_torch_makes_by_default_is_not_what_c_reads(both, anew, default_dtype, dtype):
    copied, _ = both
    ids = torch.arange(3, 20)
    expected = run(copied, ids, [Span(copied.new_cache(32), 0, len(ids))])
    matrix, x = Panels(torch.eye(20)), torch.ones(1, 20)
    default_dtype(dtype)
    assert kernels.load() is not None
    assert torch.equal(run(copied, ids, [Span(copied.new_cache(32), 0, len(ids))]), expected)
    for name in ("weight", "scale", "bias"):
        again = getattr(Panels(torch.eye(20, dtype=torch.float32)), name)
        assert torch.equal(again, getattr(matrix, name)), name
        assert again.dtype == getattr(matrix, name).dtype
    with torch.device("meta"):
        kernels.load.cache_clear()
        assert kernels.load() is not None
        assert head(copied._library, matrix, copied._norm, x, 1).device.type == "cpu"


@needs_compiler
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_of_several_sequences_is_that_of_each(family, tmp_path, monkeypatch):
    backend: Any = load(save_tiny(family, tmp_path / "m", seed=1), dtype=torch.float32)
    assert backend._attention is not None
    texts = [torch.arange(3, 3 + n) for n in (40, 5, 23)]
    more = [torch.arange(50, 50 + n) for n in (1, 7, 3)]

    def scored(*which):
        caches = [backend.new_cache(64) for _ in which]
        for step in (texts, more):
            seen = [0] * len(which) if step is texts else [len(texts[i]) for i in which]
            spans = [
                Span(cache, start, len(step[i]))
                for cache, start, i in zip(caches, seen, which, strict=True)
            ]
            found = run(backend, torch.cat([step[i] for i in which]), spans)
        return found.split([len(more[i]) for i in which])

    together, turned = scored(0, 1, 2), scored(2, 0, 1)
    for one, other in zip(together, (turned[1], turned[2], turned[0]), strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    alone = [scored(i)[0] for i in range(3)]
    monkeypatch.setattr(backend, "_attention", None)
    by_torch = scored(0, 1, 2)
    for i in range(3):
        torch.testing.assert_close(together[i], alone[i], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(together[i], by_torch[i], atol=2e-5, rtol=1e-4)


@needs_compiler
def test_large_scores_do_not_overflow(both):
    copied, _ = both
    h = torch.full((2, copied.hidden_size), 1e18)
    h[1] = -1e18
    spans = [Span(copied.new_cache(4), 0, 2)]
    with torch.inference_mode():
        assert copied.layers(h, 0, copied.num_layers, spans).isfinite().all()


def test_four_bits_keep_what_was_released_in_four_bits():
    """A step and a lowest value for 32 weights, as GGUF's Q4_1 has them."""
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(16, (21, 96), generator=generator)
    codes[:, ::32], codes[:, 1::32] = 0, 15  # a group uses its whole range
    step = torch.rand(21, 3, generator=generator).mul(0.1).half().float()
    lowest = -8 * step + 0.01
    weight = codes * step.repeat_interleave(32, 1) + lowest.repeat_interleave(32, 1)
    panels = Panels(weight, bits=4)
    torch.testing.assert_close(panels.dense(), weight, atol=1e-3, rtol=1e-3)
    assert panels.num_bytes * 8 == 5 * 32 * 96  # 32 outputs with the padded ones


@pytest.mark.parametrize("width", [1, 2, 30, 32, 34, 65, 100])
def test_four_bits_err_by_half_a_step(width):
    weight = torch.linspace(-1, 2, 5 * width).view(5, width).mul(7).sin()
    weight[1], weight[2] = 0.0, 0.25  # no range
    panels = Panels(weight, bits=4)
    for start in range(0, width, 32):
        group = weight[:, start : start + 32]
        half = (group.amax(1) - group.amin(1)) / 30
        error = (panels.dense()[:, start : start + 32] - group).abs().amax(1)
        assert (error <= half + 2e-3).all()


# --- compilers


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache of its own, and nothing loaded yet; compiled in a moment, not for speed."""
    monkeypatch.setenv("HIERSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "_FLAGS", ["-O0", *kernels._FLAGS[1:]])
    kernels.load.cache_clear()
    yield tmp_path / "cache" / "kernels"
    kernels.load.cache_clear()


@pytest.fixture
def anew():
    """Nothing loaded yet; what is compiled already is found."""
    kernels.load.cache_clear()
    yield
    kernels.load.cache_clear()


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@needs_compiler
def test_they_are_compiled_once(fresh, monkeypatch):
    assert kernels.load() is not None
    (kept,) = fresh.iterdir()
    kernels.load.cache_clear()
    monkeypatch.setattr(kernels, "_compile", lambda *_: pytest.fail("compiled again"))
    assert kernels.load() is not None
    assert list(fresh.iterdir()) == [kept]


@needs_compiler
def test_another_version_of_the_compiler_compiles_anew(fresh, monkeypatch, tmp_path):
    real, other = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"), tmp_path / "c"
    names = []
    for version in ("1.0", "1.1", "1.1"):
        script = f'[ "$1" = --version ] && echo {version} || exec {real} "$@"'
        other.write_text(f"#!/bin/sh\n{script}\n")
        other.chmod(0o755)
        monkeypatch.setenv("CC", str(other))
        kernels.load.cache_clear()
        assert kernels.load() is not None
        names.append(sorted(fresh.iterdir()))
    assert [len(found) for found in names] == [1, 2, 2]


@needs_compiler
def test_a_damaged_library_is_made_anew(fresh):
    assert kernels.load() is not None
    (kept,) = fresh.iterdir()
    kept.unlink()  # not overwritten: this process has it mapped
    kept.write_bytes(b"damaged")
    kernels.load.cache_clear()
    assert kernels.load() is not None
    assert kept.read_bytes() != b"damaged"


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(fresh):
    fresh.parent.write_text("a file where the folder should be")
    assert kernels.load() is not None


@needs_compiler
def test_a_temporary_folder_that_nothing_may_be_run_from_is_done_without(fresh, monkeypatch):
    real = ctypes.CDLL

    def refusing(name):
        if not name.startswith(str(fresh)):
            raise OSError("failed to map segment from shared object")
        return real(name)

    monkeypatch.setattr(ctypes, "CDLL", refusing)
    assert kernels.load() is not None


@needs_compiler
def test_no_folder_to_compile_in(fresh, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert kernels.load() is None


@pytest.mark.parametrize(
    "environment", [{"HIERSPEC_KERNELS": "0"}, {"CC": "/nowhere/cc"}, {"CC": "false"}]
)
def test_without_a_compiler_torch_runs(fresh, monkeypatch, tmp_path, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert kernels.load() is None
    backend = load(save_tiny("llama", tmp_path / "m"), dtype=torch.float32)
    with pytest.raises(HierspecError, match="C compiler"):
        lean.quantize(backend, 4)
    if not lean.fbgemm_works():
        with pytest.raises(HierspecError, match="C compiler"):
            lean.quantize(backend)
    else:
        assert "compiled kernels" not in lean.quantize(backend).fast_path


def test_no_compiler_on_the_path(fresh, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert kernels.load() is None
