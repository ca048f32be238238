"""What a token costs beside its floor: the time it takes to read the weights once.

All ways take turns on every number of rows and every length of text before them: our kernels with
the model's own weights and with its copies in fewer bits, torch's operations, transformers, and
llama.cpp on the same file where it is given one. The machine's bandwidth is read by a small C
program, with one thread and with all. Run it alone on the machine.

    python benchmarks/ground.py
    python benchmarks/ground.py --target 1b --name ground-1b
    python benchmarks/ground.py --llama-cpp FILE.gguf

``1b`` is a Llama of 1.1 B parameters with random weights: its cost, not its text.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch

from hierspec.lm.backend import Span
from hierspec.lm.lean.quantized import quantize
from hierspec.lm.load import load
from hierspec.lm.weights import StoredSource, WeightSource, build_hf_model
from hierspec.zoo import registry

_READER = r"""
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* Seconds to read so many bytes, the best of several. */
double read_seconds(long bytes, int threads, int repeats) {
    uint64_t *memory = aligned_alloc(64, bytes), sink = 0;
    double best = 1e9;
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < bytes / 8; i++) memory[i] = i;
    for (int r = 0; r < repeats; r++) {
        uint64_t sum = 0;
        double began = omp_get_wtime();
#pragma omp parallel for simd num_threads(threads) reduction(+ : sum)
        for (long i = 0; i < bytes / 8; i++) sum += memory[i];
        double spent = omp_get_wtime() - began;
        sink += sum;
        best = spent < best ? spent : best;
    }
    free(memory);
    return sink == 1 ? 0 : best;
}
"""
_BYTES = 1 << 29  # far more than the caches hold


@dataclass(frozen=True)
class RandomWeights:
    """A Llama of these sizes with random weights, each made when it is asked for."""

    config: Any
    name: str = "random Llama"
    tokenizer_path: Path | None = None

    def names(self) -> list[str]:
        return sorted(self._shapes())

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        from transformers import LlamaForCausalLM

        with torch.device("meta"):
            model = LlamaForCausalLM(self.config)
        return {name: tuple(weight.shape) for name, weight in model.named_parameters()}

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._shapes()[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(shape, generator=generator, dtype=torch.bfloat16) * 0.02


def open_target(name: str) -> WeightSource | str:
    if name == "1b":
        from transformers import LlamaConfig

        return RandomWeights(
            LlamaConfig(
                vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=8192,
                tie_word_embeddings=False, dtype=torch.bfloat16,
            )
        )  # fmt: skip
    return registry.resolve(name) if registry.can_resolve(name) else name


def bandwidth(threads: int) -> float | None:
    """Return GB/s that so many threads read; ``None`` without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "read.c"), Path(folder, "read.so")
        source.write_text(_READER)
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        read = ctypes.CDLL(str(library)).read_seconds
        read.restype, read.argtypes = ctypes.c_double, [ctypes.c_long, ctypes.c_int, ctypes.c_int]
        return _BYTES / read(_BYTES, threads, 10) / 1e9


@dataclass(frozen=True)
class Way:
    """A way to run the model.

    Attributes:
        call: runs so many rows behind so many tokens, from which it starts with ``prepare``.
        num_bytes: of weights that a call reads; 0: unknown.
    """

    prepare: Callable[[int], None]
    call: Callable[[int, int], None]
    num_bytes: int = 0
    note: str = ""


def in_backend(backend: Any, text: torch.Tensor) -> Way:
    state: dict[str, Any] = {}

    def prepare(context: int) -> None:
        state["cache"] = backend.new_cache(len(text))
        run(0, context)

    def run(start: int, rows: int) -> None:
        spans = [Span(state["cache"], start, rows)]
        ids = text[start : start + rows]
        h = backend.layers(backend.embed(ids, spans), 0, backend.num_layers, spans)
        backend.head(h[-64:])

    return Way(
        prepare,
        lambda context, rows: run(context, rows),
        getattr(backend, "num_bytes_read", 0),
        backend.fast_path,
    )


def in_transformers(source: Any, text: torch.Tensor) -> Way:
    from transformers import DynamicCache

    if isinstance(source, str):
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    else:
        model = build_hf_model(source, torch.bfloat16)
    state: dict[str, Any] = {}

    def prepare(context: int) -> None:
        state["cache"] = DynamicCache(config=model.config)
        model(text[None, :context], past_key_values=state["cache"])

    def call(context: int, rows: int) -> None:
        if excess := state["cache"].get_seq_length() - context:
            state["cache"].crop(-excess)
        model(text[None, context : context + rows], past_key_values=state["cache"])

    return Way(prepare, call, note="model(…) with a DynamicCache")


def in_llama_cpp(file: str, text: torch.Tensor, threads: int) -> Way:
    from llama_cpp import Llama, llama_print_system_info

    model = Llama(
        file, n_ctx=len(text), n_threads=threads, n_threads_batch=threads, verbose=False,
        logits_all=False,
    )  # fmt: skip
    ids = text.tolist()

    def prepare(context: int) -> None:
        model.reset()
        model.eval(ids[:context])

    def call(context: int, rows: int) -> None:
        model.n_tokens = context
        model._ctx.kv_cache_seq_rm(-1, context, -1)
        model.eval(ids[context : context + rows])

    return Way(prepare, call, Path(file).stat().st_size, llama_print_system_info().decode())


@torch.inference_mode()
def measure(
    ways: dict[str, Way], contexts: list[int], rows: list[int], repeats: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return milliseconds of a call by context, rows and way."""
    times: dict[str, dict[str, dict[str, list[float]]]] = {}
    for context in contexts:
        for way in ways.values():
            way.prepare(context)
        by_rows = times.setdefault(str(context), {str(n): {} for n in rows})
        for turn in range(repeats + 1):  # the first turn warms up
            for n in rows:
                for name, way in ways.items():
                    began = time.perf_counter()
                    way.call(context, n)
                    spent = 1e3 * (time.perf_counter() - began)
                    if turn:
                        by_rows[str(n)].setdefault(name, []).append(spent)
    return {
        context: {
            n: {name: common.spread(values) for name, values in by_way.items()}
            for n, by_way in by_rows.items()
        }
        for context, by_rows in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--target", default="zoo:smollm2", help="a model, or 1b")
    parser.add_argument("--bits", type=int, nargs="*", default=[8, 6, 5, 4])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--others", nargs="*", default=["lean", "transformers"])
    parser.add_argument("--llama-cpp", nargs="*", default=[], help="GGUF files for llama.cpp")
    parser.add_argument("--name", default="ground", help="of the result file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {str(n): bandwidth(n) for n in sorted({1, args.threads})}
    speed = found[str(args.threads)]
    print("read:", ", ".join(f"{n} thread(s) {v:.1f} GB/s" for n, v in found.items() if v))
    source = open_target(args.target)
    own = load(source, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    length = max(args.contexts) + max(args.rows)
    text = torch.randint(5, min(own.vocab_size, 30000), (length,), generator=generator)
    ways = {"bfloat16": in_backend(own, text)}
    if isinstance(source, StoredSource):
        ways["the file's own bits"] = in_backend(load(source), text)
    ways |= {f"{bits} bits": in_backend(quantize(own, bits), text) for bits in args.bits}
    if "lean" in args.others:
        lean = load(source, dtype=torch.bfloat16, backend="lean")
        ways["torch's operations"] = in_backend(lean, text)
    if "transformers" in args.others:
        ways["transformers"] = in_transformers(source, text)
    ways |= {
        f"llama.cpp {Path(f).name}": in_llama_cpp(f, text, args.threads) for f in args.llama_cpp
    }
    times = measure(ways, args.contexts, sorted(args.rows), args.repeats)
    floors = {n: w.num_bytes / speed / 1e6 for n, w in ways.items() if w.num_bytes and speed}
    for context, by_rows in times.items():
        for name in ways:
            cells = [f"{n}: {by_rows[n][name]['median']:.2f}" for n in by_rows]
            one = by_rows.get("1", {}).get(name)
            share = (
                f"  {floors[name] / one['median']:.0%} of the floor"
                if one and name in floors
                else ""
            )
            print(f"{context} tokens, {name}, ms by rows  {'  '.join(cells)}{share}")
    common.write(
        args.name,
        {
            "environment": common.environment(),
            "settings": vars(args),
            "gigabytes_per_second": found,
            "ways": {name: {"bytes": w.num_bytes, "note": w.note} for name, w in ways.items()},
            "floor_milliseconds": floors,
            "milliseconds": times,
        },
    )


if __name__ == "__main__":
    main()
