"""What a token costs beside its floor: the time it takes to read the weights once.

All ways take turns on every number of rows and every length of text before them: our kernels with
the model's own weights, with its copies in fewer bits and with GGUF files of several types,
llama.cpp on the same files, torch's operations, and transformers. So does a small C program that
reads memory, with as many threads: bytes over its bandwidth is the floor. ``--prompts`` times the
reading of whole prompts instead, beside oneDNN's time for the matrices alone. A run is added to
those in the result file, in the place of one with the same settings on such a processor. Run it
alone on the machine.

    python benchmarks/ground.py --rows 1 4 8 16 32
    python benchmarks/ground.py --target llama-1.2b --bits 8 4 --repeats 8
    python benchmarks/ground.py --bits --others --files FOLDER --types BF16 Q8_0 --threads 1
    python benchmarks/ground.py --bits --prompts 512 3900 --repeats 3

llama.cpp waits in OpenMP's barriers: ``GOMP_SPINCOUNT=300000``, GNU's default, is what it has by
itself, and gains our kernels nothing. Files are written to ``FOLDER`` by its own
``llama_model_quantize`` where they are not there yet. ``llama-1.2b`` has random weights: its cost
is real, its text is not.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import common
import torch
from pack import rounded
from random_models import open_source

from hierspec.lm.backend import Span
from hierspec.lm.load import load
from hierspec.lm.weights import StoredSource, WeightSource, build_hf_model
from hierspec.methods.quantized import quantize
from hierspec.zoo.gguf.source import GgufSource
from hierspec_lab.bench.peers.gguf_file import quantize_gguf, write_gguf

CHUNK = 512  # rows that a prompt is read in
_READING = "reading memory"
_READER = r"""
#include <omp.h>
#include <stdint.h>
#include <sys/mman.h>
/* Memory on huge pages, as many bytes, filled. */
uint64_t *fill(long bytes, int threads) {
    const long huge = 2 << 20;
    char *start = mmap(0, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *memory = (uint64_t *)(((uintptr_t)start + huge - 1) & -(uintptr_t)huge);
    madvise(memory, bytes, MADV_HUGEPAGE);
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < bytes / 8; i++) memory[i] = i;
    return memory;
}
uint64_t read_all(const uint64_t *memory, long bytes, int threads) {
    uint64_t sum = 0;
#pragma omp parallel for simd num_threads(threads) reduction(+ : sum)
    for (long i = 0; i < bytes / 8; i++) sum += memory[i];
    return sum;
}
"""
_BYTES = 1 << 28  # far more than the caches hold


@dataclass(frozen=True)
class Way:
    """A way to run the model.

    Attributes:
        call: runs so many rows behind so many tokens, or of more that ``prepare`` has read.
        num_bytes: of weights that a call reads; 0: unknown.
    """

    prepare: Callable[[int], None]
    call: Callable[[int, int], None]
    num_bytes: int = 0
    note: str = ""


def reading(threads: int, folder: str) -> Way | None:
    """Return how so many threads read memory; ``None`` without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = Path(folder, "read.c"), Path(folder, "read.so")
    source.write_text(_READER)
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    reader, size = ctypes.CDLL(str(library)), ctypes.c_long(_BYTES)
    reader.fill.restype = reader.read_all.restype = ctypes.c_uint64
    memory = ctypes.c_uint64(reader.fill(size, threads))
    return Way(
        lambda context: None,
        lambda context, rows: reader.read_all(memory, size, threads),
        _BYTES,
        "a loop in C, on huge pages",
    )


def in_backend(backend: Any, text: torch.Tensor) -> Way:
    caches: list[Any] = []

    def run(start: int, rows: int) -> None:
        spans = [Span(caches[-1], start, rows)]
        ids = text[start : start + rows]
        h = backend.layers(backend.embed(ids, spans), 0, backend.num_layers, spans)
        backend.head(h if rows <= 64 else h[-1:])

    def prepare(context: int) -> None:
        caches[:] = [backend.new_cache(len(text))]
        for start in range(0, context, CHUNK):
            run(start, min(CHUNK, context - start))

    note = f"{type(backend).__name__}, {getattr(backend, 'formats', backend.weight_dtype)}"
    return Way(prepare, run, getattr(backend, "num_bytes_read", 0), note)


def in_one_dnn(source: WeightSource, text: torch.Tensor) -> Way:
    """Return the products of a model's layers alone, in bfloat16."""
    config: Any = source.config
    heads, kv = (
        n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads)
    )
    width, inner = config.hidden_size, config.intermediate_size
    shapes = [
        (heads, width),
        (kv, width),
        (kv, width),
        (width, heads),
        *[(inner, width)] * 2,
        (width, inner),
    ]
    layers = [
        [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
        for _ in range(config.num_hidden_layers)
    ]

    def call(context: int, rows: int) -> None:
        x = {size: torch.randn(rows, size, dtype=torch.bfloat16) for size in {heads, width, inner}}
        for layer in layers:
            for weight in layer:
                torch.nn.functional.linear(x[weight.shape[1]], weight)

    def prepare(context: int) -> None:
        for start in range(0, context, CHUNK):
            call(start, min(CHUNK, context - start))

    return Way(
        prepare, call, note="torch.nn.functional.linear of the layers' matrices, nothing else"
    )


def in_transformers(source: WeightSource, text: torch.Tensor) -> Way:
    from transformers import DynamicCache

    model = build_hf_model(source, torch.bfloat16)
    caches: list[Any] = []

    def run(start: int, rows: int) -> None:
        ids = text[None, start : start + rows]
        model(ids, past_key_values=caches[-1], logits_to_keep=rows if rows <= 64 else 1)

    def prepare(context: int) -> None:
        caches[:] = [DynamicCache(config=model.config)]
        run(0, context)

    def call(context: int, rows: int) -> None:
        if excess := caches[-1].get_seq_length() - context:
            caches[-1].crop(-excess)
        run(context, rows)

    return Way(prepare, call, note="model(…) with a DynamicCache")


def gguf_files(source: WeightSource, types: list[str], folder: Path) -> dict[str, Path]:
    """Return a model's GGUF files of these types; those that are not there yet are written."""
    stem = source.name.rpartition(":")[2]
    files = {name: folder / f"{stem}-{name}.gguf" for name in dict.fromkeys(["BF16", *types])}
    if not files["BF16"].exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_gguf(build_hf_model(source, torch.bfloat16), files["BF16"])
    for name, file in files.items():
        if not file.exists():
            quantize_gguf(files["BF16"], file, name)
    return {name: files[name] for name in types}


def in_llama_cpp(file: Path, text: torch.Tensor, threads: int) -> Way:
    from llama_cpp import Llama, __version__, llama_print_system_info

    model = Llama(
        str(file), n_ctx=len(text), n_threads=threads, n_threads_batch=threads, verbose=False
    )
    ids = text.tolist()

    def prepare(context: int) -> None:
        model.reset()
        model.eval(ids[:context])

    def call(context: int, rows: int) -> None:
        model.n_tokens = context  # what lies behind is forgotten
        model.eval(ids[context : context + rows])

    flags = llama_print_system_info().decode().strip(" |")
    note = f"llama-cpp-python {__version__}, {flags}"
    return Way(prepare, call, file.stat().st_size, note)


@torch.inference_mode()
def measure(
    ways: dict[str, Way], contexts: list[int], rows: list[int], repeats: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return milliseconds of a call by context, rows and way; without rows: of a whole prompt.

    All take turns, contexts too, since a machine's speed moves from minute to minute.
    """
    cases = [(context, n) for context in contexts for n in rows or ["prompt"]]
    found: dict[tuple[int, Any], dict[str, list[float]]] = {case: {} for case in cases}
    for way in ways.values():
        if rows:
            way.prepare(max(contexts))
    for turn in range(repeats + 1):  # the first turn warms up
        for (context, n), by_way in found.items():
            for name, way in ways.items():
                began = time.perf_counter()
                if rows:
                    way.call(context, n)
                else:
                    way.prepare(context)
                if turn:
                    by_way.setdefault(name, []).append(1e3 * (time.perf_counter() - began))
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for (context, n), by_way in found.items():
        spreads = {name: common.spread(values) for name, values in by_way.items()}
        times.setdefault(str(context), {})[str(n)] = spreads
    return times


def floors(ways: dict[str, Way], times: dict[str, dict[str, dict[str, Any]]]) -> dict[str, float]:
    """Return the milliseconds in which memory is read as far as a row reads it."""
    one = next(iter(times.values())).get("1", {}).get(_READING)
    if one is None:
        return {}
    return {n: one["median"] * w.num_bytes / _BYTES for n, w in ways.items() if w.num_bytes}


def collect(args: argparse.Namespace, folder: str) -> tuple[dict[str, Way], list[int], list[int]]:
    """Return the ways that were asked for, the lengths of text and the numbers of rows."""
    source = open_source(args.target)
    prompts, rows = args.prompts, [] if args.prompts else sorted(args.rows)
    contexts = prompts or args.contexts
    generator = torch.Generator().manual_seed(0)
    length = max(contexts) + max(rows, default=0)
    text = torch.randint(5, min(source.config.vocab_size, 30000), (length,), generator=generator)
    found: dict[str, Way | None] = {} if prompts else {_READING: reading(args.threads, folder)}
    files: dict[str, Path] = {}
    if args.files and not find_spec("llama_cpp"):
        print("llama.cpp is left out: llama-cpp-python is not installed")
    elif args.files:
        files = gguf_files(source, args.types, args.files)
    if not files:
        own = load(source, dtype=torch.bfloat16)
        found["bfloat16"] = in_backend(own, text)
        if isinstance(source, StoredSource):
            found["the file's own bits"] = in_backend(load(source), text)
        found |= {f"{bits} bits": in_backend(quantize(own, bits), text) for bits in args.bits}
    for kind, file in files.items():
        config: Any = source.config
        stored = GgufSource(file, file.stem, file, config)
        found[f"{kind}, ours"] = in_backend(load(stored), text)
        found[f"{kind}, llama.cpp"] = in_llama_cpp(file, text, args.threads)
    if "oneDNN" in args.others:
        found["oneDNN's products"] = in_one_dnn(source, text)
    if "lean" in args.others:
        lean = load(source, dtype=torch.bfloat16, backend="lean")
        found["torch's operations"] = in_backend(lean, text)
    if "transformers" in args.others:
        found["transformers"] = in_transformers(source, text)
    return {name: way for name, way in found.items() if way}, contexts, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--target", default="zoo:smollm2", help="a model, or one of random_models")
    parser.add_argument("--bits", type=int, nargs="*", default=[8, 6, 5, 4])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128])
    parser.add_argument("--prompts", type=int, nargs="+", default=[], help="lengths, read whole")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--others", nargs="*", default=["lean", "transformers"], help="and oneDNN")
    parser.add_argument("--files", type=Path, help="folder of GGUF files, for ours and llama.cpp")
    parser.add_argument("--types", nargs="+", default=["BF16", "Q8_0", "Q4_0", "Q4_K_M"])
    parser.add_argument("--name", default="ground", help="of the result file")
    args = parser.parse_args()
    if len(args.contexts) > 1 and "transformers" in args.others:
        parser.error("transformers forgets what it crops: give it one of --contexts")
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        ways, contexts, rows = collect(args, folder)
    times = measure(ways, contexts, rows, args.repeats)
    floor = floors(ways, times)
    for context, by_rows in times.items():
        for name in ways:
            cells = [f"{n}: {by_way[name]['median']:.2f}" for n, by_way in by_rows.items()]
            one = by_rows.get("1", {}).get(name)
            share = f"  {floor[name] / one['median']:.0%} of the floor" if name in floor else ""
            print(f"{context} tokens, {name}, ms by rows  {'  '.join(cells)}{share}")
    run = {
        "environment": common.environment(),
        "settings": {k: v for k, v in vars(args).items() if k not in ("files", "name")},
        "ways": {name: {"bytes": w.num_bytes, "note": w.note} for name, w in ways.items()},
        "floor_milliseconds": floor,
        "milliseconds": times,
    }
    file = common.RESULTS / f"{args.name}.json"
    before = json.loads(file.read_text())["runs"] if file.exists() else []

    def identity(one: dict[str, Any]) -> tuple[Any, ...]:
        return one["settings"], one["environment"]["cpu"]

    kept = [one for one in before if identity(one) != identity(run)]
    common.write(args.name, {"runs": [*kept, rounded(run)]})


if __name__ == "__main__":
    main()
